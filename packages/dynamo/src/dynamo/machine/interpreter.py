"""The loop that executes a frame, exceptions included, and the inlining of calls.

A `Machine` belongs to one capture. `run(frame)` executes until RETURN or YIELD and gives the value; a Python
exception that the frame does not handle propagates as itself, `GraphBreak` leaves the frames standing so that
the capture can read them. Invariant: `machine.frames` is the chain of interpreted calls, outermost first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.faults import require_programs
from dynamo.machine.branches import compared_with, is_read_by_jump
from dynamo.machine.frame import Frame, bind
from dynamo.values import attributes, calls
from dynamo.values.generators import TracedGenerator
from primtorch.errors import DataDependentError

if TYPE_CHECKING:
    import types

    from dynamo.emit.drawn import Drawing
    from dynamo.machine.program import Op
    from dynamo.values.session import Session

__all__ = ["Machine"]

_GENERATOR = 0x20
_COROUTINE = 0x80 | 0x200
_DEEPEST = 400


class Machine:
    """Interprets frames for one capture."""

    __slots__ = (
        "break_ticks",
        "breaks_raise",
        "drawing",
        "failed_finally",
        "frames",
        "interpreting",
        "late_hooks",
        "session",
        "shown",
        "ticks",
    )

    def __init__(
        self,
        session: Session,
        break_ticks: dict[int, tuple[BreakReason, str]],
        late_hooks: set[int] | None = None,
    ) -> None:
        self.late_hooks = set() if late_hooks is None else late_hooks  # 0: all of them
        self.session = session
        self.frames: list[Frame] = []
        self.ticks = 0
        self.break_ticks = break_ticks
        self.interpreting = True  # the program runs: what it drops is dropped for it, too
        self.shown: set[tuple[int, int]] = set()  # objects whose `repr` runs, with its function
        self.failed_finally: GraphBreak | None = None  # in a generator that was dropped
        self.breaks_raise: bool | None = None  # in a region of the program that says so
        self.drawing: Drawing | None = None  # where numbers may be drawn before the call

    # -- frames ------------------------------------------------------------------------------------

    def run(self, frame: Frame) -> Any:
        """Execute `frame` until it returns or yields."""
        frames = self.frames
        if len(frames) > _DEEPEST:
            raise GraphBreak(BreakReason.RECURSION, "calls are nested too deeply to inline")
        frame.breaks_raise = self.breaks_raise
        if not self.session.lazily:
            return self._run_in_rule(frame)
        frames.append(frame)
        ops = frame.ops
        break_ticks = self.break_ticks
        while True:
            try:
                while True:
                    op = ops[frame.pc]
                    frame.pc += 1
                    if op.breaks:
                        frame.before = frame.stack.copy()
                        self.ticks = frame.tick = self.ticks + 1
                        if break_ticks and frame.tick in break_ticks:
                            frame.called_with = frame.keywords
                            raise GraphBreak(*break_ticks[frame.tick])  # noqa: TRY301 - leaves the frames
                    if op.run(self, frame, op):
                        frames.pop()
                        return frame.result
            except DataDependentError as error:
                raise GraphBreak(
                    BreakReason.DATA_DEPENDENT_VALUE, "a tensor's value is needed"
                ) from error
            except Exception as error:
                require_programs(error)
                if not self._handle(frame, error):
                    del frames[frames.index(frame) :]
                    raise
            except GeneratorExit as error:
                if not self._handle(frame, error):
                    del frames[frames.index(frame) :]
                    raise

    def _run_in_rule(self, frame: Frame) -> Any:
        """The same for what a rule calls: the program may leave containers unread again."""
        self.session.lazily = True
        try:
            return self.run(frame)
        finally:
            self.session.lazily = False

    def _handle(self, frame: Frame, error: BaseException) -> bool:
        """Go to the handler that protects the current instruction, if there is one."""
        op = frame.ops[frame.pc - 1]
        if frame.exceptions and error.__context__ is None:
            current = frame.exceptions[-1]
            if current is not error:
                error.__context__ = current
        if op.handler < 0:
            return False
        frame.last_raise = frame.tick
        del frame.stack[op.depth :]
        if op.lasti:
            frame.stack.append(op.index)
        frame.stack.append(error)
        frame.pc = op.handler
        return True

    def unsupported_opcode(self, frame: Frame, op: Op) -> None:
        """An opcode that is not executed symbolically."""
        del frame
        raise GraphBreak(
            BreakReason.UNSUPPORTED_OPCODE, f"the instruction {op.name} is not captured"
        )

    # -- calls -------------------------------------------------------------------------------------

    def inline(
        self,
        function: types.FunctionType,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        resumable: bool = False,
        module_path: str | None = None,
        namespace: dict[str, Any] | None = None,
    ) -> Any:
        """Interpret a call of a Python function; generators come back suspended.

        `namespace` is where a class body keeps its names.
        """
        session = self.session
        frame = Frame(function, resumable=resumable)
        code = frame.code
        frame.names = namespace
        session.assumptions.inlined(function)
        if code.co_flags & _COROUTINE:
            raise GraphBreak(BreakReason.UNSUPPORTED_CALL, f"{code.co_qualname} is a coroutine")
        bind(
            function,
            lambda: session.defaults_of(function),
            lambda: session.keyword_defaults_of(function),
            args,
            kwargs,
            frame.slots,
        )
        frame.closure = session.closure_of(function)
        if module_path is not None:
            frame.module_path = module_path
        elif self.frames:
            frame.module_path = self.frames[-1].module_path
        if code.co_flags & _GENERATOR:
            return TracedGenerator(self, frame)
        return self.run(frame)

    def override(
        self, owner: Any, function: Any, kinds: tuple[Any, ...], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """What an object's `__torch_function__` makes of a call of torch."""
        method = attributes.load(self, owner, "__torch_function__")
        return calls.call(self, method, (function, kinds, args, dict(kwargs)), {})

    def in_try(self, *, everything: bool = False) -> bool:
        """Whether a handler of the program would catch an error of a tensor operation; any error at all?"""
        return any(
            frame.op.handler >= 0 and _catches(frame, frame.op.handler, everything=everything)
            for frame in self.frames
        )

    def is_read_by_jump(self, name: str) -> bool:
        """Whether the function `name` is being called for a jump of which one side only raises."""
        return is_read_by_jump(self.frames[-1], name)

    def compared_with(self) -> Any:
        """The constant that the result of the running call is compared with."""
        return compared_with(self.frames[-1])

    def handled(self) -> BaseException | None:
        """The exception that is being handled."""
        for frame in reversed(self.frames):
            if frame.exceptions:
                return frame.exceptions[-1]
        return None


# What tensor operations raise at run time, and the bases of those.
_RUN_TIME_ERRORS = frozenset(
    {
        "RuntimeError", "IndexError", "Exception", "BaseException", "ZeroDivisionError",
        "ArithmeticError", "LookupError", "ValueError", "LinAlgError", "_LinAlgError",
    }
)  # fmt: skip


def _catches(frame: Frame, start: int, *, everything: bool) -> bool:
    """Whether the handler at `start` is an `except` clause that names such an error, or all; or any error?"""
    ops = frame.ops
    if ops[start].name != "PUSH_EXC_INFO":
        return False
    if ops[start + 1].name == "POP_TOP":
        return True
    for op in ops[start + 1 :]:
        if op.name == "WITH_EXCEPT_START":
            return False
        if everything and op.name in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH"):
            return True
        if op.name in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_NAME") and op.value in _RUN_TIME_ERRORS:
            return any(
                later.name in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH")
                for later in ops[op.index : op.index + 12]
            )
        if op.name in ("RERAISE", "POP_EXCEPT"):
            return False
    return False


def free_and_cells(frame: Frame) -> None:
    """COPY_FREE_VARS: the closure's cells go to the last slots."""
    closure = frame.closure
    if closure:
        frame.slots[len(frame.slots) - len(closure) :] = closure


def unbound(frame: Frame, index: int) -> NameError:
    """What reading an unbound slot raises."""
    name = frame.program.slots[index]
    if name in frame.code.co_freevars:
        return NameError(
            f"cannot access free variable '{name}' where it is not associated with a value in "
            "enclosing scope"
        )
    return UnboundLocalError(
        f"cannot access local variable '{name}' where it is not associated with a value"
    )
