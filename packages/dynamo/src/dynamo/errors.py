"""What can go wrong while a function is captured, as one tree.

    DynamoError
    |-- CaptureError            fullgraph=True met something that needs a graph break
    |-- BackendError            the backend raised, or returned what it must not (also BackendCompilerFailed)
    |-- InternalError           a fault of this package; outside strict mode the call runs eagerly
    |-- RecompileRefused        a call that no entry serves, under the stance "fail_on_recompile"
    `-- UsageError              a wrong argument of the public face (also ValueError)

`GraphBreak`, `Restart` and `OwnFault` steer the interpreter and never leave it: they derive from `BaseException`
so that no handler of the captured program can see them. Each message says what was captured, the user's file and
line, why, and what to do.
"""

from __future__ import annotations

import enum
import linecache

__all__ = [
    "BackendCompilerFailed",
    "BackendError",
    "BreakReason",
    "CaptureError",
    "DynamoError",
    "GraphBreak",
    "InternalError",
    "OwnFault",
    "RecompileRefused",
    "Restart",
    "RunsAsItIs",
    "UsageError",
    "describe_break",
]


class DynamoError(Exception):
    """Root of the errors of this package."""


class BreakReason(enum.Enum):
    """Why capture stopped at a statement; the value is (name for people, remedy)."""

    DATA_DEPENDENT_BRANCH = (
        "data-dependent-branch",
        "use torch.where(cond, a, b), or move the branch out of the compiled function",
    )
    DATA_DEPENDENT_VALUE = (
        "data-dependent-value",
        "keep the value a tensor, or compute it outside the compiled function",
    )
    DATA_DEPENDENT_SHAPE = (
        "data-dependent-shape",
        "use a masked or fixed-size formulation, or compute it outside the compiled function",
    )
    OUTSIDE_EFFECT = (
        "outside-effect",
        "move printing, files and other effects out of the compiled function",
    )
    UNSUPPORTED_CALL = (
        "unsupported-call",
        "call it outside the compiled function, or mark it with dynamo.disable or allow_in_graph",
    )
    UNSUPPORTED_OPERATION = (
        "unsupported-operation",
        "write the expression with supported types, or move it out of the compiled function",
    )
    UNSUPPORTED_OPCODE = ("unsupported-opcode", "move the statement out of the compiled function")
    UNSUPPORTED_VALUE = (
        "unsupported-value",
        "pass a tensor, a number, a container or a plain object instead",
    )
    UNSUPPORTED_MUTATION = (
        "unsupported-mutation",
        "make the change outside the compiled function",
    )
    OPERATOR_FAILED = (
        "operator-failed",
        "check the operator's arguments; the statement runs eagerly to show the error",
    )
    MAY_RAISE_IN_TRY = (
        "may-raise-inside-try",
        "move the operator out of the try block",
    )
    DISABLED = ("disabled", "remove dynamo.disable from the function, or don't call it here")
    REQUESTED = ("requested", "remove the call of dynamo.graph_break()")
    RECURSION = ("recursion", "rewrite the recursion as a loop")

    @property
    def title(self) -> str:
        """The name that messages use."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What the user can do."""
        return self.value[1]


class GraphBreak(BaseException):
    """Capture cannot go on at this instruction; `why` is one clause for people."""

    def __init__(self, reason: BreakReason, why: str) -> None:
        super().__init__(reason, why)
        self.reason = reason
        self.why = why


class RunsAsItIs(BaseException):
    """This call runs eagerly, and what it leaves behind is captured by the next one; `why` is one clause for people."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Restart(BaseException):
    """Capture begins again; what was learnt is in the capture's log."""


class SkipFrame(BaseException):
    """Nothing of this function can be captured: it runs as it is.

    After a `recursion` the frames that it calls aren't hooked either: that would lower the user's limit.
    """

    def __init__(self, why: str, *, recursion: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.recursion = recursion


class OwnFault(BaseException):
    """A fault of this package met while a program was interpreted: no handler of the program may see it."""

    def __init__(self, error: BaseException, place: str) -> None:
        super().__init__(error, place)
        self.error = error
        self.place = place


class CaptureError(DynamoError):
    """`fullgraph=True` and the function needs a graph break.

    Carries `reason`, `why`, and the user's `filename` and `line`.
    """

    def __init__(
        self, reason: BreakReason, why: str, function: str, filename: str, line: int
    ) -> None:
        super().__init__(describe_break(reason, why, function, filename, line))
        self.reason = reason
        self.why = why
        self.filename = filename
        self.line = line


class BackendError(DynamoError):
    """The backend raised or broke the wire; the cause is chained."""


BackendCompilerFailed = BackendError


class InternalError(DynamoError):
    """A fault of this package, with the instruction at which it happened."""


class RecompileRefused(DynamoError, RuntimeError):
    """Under the stance "fail_on_recompile" a call came that no entry serves."""


class UsageError(DynamoError, ValueError):
    """A wrong argument of the public face."""


def describe_break(reason: BreakReason, why: str, function: str, filename: str, line: int) -> str:
    """The message of a graph break: what, where, why, what to do."""
    text = linecache.getline(filename, line).strip()
    return (
        f"graph break [{reason.title}] while capturing {function}\n"
        f"  {filename}:{line}: {text}\n"
        f"  why: {why}\n"
        f"  try: {reason.remedy}"
    )
