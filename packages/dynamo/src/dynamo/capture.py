"""One capture: a call of a function in, an entry (guards and code) out.

Interprets the function on its actual arguments, hands the graph to the backend, and emits the code that takes
the call's place. A graph break ends the first graph; what follows runs through resume functions that are
captured in their turn. Invariant: nothing outside is changed by a capture, whatever its outcome.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

import dynamo.machine.opcodes  # noqa: F401 - registers the opcodes
from dynamo.emit.effects import emit_effects
from dynamo.emit.entry import build_entry
from dynamo.emit.reconstruct import CannotReconstruct, Emitter
from dynamo.errors import (
    BackendError,
    BreakReason,
    CaptureError,
    GraphBreak,
    SkipFrame,
)
from dynamo.graph.recorder import Recorder
from dynamo.guards import GlobalState, Guard, GuardKind, GuardProgram, compile_program
from dynamo.machine.frame import Frame
from dynamo.machine.interpreter import Machine
from dynamo.source import FunctionSource, LocalSource
from dynamo.values.session import Session

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Sequence

    from dynamo.options import DynamoOptions

__all__ = ["Entry", "Request", "capture"]

_RECURSION = 20000


@dataclass(frozen=True, slots=True)
class Entry:
    """One compiled version of a function: when it may run, and what runs."""

    program: GuardProgram
    run: Callable[[list[Any]], Any]
    graph: Any
    source: str


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be captured and how."""

    function: types.FunctionType
    arguments: tuple[Any, ...]
    backend: Callable[..., Any]
    options: DynamoOptions
    fullgraph: bool = False
    dynamic: bool | None = None
    observer: Callable[[str, str], None] | None = None


def capture(request: Request) -> Entry:
    """Capture one call.

    Raises:
        SkipFrame: the function must run eagerly.
        CaptureError: `fullgraph` and a graph break.
        BackendError: the backend failed.
    """
    function = request.function
    recorder = Recorder()
    session = Session(function, recorder)
    machine = Machine(session, {})
    recorder.machine = machine
    state = GlobalState.now()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION))
    grad = torch.is_grad_enabled()
    try:
        with recorder.mode:
            frame = _root_frame(session, request)
            try:
                result = machine.run(frame)
            except GraphBreak as stop:
                return _broken(request, machine, stop)
            grad_after = torch.is_grad_enabled()
    finally:
        torch._C._set_grad_enabled(grad)
        sys.setrecursionlimit(limit)
    emitter = Emitter(session)
    try:
        returned = emitter.value(result)
        emit_effects(emitter)
    except CannotReconstruct as error:
        code = function.__code__
        if request.fullgraph:
            raise CaptureError(
                BreakReason.UNSUPPORTED_VALUE,
                f"the function leaves {error} behind",
                code.co_qualname,
                code.co_filename,
                code.co_firstlineno,
            ) from error
        raise SkipFrame(str(error)) from error
    if grad_after is not grad:
        emitter.line(f"{emitter.constant(torch._C._set_grad_enabled)}({grad_after})")
    return _finish(request, session, emitter, returned, state)


def _root_frame(session: Session, request: Request) -> Frame:
    function = request.function
    session.remember(function, FunctionSource())
    frame = Frame(function, resumable=True)
    names = function.__code__.co_varnames
    cells = set(function.__code__.co_cellvars)
    for i, value in enumerate(request.arguments):
        frame.slots[i] = session.wrap(value, LocalSource(names[i], names[i] in cells))
    frame.closure = session.closure_of(function)
    return frame


def _broken(request: Request, machine: Machine, stop: GraphBreak) -> Entry:
    frame = machine.frames[-1]
    code = frame.code
    if request.fullgraph:
        raise CaptureError(
            stop.reason, stop.why, code.co_qualname, code.co_filename, frame.line
        ) from stop.__cause__
    raise SkipFrame(f"{stop.reason.title}: {stop.why} ({code.co_filename}:{frame.line})")


def _finish(
    request: Request,
    session: Session,
    emitter: Emitter,
    returned: str,
    state: GlobalState,
) -> Entry:
    recorder = session.recorder
    compiled: Callable[..., Any] | None = None
    module: Any = None
    graph_inputs: list[str] = []
    if emitter.graph_outputs or recorder.has_effects():
        module = _graph_module(request, recorder, emitter.graph_outputs)
        compiled = _compile(request, module, [entry.real for entry in recorder.inputs])
        graph_inputs = [emitter.source(entry.source) for entry in recorder.inputs]
    guards: list[Guard] = [Guard(None, GuardKind.GLOBAL_STATE, state), *session.guards.values()]
    program = compile_program(guards, None, code=request.function.__code__, inputs=emitter.inputs)
    run, text = build_entry(
        emitter, compiled, graph_inputs, returned, request.function.__qualname__
    )
    if request.observer is not None:
        request.observer("02_guards.py", program.text())
    return Entry(program, run, module, text)


def _graph_module(request: Request, recorder: Recorder, outputs: list[Any]) -> Any:
    graph = recorder.graph
    nodes = tuple(recorder.node_of(value) for value in outputs)
    output = graph.output(nodes)
    output.meta["val"] = tuple(outputs)
    module = torch.fx.GraphModule(recorder.root, graph)
    module.meta["wire"] = 1
    if request.observer is not None:
        request.observer("01_graph.py", module.code)
    return module


def _compile(request: Request, module: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    backend = request.backend
    name = getattr(backend, "__name__", type(backend).__name__)
    if not getattr(backend, "symbolic", False):
        for node, real in zip(
            (n for n in module.graph.nodes if n.op == "placeholder"), example_inputs, strict=True
        ):
            node.meta["example_value"] = real
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
