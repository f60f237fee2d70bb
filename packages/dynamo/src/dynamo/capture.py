"""One capture: a call of a function in, an entry (guards and code) out.

Interprets the function on its actual arguments, hands the graph to the backend, and emits the code that takes
the call's place. A graph break ends the graph; the statement runs for real and what follows runs through resume
functions that are captured in their turn (`dynamo.emit.resume`). Where a break lies in a frame that cannot be
entered again, capture starts over and breaks at the statement of the caller. Invariant: nothing outside is
changed by a capture, whatever its outcome.
"""

from __future__ import annotations

import dis
import linecache
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import dynamo.machine.opcodes  # noqa: F401 - registers the opcodes
from dynamo._native import Entry
from dynamo._torch import (
    DeviceContext,
    function_mode_stack,
    without_function_modes,
    without_saved_tensor_hooks,
)
from dynamo.emit.drawn import DrawFound, Drawing, is_drawn
from dynamo.emit.effects import emit_effects
from dynamo.emit.entry import Again, build_entry, order_of_inputs
from dynamo.emit.hooks import make_histories, register_late, retain_late
from dynamo.emit.reconstruct import CannotReconstruct, Emitter
from dynamo.emit.resume import Resume, emit_step
from dynamo.errors import (
    BackendError,
    BreakReason,
    CaptureError,
    GraphBreak,
    Restart,
    SkipFrame,
    describe_break,
)
from dynamo.faults import require_programs
from dynamo.graph.expected import (
    before,
    generators,
    is_ours,
    obstacle,
    put_back,
    written_inputs,
)
from dynamo.graph.extents import has_bytes
from dynamo.graph.gradients import tangled
from dynamo.graph.inputs import GraphInput, restore_placeholders
from dynamo.graph.recorder import Recorder
from dynamo.graph.sizes import History, Sizes
from dynamo.graph.stages import has_boundaries, staged
from dynamo.graph.tensor_classes import as_plain, without_overrides
from dynamo.graph.wrappers import plain_parts
from dynamo.guards import GlobalState, Guard, GuardKind, compile_program
from dynamo.guards.binding import run_original
from dynamo.guards.kinds import memory_apart, storage_pattern
from dynamo.machine.frame import Frame
from dynamo.machine.interpreter import Machine
from dynamo.source import (
    ArraySource,
    ConstantSource,
    FunctionSource,
    LocalSource,
    StorageOffsetSource,
)
from dynamo.stored.entry import Material
from dynamo.values import locks, regions
from dynamo.values.apart import changed_apart
from dynamo.values.calls import OTHER_COMPILER
from dynamo.values.modules import runs_packed
from dynamo.values.session import Session, runs_in_python
from dynamo.values.tensor_hooks import require_private
from dynamo.values.tensor_subclasses import outer_modes
from primtorch.errors import PrimtorchError

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence
    from types import CodeType

    from dynamo.options import DynamoOptions
    from dynamo.source import Source

__all__ = ["RECURSION", "Captured", "Request", "capture"]

RECURSION = 20000
_ATTEMPTS = 40


@dataclass(frozen=True, slots=True)
class Captured:
    """What a capture made: the entry, for reports its graph, its source and its break, and its material."""

    entry: Entry
    graph: Any
    source: str
    stop: GraphBreak | None
    message: str
    material: Material | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be captured and how."""

    function: types.FunctionType
    arguments: tuple[Any, ...]
    backend: Callable[..., Any]
    options: DynamoOptions
    resume: Callable[[Any, CodeType, dict[str, Any]], Resume]
    history: History
    hook: Callable[..., Any]
    fullgraph: bool = False
    breaks_raise: bool | None = None  # what a region says that a resume function begins in
    regions: dict[CodeType, bool | None] = field(default_factory=dict)  # of resume functions
    dynamic: bool | None = None
    observer: Callable[[str, str], None] | None = None
    drawing: Drawing | None = None
    cache: Any = None  # the entries of the function's code

    @property
    def backend_name(self) -> str:
        """What messages call the backend."""
        return str(getattr(self.backend, "__name__", type(self.backend).__name__))

    @property
    def symbolic(self) -> bool:
        """Whether the backend takes symbolic sizes."""
        return bool(getattr(self.backend, "symbolic", False))


class UserError(Exception):
    """The captured program raised; the call has to run eagerly to show it.

    `otherwise` is what is raised if it runs without raising; a fault of ours if that is None.
    """

    def __init__(self, otherwise: CaptureError | None = None) -> None:
        super().__init__()
        self.otherwise = otherwise


def capture(request: Request) -> Captured:
    """Capture one call.

    Raises:
        SkipFrame: the function must run eagerly.
        UserError: this call raises; it must run eagerly.
        CaptureError: `fullgraph` and a graph break.
        BackendError: the backend failed.
    """
    if request.observer is not None:
        request.observer("00_bytecode.txt", _bytecode_text(request.function.__code__))
    if runs_in_python(request.function.__globals__.get("__name__")):
        why = f"{request.function.__qualname__} is run in Python; what it calls is captured"
        if request.fullgraph:
            code = request.function.__code__
            raise CaptureError(
                BreakReason.UNSUPPORTED_CALL,
                why,
                code.co_qualname,
                code.co_filename,
                code.co_firstlineno,
            )
        raise SkipFrame(why)
    if request.function.__globals__.get("__name__") == OTHER_COMPILER:
        raise SkipFrame("torch's compiler compiles it")
    if runs_packed(request.function, request.arguments):
        raise SkipFrame("a recurrent layer on packed sequences runs as it is")
    breaks: dict[int, tuple[BreakReason, str]] = {}
    late_hooks: set[int] = set()
    for _ in range(_ATTEMPTS):
        try:
            with without_saved_tensor_hooks():
                return _attempt(request, breaks, late_hooks)
        except Restart:
            continue
        except (
            GraphBreak
        ) as error:  # behind the program's last instruction: there is no place to go on from
            raise SkipFrame(f"{error.reason.title}: {error.why}") from error
    raise SkipFrame("too many places where capture cannot go on")


def _bytecode_text(code: CodeType) -> str:
    """The instructions of a code object as captured, the user's line above each group of them."""
    lines = [f"{code.co_qualname}, {code.co_filename}:{code.co_firstlineno}"]
    shown: int | None = None
    for instruction in dis.get_instructions(code):
        at = instruction.positions.lineno if instruction.positions is not None else None
        if at is not None and at != shown:
            shown = at
            lines += ["", f"{at:5}  {linecache.getline(code.co_filename, at).strip()}"]
        mark = ">>" if instruction.is_jump_target else "  "
        what = f"{instruction.opname:28} {instruction.argrepr}".rstrip()
        lines.append(f"{mark} {instruction.offset:5}  {what}")
    return "\n".join(lines)


def _attempt(
    request: Request, breaks: dict[int, tuple[BreakReason, str]], late_hooks: set[int]
) -> Captured:
    sizes = _sizes(request)
    recorder = Recorder(sizes)
    session = Session(request.function, recorder)
    machine = Machine(session, breaks, late_hooks)
    machine.breaks_raise = request.breaks_raise
    machine.drawing = request.drawing if request.symbolic else None
    recorder.machine = machine
    state = GlobalState.now()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    grad = torch.is_grad_enabled()
    emitter = Emitter(session)
    stop: GraphBreak | None = None
    drawn: DrawFound | None = None
    message = ""
    modes = function_mode_stack()
    if all(type(mode) is DeviceContext for mode in modes):
        modes = ()  # they only say where factories put their tensors
    else:
        outer_modes(machine, modes)
    with without_function_modes(len(modes)):
        try:
            with recorder.mode:
                try:
                    frame = _root_frame(session, request)
                    result = machine.run(frame)
                    frame.drop_variables()
                except GraphBreak as found:
                    stop = found
                except DrawFound as found:
                    drawn = found
                except RecursionError as error:
                    raise SkipFrame(
                        "the recursion is too deep to capture", recursion=True
                    ) from error
                except Exception as error:
                    require_programs(error)
                    raise UserError from error
            machine.interpreting = False
            _require_few_branches(request, session)
            grad_after = grad
            if drawn is None:
                _require_ended(machine)
                grad_after = torch.is_grad_enabled()
                with torch._C.DisableTorchFunction():
                    register_late(machine, emitter)
                    if stop is None:
                        returned = _emit_result(request, machine, emitter, result)
                    else:
                        message = _check_break(request, machine, stop)
                        returned = _emit_break(request, emitter, machine, stop)
                    regions.reenter(emitter, regions.record_exits(machine))
                    regions.restore_kernels(machine, emitter)
        finally:
            machine.interpreting = False
            regions.leave_states(machine)
            regions.restore_kernels(machine, None)
            torch._C._set_grad_enabled(grad)
            sys.setrecursionlimit(limit)
        if grad_after is not grad:
            emitter.line(f"{emitter.constant(torch._C._set_grad_enabled)}({grad_after})")
        if stop is not None:
            returned += "()"
            stop = GraphBreak(
                stop.reason, stop.why
            )  # without the traceback, which holds the frames
        try:
            if drawn is not None:
                return _draw_ahead(request, session, emitter, state, drawn)
            return _finish(request, machine, session, emitter, returned, state, stop, message)
        finally:
            # What the program used in this call must not live until the next collection of cycles.
            machine.frames.clear()
            session.release()


def _require_ended(machine: Machine) -> None:
    """What the program began must be over, and what it counts known."""
    if machine.failed_finally is not None:
        broken = machine.failed_finally
        raise SkipFrame(f"a generator is dropped, and {broken.why} in its end") from broken
    locks.require_released(machine)
    _require_counters(machine.session)


def _require_few_branches(request: Request, session: Session) -> None:
    """Where more numbers that were drawn before the call decide something than versions are worth, start over."""
    sizes = session.recorder.sizes
    if request.drawing is None or sizes is None:
        return
    constant = sum(
        kind is GuardKind.EQUAL and type(source) is LocalSource and is_drawn(source.local)
        for kind, source, _ in session.guards
    )
    branches = sizes.branched_on_draws() + constant
    request.drawing.require_few(request.function.__code__, branches, request.arguments)


def _draw_ahead(
    request: Request, session: Session, emitter: Emitter, state: GlobalState, found: DrawFound
) -> Captured:
    """The entry that draws, and goes on with what was drawn: what was recorded until then is left."""
    assert request.drawing is not None, "asked only where there is one"
    function, slots = _own_arguments(request, emitter)
    ahead = request.drawing.ahead(request.function.__code__, found.draw, request.cache)
    source = session.source_of(found.generator)
    generator = emitter.source(ConstantSource(found.generator) if source is None else source)
    returned = f"{emitter.constant(ahead)}({function}, ({slots}), {generator})"
    session.assumptions.refuse("numbers are drawn before the call")
    return _captured(request, session, emitter, state, returned)


def _sizes(request: Request) -> Sizes | None:
    """What may be symbolic in this capture; None if nothing."""
    options = request.options
    numbers, shapes = options.capture_scalar_outputs, options.capture_dynamic_output_shape_ops
    if not (request.symbolic or numbers or shapes):
        return None
    dynamic = request.dynamic if request.symbolic else False
    return Sizes(request.history, dynamic=dynamic, numbers=numbers, shapes=shapes)


def _root_frame(session: Session, request: Request) -> Frame:
    function = request.function
    session.remember(function, FunctionSource())
    session.assumptions.inlined(function)
    frame = Frame(function, resumable=True)
    names = function.__code__.co_varnames
    cells = set(function.__code__.co_cellvars)
    for i, value in enumerate(request.arguments):
        frame.slots[i] = session.wrap(value, LocalSource(names[i], names[i] in cells))
    frame.closure = session.closure_of(function)
    return frame


def _emit_result(request: Request, machine: Machine, emitter: Emitter, result: Any) -> str:
    try:
        returned = emitter.value(result)
        emit_effects(emitter)
        retain_late(machine, emitter)
    except CannotReconstruct as error:
        code = request.function.__code__
        if request.fullgraph:
            raise CaptureError(
                BreakReason.UNSUPPORTED_VALUE,
                f"the function leaves {error} behind",
                code.co_qualname,
                code.co_filename,
                code.co_firstlineno,
            ) from error
        raise SkipFrame(str(error)) from error
    return returned


def _check_break(request: Request, machine: Machine, stop: GraphBreak) -> str:
    """The break's message; an error under `fullgraph`."""
    if not machine.frames:
        code, line = request.function.__code__, request.function.__code__.co_firstlineno
    else:
        code, line = machine.frames[-1].code, machine.frames[-1].line
    if request.fullgraph if machine.breaks_raise is None else machine.breaks_raise:
        error = CaptureError(stop.reason, stop.why, code.co_qualname, code.co_filename, line)
        if (
            stop.reason is BreakReason.OPERATOR_FAILED
            and request.fullgraph
            and not isinstance(stop.__cause__, PrimtorchError)
            and not machine.in_try(everything=True)
        ):
            raise UserError(error) from stop.__cause__  # the program's mistake: eager tells it
        raise error from stop.__cause__
    return describe_break(stop.reason, stop.why, code.co_qualname, code.co_filename, line)


def _emit_break(request: Request, emitter: Emitter, machine: Machine, stop: GraphBreak) -> str:
    frames = machine.frames
    if not frames:
        raise SkipFrame(f"{stop.reason.title}: {stop.why}")
    if stop.reason is BreakReason.RECURSION:
        raise SkipFrame(stop.why, recursion=True)
    depth = 1
    while depth < len(frames) and frames[depth].resumable:
        depth += 1
    for level in range(depth):
        if frames[level].exceptions:
            # Inside a handler: the statement that raised runs for real, and its handler with it.
            _restart(machine, frames[level].raised_at[0], stop)
    if depth < len(frames):
        _restart(machine, frames[depth - 1].tick, stop)
    inner: str | None = None
    try:
        make_histories(emitter, frames[depth - 1].stack)
        for level in range(depth - 1, -1, -1):
            region = frames[level + 1].breaks_raise if level + 1 < depth else machine.breaks_raise
            resume = partial(_resume_in, request, region)
            inner = emit_step(emitter, frames[level], inner, resume, request.hook)
        emit_effects(emitter)
        retain_late(machine, emitter)
    except CannotReconstruct as error:
        if depth > 1:
            _restart(machine, frames[depth - 2].tick, stop)
        raise SkipFrame(f"{stop.reason.title}: {stop.why}; {error}") from error
    assert inner is not None
    return inner


def _resume_in(
    request: Request, region: bool | None, key: Any, code: CodeType, names: dict[str, Any]
) -> Resume:
    """The resume function of a place, which goes on in the region of its frame."""
    made = request.resume(key, code, names)
    request.regions[made.code] = region
    return made


def _restart(machine: Machine, tick: int, stop: GraphBreak) -> None:
    if tick <= 0 or tick in machine.break_ticks:
        raise SkipFrame(f"{stop.reason.title}: {stop.why}")
    machine.break_ticks[tick] = (stop.reason, stop.why)
    raise Restart


def _require_watched(machine: Machine, outputs: list[Any]) -> None:
    """What may raise inside a `try` must be computed: a result that nobody reads is computed for real."""
    recorder = machine.session.recorder
    if not recorder.watched:
        return
    read: set[torch.fx.Node] = set()
    pending = [recorder.node_of(value) for value in outputs]
    while pending:
        node = pending.pop()
        if node not in read:
            read.add(node)
            pending.extend(node.all_input_nodes)
    for node, tick, name in recorder.watched:
        if node not in read:
            machine.break_ticks[tick] = (
                BreakReason.MAY_RAISE_IN_TRY,
                f"{name} may raise at run time inside a try block",
            )
            raise Restart


def _require_untangled(machine: Machine, emitter: Emitter) -> None:
    """A leaf that the call makes must not leave it beside what was computed from it."""
    recorder = machine.session.recorder
    tick = tangled(recorder, emitter.graph_outputs, emitter.leaves_out)
    if tick is not None:
        machine.break_ticks[tick] = (
            BreakReason.UNSUPPORTED_CALL,
            "a tensor that is made to require a gradient stays connected with a result",
        )
        raise Restart


def _require_counters(session: Session) -> None:
    """A number that the call itself changes can't be a constant: the next call would find another; so with tensors."""
    sizes = session.recorder.sizes
    if sizes is None:
        return
    if sizes.specialised:
        changed = {source for source in session.changed_numbers() if source in sizes.specialised}
        if changed and sizes.history.counts(changed):
            raise Restart
    if sizes.outgrown(session.replaced()):
        raise Restart


def _expected_outputs(machine: Machine, emitter: Emitter) -> list[str]:
    """The names of the outputs that tell whether the branches on data went as expected."""
    recorder = machine.session.recorder
    if not recorder.expected:
        return []
    why = obstacle(recorder)
    if why is not None:
        for tick in recorder.expecting:
            machine.break_ticks[tick] = (
                BreakReason.DATA_DEPENDENT_BRANCH,
                f"whether the program raises depends on a tensor's value, and {why}",
            )
        raise Restart
    with torch._C.DisableTorchFunction():
        return [emitter.value(value) for value in recorder.expected.values()]


def _own_arguments(request: Request, emitter: Emitter) -> tuple[str, str]:
    """The expressions for the function and for its argument slots."""
    code = request.function.__code__
    names = code.co_varnames[: len(request.arguments)]
    cells = set(code.co_cellvars)
    slots = "".join(emitter.source(LocalSource(name, name in cells)) + ", " for name in names)
    return emitter.source(FunctionSource()), slots


def _again(request: Request, emitter: Emitter, fine: list[str]) -> Again:
    """How the call is made eagerly, should the graph raise or things go otherwise than expected."""
    function, slots = _own_arguments(request, emitter)
    call = f"{emitter.constant(run_original)}({function}, ({slots}))"
    recorder = emitter.recorder
    fault = emitter.constant(is_ours)
    written, devices = written_inputs(recorder), generators(recorder)
    if not fine or not (written or devices):
        return Again(call, fault, tuple(fine))
    tensors = "".join(f"{_loaded(emitter, entry)}, " for entry in written)
    named = "".join(f"{emitter.constant(device)}, " for device in devices)
    keep = f"{emitter.constant(before)}(({tensors}), ({named}))"
    return Again(call, fault, tuple(fine), keep, emitter.constant(put_back))


def _finish(
    request: Request,
    machine: Machine,
    session: Session,
    emitter: Emitter,
    returned: str,
    state: GlobalState,
    stop: GraphBreak | None,
    message: str,
) -> Captured:
    recorder = session.recorder
    fine = _expected_outputs(machine, emitter)
    _require_watched(machine, emitter.graph_outputs)
    require_private(machine, emitter.graph_outputs)
    if emitter.leaves_out:
        _require_untangled(machine, emitter)
    compiled: Callable[..., Any] | None = None
    module: Any = None
    graph_inputs: list[str] = []
    if emitter.graph_outputs or recorder.has_effects():
        module = _graph_module(request, recorder, emitter.graph_outputs)
        inputs = [*recorder.size_inputs, *recorder.inputs]
        examples = [
            *(entry.value for entry in recorder.size_inputs),
            *(_given(recorder, entry) for entry in recorder.inputs),
        ]
        compiled = _compile_beneath(request, module, examples, recorder)
        graph_inputs = [_loaded(emitter, entry) for entry in inputs]
    again = None
    if recorder.watched or fine:
        again = _again(request, emitter, fine)
    graph = module, compiled, graph_inputs
    return _captured(request, session, emitter, state, returned, graph, again, stop, message)


def _captured(
    request: Request,
    session: Session,
    emitter: Emitter,
    state: GlobalState,
    returned: str,
    graph: tuple[Any, Callable[..., Any] | None, list[str]] = (None, None, []),
    again: Again | None = None,
    stop: GraphBreak | None = None,
    message: str = "",
) -> Captured:
    """The entry of what was emitted; `graph` as a module, compiled, and the names of its inputs."""
    recorder = session.recorder
    module, compiled, graph_inputs = graph
    guards: list[Guard] = [Guard(None, GuardKind.GLOBAL_STATE, state), *session.guards.values()]
    guards.extend(_aliasing(recorder))
    guards.extend(_arrays_apart(recorder))
    guards.extend(changed_apart(session))
    places = None
    if recorder.sizes is not None:
        guards.extend(recorder.sizes.frozen_guards())
        places = recorder.sizes.symbol_sources()
    loaded = [emitter.inputs[int(name[1:])] for name in order_of_inputs(emitter, graph_inputs)]
    program = compile_program(guards, places, code=request.function.__code__, inputs=loaded)
    run, text = build_entry(
        emitter,
        compiled,
        graph_inputs,
        returned,
        request.function.__qualname__,
        again,
        request.backend_name,
    )
    if request.observer is not None:
        request.observer("02_guards.py", program.text())
    material = Material(
        program,
        text,
        dict(emitter.constants),
        compiled,
        session.assumptions,
        request.function.__qualname__,
    )
    return Captured(Entry(program, graph=run), module, text, stop, message, material)


def _given(recorder: Recorder, entry: GraphInput) -> Any:
    """What the graph is given for an input: of a class with overrides the plain tensor."""
    if any(entry.value is tensor for tensor in recorder.required):
        return entry.real.detach().requires_grad_()
    return as_plain(entry.real) if id(entry.value) in recorder.kinds else entry.real


def _loaded(emitter: Emitter, entry: GraphInput) -> str:
    """The expression for `_given`."""
    loaded = emitter.source(entry.source)
    if any(entry.value is tensor for tensor in emitter.recorder.required):
        loaded = f"{loaded}.requires_grad_()"
    if id(entry.value) in emitter.recorder.kinds:
        return f"{emitter.constant(as_plain)}({loaded})"
    return loaded


def _compile_beneath(
    request: Request, module: Any, examples: list[Any], recorder: Recorder
) -> Callable[..., Any]:
    """Compile below the overrides and modes that the capture has dealt with, to be called there."""
    overrides = recorder.overrides
    if not (overrides.resolved or (overrides.met and overrides.wrappers)):
        return _compile(request, module, examples, recorder.sizes)
    recorder.machine.session.assumptions.refuse("torch-function overrides took part")  # type: ignore[union-attr]
    modes = overrides.resolved
    compiled = without_overrides(_compile, modes=modes)(request, module, examples, recorder.sizes)
    return without_overrides(compiled, modes=modes)


def _arrays_apart(recorder: Recorder) -> list[Guard]:
    """A tensor made of an array has a storage of its own: where one is written, memory must not overlap."""
    if not any(id(entry.value) in recorder.mutated for entry in recorder.inputs):
        return []
    plain = [entry for entry in recorder.inputs if type(entry.source) is not ArraySource]
    arrays = [entry for entry in recorder.inputs if type(entry.source) is ArraySource]
    if not arrays or len(recorder.inputs) < 2:
        return []
    written = any(id(entry.value) in recorder.mutated for entry in arrays)
    others = plain if written else [e for e in plain if id(e.value) in recorder.mutated]
    groups = [arrays] if written and len(arrays) > 1 else []
    groups += [[*arrays, entry] for entry in others if not entry.node.meta["input"]["static"]]
    for group in groups:
        if not memory_apart([entry.real for entry in group]):
            raise SkipFrame("arrays that share memory are written to")
    return [Guard(None, GuardKind.APART, tuple(e.source for e in group)) for group in groups]


def _aliasing(recorder: Recorder) -> list[Guard]:
    """Which inputs share memory: of those that are no parameters, and of all that are written.

    Writing to a view (`p.data`, `p[0]`) writes to the parameter.
    """
    changed = recorder.mutated
    memory = {
        id(node.meta["val"].storage)
        for node in (recorder.graph.nodes if changed else ())
        if id(node.meta.get("val")) in changed
    }
    entries = [
        entry
        for entry in recorder.inputs
        if not entry.node.meta["input"]["static"] or id(entry.value.storage) in memory
    ]
    pairs = [pair for entry in entries for pair in plain_parts(entry.source, entry.real)]
    if len(pairs) < 2:
        return []
    pattern = storage_pattern([tensor for _, tensor in pairs])
    with torch._C.DisableTorchFunction():  # the tensors' classes must not see that they are asked
        written = {
            tensor.untyped_storage()._cdata
            for entry in entries
            if id(entry.value) in changed or id(entry.value.storage) in memory
            for _, tensor in plain_parts(entry.source, entry.real)
        }
        places = _places_in_memory(pairs, pattern, written)
    return [
        Guard(None, GuardKind.STORAGES, (tuple(source for source, _ in pairs), tuple(pattern))),
        *places,
    ]


def _places_in_memory(
    pairs: Sequence[tuple[Source, torch.Tensor]], pattern: Sequence[int], written: set[int]
) -> list[Guard]:
    """Where in a storage that is written its tensors lie: that says which elements they share."""
    guards: list[Guard] = []
    for (source, tensor), first in zip(pairs, pattern, strict=True):
        storage = tensor.untyped_storage()
        if storage._cdata not in written or pattern.count(first) == 1:
            continue
        length = storage.nbytes()
        guards += [
            Guard(StorageOffsetSource(source), GuardKind.EQUAL, tensor.storage_offset()),
            Guard(source, GuardKind.PREDICATE, (partial(has_bytes, length), f"has {length} bytes")),
        ]
    return guards


def _graph_module(request: Request, recorder: Recorder, outputs: list[Any]) -> Any:
    graph = recorder.graph
    nodes = tuple(recorder.node_of(value) for value in outputs)
    output = graph.output(nodes)
    output.meta["val"] = tuple(outputs)
    restore_placeholders(recorder)
    if recorder.sizes is not None:
        recorder.sizes.require_placeholders(recorder)
    module = torch.fx.GraphModule(recorder.root, graph)
    module.meta["wire"] = 1
    if request.observer is not None:
        request.observer("01_graph.py", module.code)
    return module


def _compile(
    request: Request, module: Any, example_inputs: Sequence[Any], sizes: Sizes | None
) -> Callable[..., Any]:
    backend = request.backend
    name = request.backend_name
    if not getattr(backend, "symbolic", False):
        for node, real in zip(
            (n for n in module.graph.nodes if n.op == "placeholder"), example_inputs, strict=True
        ):
            node.meta["example_value"] = real
    if sizes is not None and request.symbolic and (sizes.run_time or has_boundaries(module.graph)):
        return staged(module, sizes, backend)
    try:
        compiled = backend(module, list(example_inputs))
    except Exception as error:
        raise BackendError(
            f"the backend {name} raised {type(error).__name__} while compiling "
            f"{request.function.__qualname__}: {error}"
        ) from error
    if not callable(compiled):
        raise BackendError(
            f"the backend {name} returned {type(compiled).__name__} for "
            f"{request.function.__qualname__}, not a callable"
        )
    return compiled
