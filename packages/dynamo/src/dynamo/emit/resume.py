"""Code that goes on after a graph break.

For each frame that was being interpreted a *step* function is made: the frame's own code, entered at the
instruction that could not be captured, with its stack, locals and cells as arguments. It executes that one
instruction for real, inside the same exception handlers, and then calls a *resume* function: the same code
again, entered at the next instruction, which is captured in its turn. For an outer frame the instruction is the
call that was inlined, made now on the inner frame's step. Handlers that the instruction reaches by raising run
in the step as they are. Invariant: what is pushed, bound and protected there is what CPython would have.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass, replace
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch

from dynamo.bytecode import (
    Header,
    Instruction,
    assemble,
    build,
    decode,
    header_of,
    live_locals,
    stack_depths,
    without_pairs,
)
from dynamo.emit.generators import PROLOGUE
from dynamo.emit.reconstruct import CannotReconstruct
from dynamo.values.generators import TracedGenerator
from dynamo.versions import NULL, NULL_FIRST, PY312

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

    from dynamo.emit.reconstruct import Emitter
    from dynamo.machine.frame import Frame

__all__ = ["Resume", "emit_step"]

_MOST_TURNS = 32  # of a loop that are calls inside one another
_OPTIMIZED = 0x3
_NESTED = 0x10


class Resume:
    """Calls a resume function: the code is fixed, the cells come with each call."""

    __slots__ = ("cache", "code", "depths", "globals", "name")

    def __init__(self, code: CodeType, names: dict[str, Any], cache: Any) -> None:
        self.code = code
        self.globals = names
        self.cache = cache
        self.name = code.co_name
        self.depths: dict[int, int] = {}  # by thread

    def __call__(self, cells: tuple[types.CellType, ...], *values: Any) -> Any:
        """Continue with the given cells, stack entries and locals.

        A loop that breaks in each turn comes here from inside itself: a turn is a call. After `_MOST_TURNS` the code
        goes on as it is, in one frame, so that a long loop never meets Python's limit of recursion.
        """
        function = types.FunctionType(self.code, self.globals, self.name, None, cells or None)
        thread = get_ident()
        depth = self.depths.get(thread, 0)
        if depth >= _MOST_TURNS:
            return function(*values)
        self.depths[thread] = depth + 1
        try:
            return self.cache.call(function, values)
        finally:
            if depth:
                self.depths[thread] = depth
            else:
                del self.depths[thread]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What of one frame its step function is given."""

    frame: Frame
    instructions: list[Instruction]
    at: Instruction
    stack: tuple[Any, ...]
    local_names: tuple[str, ...]
    cells: tuple[str, ...]
    held: frozenset[str]  # nobody reads them, but when they go their generators are closed
    receiver: str | None  # what `super()` finds as the frame's first argument

    def arguments(self, stack: Sequence[str], names: Sequence[str]) -> list[str]:
        """The parameters of a step or resume function: `super()` reads the first one."""
        if self.receiver is None:
            return [*stack, *names]
        return [self.receiver, *stack, *(name for name in names if name != self.receiver)]


def emit_step(
    emitter: Emitter,
    frame: Frame,
    inner: str | None,
    resume: Callable[[Any, CodeType, dict[str, Any]], Resume],
    hook: Callable[..., Any],
) -> str:
    """The expression of a callable that goes on with `frame`; `inner` goes on with the frame it called.

    `resume(key, code, globals)` gives the resume function for a place in the frame's code; `hook(f, *args)`
    makes a call under which the frames of Python are captured.

    Raises:
        CannotReconstruct: the place cannot be entered, or a value cannot be made.
    """
    plan = _plan(frame, outer=inner is not None)
    code = _step_code(plan, outer=inner is not None, resume=resume, hook=hook)
    known = {
        name: emitter.value(value)
        for name, value in zip(
            [f"<stack {i}>" for i in range(len(plan.stack))], plan.stack, strict=True
        )
        if value is not NULL
    }
    index = frame.program.slot_index
    if inner is not None:
        known["<inner>"] = inner
    known |= {name: emitter.value(frame.slots[index[name]]) for name in plan.local_names}
    if plan.receiver is not None and plan.receiver not in known:
        known[plan.receiver] = emitter.value(_receiver(emitter, frame))
    parameters = code.co_varnames[: code.co_argcount]
    values = [known[name] for name in parameters]
    cells = [emitter.value(frame.slots[index[name]]) for name in plan.cells]
    closure = f"({', '.join(cells)},)" if cells else "None"
    maker = emitter.constant(types.FunctionType)
    names = emitter.constant(frame.globals)
    function = f"{maker}({emitter.constant(code)}, {names}, {code.co_name!r}, None, {closure})"
    partial = emitter.constant(_partial)
    return emitter.name(f"{partial}({', '.join([function, *values])})")


_RECEIVER = "<receiver>"


def _receiver(emitter: Emitter, frame: Frame) -> Any:
    """The first argument of a frame, where it lies in a cell."""
    cell = frame.slots[frame.program.slot_index[frame.code.co_varnames[0]]]
    return emitter.session.resolve(cell.cell_contents)


def _partial(function: Any, *values: Any) -> Any:
    return lambda: function(*values)


def _plan(frame: Frame, *, outer: bool) -> _Plan:
    code = frame.code
    if code.co_flags & 0x2A0:
        raise CannotReconstruct("a generator's frame")
    if frame.exceptions:
        raise CannotReconstruct("a frame inside an exception handler")
    op = frame.op
    if not op.breaks:
        raise CannotReconstruct(f"a break at {op.name}, before which no state was kept")
    instructions = decode(code)
    at = instructions[op.index]
    stack = list(frame.before)
    if outer:
        match op.name:
            case "CALL":
                taken = op.arg + 2
            case "CALL_KW":
                taken = op.arg + 3
            case "CALL_FUNCTION_EX":
                taken = 3 + (op.arg & 1)
            case _:
                raise CannotReconstruct(f"a call made by {op.name}")
        del stack[len(stack) - taken :]
    cells = tuple(dict.fromkeys((*code.co_cellvars, *code.co_freevars)))
    index = frame.program.slot_index
    held = frozenset(
        name
        for name in code.co_varnames
        if name not in cells and _suspended(frame.slots[index[name]])
    )
    receiver = _super_receiver(code, cells)
    live = live_locals(instructions, at) | held | {receiver}
    local_names = tuple(
        name
        for name in code.co_varnames
        if name in live and name not in cells and frame.slots[index[name]] is not NULL
    )
    if receiver not in (None, _RECEIVER, *local_names):
        receiver = None  # deleted: `super()` raises
    return _Plan(frame, instructions, at, tuple(stack), local_names, cells, held, receiver)


def _super_receiver(code: CodeType, cells: tuple[str, ...]) -> str | None:
    """The parameter by which `super()` without arguments finds its receiver; None if it isn't called."""
    if "__class__" not in code.co_freevars or "super" not in code.co_names or not code.co_argcount:
        return None
    first = code.co_varnames[0]
    return _RECEIVER if first in cells else first


def _suspended(value: Any) -> bool:
    return isinstance(value, TracedGenerator) and value.started and not value.finished


def _header(plan: _Plan, name: str, arguments: Sequence[str]) -> Header:
    code = plan.frame.code
    others = tuple(n for n in code.co_varnames if n not in arguments and n not in plan.cells)
    return replace(
        header_of(code),
        name=name,
        qualified_name=name,
        argument_count=len(arguments),
        positional_only_count=0,
        keyword_only_count=0,
        flags=_OPTIMIZED | (_NESTED if plan.cells else 0),
        local_names=(*arguments, *others),
        cell_names=(),
        free_names=plan.cells,
    )


def _stack_names(nulls: Sequence[bool]) -> list[str]:
    return [f"<stack {i}>" for i, null in enumerate(nulls) if not null]


def _push(nulls: Sequence[bool], end: int | None = None) -> list[Instruction]:
    return [
        build.push_null() if null else build.load_fast(f"<stack {i}>")
        for i, null in enumerate(nulls[:end])
    ]


def _hooked_from(plan: _Plan) -> int | None:
    """Where on the stack a call begins whose frames are worth capturing; None for other instructions."""
    op = plan.frame.op
    match plan.at.opname:
        case "CALL":
            base = len(plan.stack) - op.arg - 2
        case "CALL_KW":
            base = len(plan.stack) - op.arg - 3
        case "CALL_FUNCTION_EX":
            base = len(plan.stack) - 3 - (op.arg & 1)
            spread = plan.stack[base + 2]
            if type(spread) not in (tuple, list):
                return None
        case _:
            return None
    called = next(value for value in plan.stack[base:] if value is not NULL)
    return base if _runs_python(called) else None


def _runs_python(called: Any) -> bool:
    """Whether a call enters the program's Python code, and may have it captured."""
    if isinstance(called, types.MethodType):
        called = called.__func__
    if isinstance(called, types.FunctionType):
        marks = called.__dict__
        return not (marks.get("_dynamo_disable_recursive") or marks.get("_torchdynamo_disable"))
    return isinstance(called, torch.nn.Module | functools.partial)


def _push_hooked(
    plan: _Plan, nulls: Sequence[bool], base: int, hook: Callable[..., Any]
) -> list[Instruction]:
    """[stack up to base] -> [.., result]: the call, with the hook in front of what is called."""
    at, frame = plan.at, plan.frame
    loads = [build.load_fast(f"<stack {i}>") for i in range(base, len(nulls)) if not nulls[i]]
    start = build.begin_call([build.load_const(hook)])
    match at.opname:
        case "CALL":
            return [*start, *loads, *build.end_call(len(loads), frame.called_with)]
        case "CALL_KW":
            kind = at.copy()
            kind.arg = kind.argval = len(loads) - 1
            return [*start, *loads, kind]
        case _:
            function, spread, *named = loads
            joined = [function, build.build_list(1), spread, build.list_extend(1)]
            return [*start, *joined, *named, build.end_call_spread(keywords=bool(named))[0]]


def _step_code(
    plan: _Plan,
    *,
    outer: bool,
    resume: Callable[[Any, CodeType, dict[str, Any]], Resume],
    hook: Callable[..., Any],
) -> CodeType:
    nulls = [value is NULL for value in plan.stack]
    frame, at = plan.frame, plan.at
    done, nulls_after = _instruction(plan, nulls, outer=outer)
    base = None if outer else _hooked_from(plan)
    entry = [*build.prologue((), plan.cells), *_push(nulls, base)]
    if base is not None:
        done = [*_push_hooked(plan, nulls, base, hook)]
    for instruction in done:
        instruction.handler = at.handler
        instruction.positions = at.positions
    depths = stack_depths(plan.instructions)
    position = plan.instructions.index(at)
    tails: list[Instruction] = []
    jump = at.target is not None and not outer
    following = plan.instructions[position + 1] if position + 1 < len(plan.instructions) else None
    if following is None or following not in depths:
        raise CannotReconstruct("a statement that nothing follows")
    tails += _tail(plan, following, nulls_after[: depths[following]], resume)
    if jump:
        target = at.target
        assert target is not None
        other = _tail(plan, target, nulls_after[: depths[target]], resume)
        done[-1].target = other[0]
        # What goes back to the head of a loop goes on to the code that resumes there.
        done[-1].opname = done[-1].opname.replace("JUMP_BACKWARD", "JUMP_FORWARD")
        tails += other
    rest = [i for i in plan.instructions if i.opname not in PROLOGUE] if at.handler else []
    stack = [*_stack_names(nulls), *(["<inner>"] if outer else [])]
    arguments = plan.arguments(stack, plan.local_names)
    header = _header(plan, f"<step of {frame.code.co_name} at {frame.line}>", arguments)
    return assemble(without_pairs([*entry, *done, *tails, *rest]), header)


def _instruction(
    plan: _Plan, nulls: list[bool], *, outer: bool
) -> tuple[list[Instruction], list[bool]]:
    """The instruction to execute for real, and which stack entries are NULL after it."""
    frame, at = plan.frame, plan.at
    op = frame.op
    unknown = [False] * 8
    if outer:
        called = [*build.begin_call([build.load_fast("<inner>")]), *build.end_call(0)]
        return called, [*nulls, *unknown]
    match at.opname:
        case "CALL":
            base = len(nulls) - op.arg - 2
            return build.end_call(op.arg, frame.called_with), [*nulls[:base], *unknown]
        case "CALL_KW" | "CALL_FUNCTION_EX":
            base = len(nulls) - (op.arg + 3 if at.opname == "CALL_KW" else 3 + (op.arg & 1))
            return [at.copy()], [*nulls[:base], *unknown]
        case "LOAD_METHOD":
            return _method_form(build.load_attr(op.value), nulls[:-1])
        case "LOAD_ATTR" if PY312 and op.arg & 1:
            return _method_form(build.load_attr(op.value), nulls[:-1])
        case "LOAD_GLOBAL" if op.arg & 1:
            return _method_form(build.load_global(op.value), nulls)
        case "LOAD_SUPER_ATTR" | "SEND" | "FOR_ITER" | "BEFORE_WITH" if PY312:
            raise CannotReconstruct(f"a break at {at.opname}")
        case _:
            return [at.copy()], [*nulls, *unknown]


def _method_form(load: Instruction, below: list[bool]) -> tuple[list[Instruction], list[bool]]:
    after = [load, build.push_null()]
    if NULL_FIRST:
        return [*after, build.swap(2)], [*below, True, False]
    return after, [*below, False, True]


def _tail(
    plan: _Plan,
    target: Instruction,
    nulls: list[bool],
    resume: Callable[[Any, CodeType, dict[str, Any]], Resume],
) -> list[Instruction]:
    """[stack of the frame] -> the result of the resume function that starts at `target`."""
    frame = plan.frame
    # NULL can be stored (the slot becomes unbound) but not popped.
    stored = [
        build.store_fast("<null>" if nulls[i] else f"<stack {i}>")
        for i in range(len(nulls) - 1, -1, -1)
    ]
    live = live_locals(plan.instructions, target) | plan.held | {plan.receiver}
    names = [name for name in plan.local_names if name in live]
    arguments = plan.arguments(_stack_names(nulls), names)
    index = plan.instructions.index(target)
    key = (id(frame.code), index, tuple(arguments))
    code = _resume_code(plan, target, nulls, arguments)
    going_on = resume(key, code, frame.globals)
    call = build.begin_call([build.load_const(going_on)])
    cells = [build.load_closure(name) for name in plan.cells]
    tail = [
        *stored,
        *call,
        *cells,
        build.build_tuple(len(cells)),
        *(build.load_fast(name) for name in arguments),
        *build.end_call(len(arguments) + 1),
        build.return_value(),
    ]
    for instruction in tail:
        instruction.positions = plan.at.positions
    return tail


def _resume_code(
    plan: _Plan, target: Instruction, nulls: list[bool], arguments: list[str]
) -> CodeType:
    frame = plan.frame
    instructions = decode(frame.code)
    start = instructions[plan.instructions.index(target)]
    entry = [*build.prologue((), plan.cells), *_push(nulls), build.jump_forward(start)]
    for instruction in entry:
        instruction.positions = plan.at.positions
    whole = [*entry, *(i for i in instructions if i.opname not in PROLOGUE)]
    # Without what nothing reaches a place has the same code from wherever it is resumed: turns of a loop are one.
    reached = stack_depths(whole)
    name = frame.code.co_name
    if not name.startswith("<resume"):
        name = f"<resume {name}>"
    kept = [instruction for instruction in whole if instruction in reached]
    return assemble(without_pairs(kept), _header(plan, name, arguments))
