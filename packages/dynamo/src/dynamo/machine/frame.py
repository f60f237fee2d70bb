"""The state of one interpreted call.

Values on the stack and in the slots are the program's own Python objects; tensors are fake, containers that
existed before the call are copies (`dynamo.values.shadows`). `NULL` stands for an unbound slot and for
CPython's NULL on the stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.machine.program import program_of
from dynamo.versions import NULL

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from dynamo.machine.program import Op

__all__ = ["Frame", "bind"]


class Frame:
    """One activation of a code object."""

    __slots__ = (
        "before",
        "breaks_raise",
        "builtins",
        "called_with",
        "closure",
        "code",
        "exceptions",
        "function",
        "generator",
        "globals",
        "keywords",
        "last_raise",
        "module_path",
        "names",
        "ops",
        "pc",
        "program",
        "raised_at",
        "result",
        "resumable",
        "slots",
        "stack",
        "tick",
    )

    def __init__(self, function: types.FunctionType, *, resumable: bool) -> None:
        code = function.__code__
        self.program = program_of(code)
        self.code = code
        self.ops: tuple[Op, ...] = self.program.ops
        self.function = function
        self.globals: dict[str, Any] = function.__globals__
        self.builtins: Any = None
        self.slots: list[Any] = [NULL] * len(self.program.slots)
        self.stack: list[Any] = []
        self.before: list[Any] = []
        self.pc = 0
        self.result: Any = None
        self.keywords: tuple[str, ...] = ()
        self.called_with: tuple[str, ...] = ()
        self.raised_at: list[int] = []
        self.last_raise = 0
        self.closure: tuple[Any, ...] = ()
        self.resumable = resumable
        self.exceptions: list[BaseException | None] = []
        self.generator: Any = None
        self.names: dict[str, Any] | None = None
        self.tick = 0
        self.module_path: str | None = None
        self.breaks_raise: bool | None = None  # what the machine said when the frame was entered

    def drop_variables(self) -> None:
        """What a frame that returned does: a generator that only it held is closed now."""
        self.before.clear()
        self.stack.clear()
        for i in range(len(self.slots)):
            self.slots[i] = NULL

    @property
    def op(self) -> Op:
        """The instruction that is being executed."""
        return self.ops[max(self.pc - 1, 0)] if self.pc <= len(self.ops) else self.ops[-1]

    @property
    def line(self) -> int:
        """The user's line."""
        return self.op.line


def bind(
    function: types.FunctionType,
    defaults: Callable[[], tuple[Any, ...]],
    keyword_defaults: Callable[[], dict[str, Any]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    slots: list[Any],
) -> None:
    """Put the arguments of a call into the first slots, with CPython's rules and error types."""
    code = function.__code__
    positional = code.co_argcount
    given = len(args)
    flags = code.co_flags
    names = code.co_varnames
    total = positional + code.co_kwonlyargcount
    if given > positional:
        slots[:positional] = args[:positional]
        if not flags & 4:
            raise TypeError(
                f"{function.__qualname__}() takes {positional} positional argument"
                f"{'' if positional == 1 else 's'} but {given} "
                f"{'was' if given == 1 else 'were'} given"
            )
        slots[total] = args[positional:]
    else:
        slots[:given] = args
        if flags & 4:
            slots[total] = ()
    extra: dict[str, Any] = {}
    if kwargs:
        first = code.co_posonlyargcount
        for name, value in kwargs.items():
            for i in range(first, total):
                if names[i] == name:
                    if slots[i] is not NULL:
                        raise TypeError(
                            f"{function.__qualname__}() got multiple values for argument '{name}'"
                        )
                    slots[i] = value
                    break
            else:
                if not flags & 8:
                    raise TypeError(
                        f"{function.__qualname__}() got an unexpected keyword argument '{name}'"
                    )
                extra[name] = value
    if flags & 8:
        slots[total + (1 if flags & 4 else 0)] = extra
    _fill_defaults(function, defaults, keyword_defaults, slots)


def _fill_defaults(
    function: types.FunctionType,
    defaults: Callable[[], tuple[Any, ...]],
    keyword_defaults: Callable[[], dict[str, Any]],
    slots: list[Any],
) -> None:
    code = function.__code__
    positional, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    missing: list[str] = []
    if any(value is NULL for value in slots[:positional]):
        values = defaults()
        first = positional - len(values)
        for i in range(positional):
            if slots[i] is NULL:
                if i >= first:
                    slots[i] = values[i - first]
                else:
                    missing.append(code.co_varnames[i])
    if missing:
        raise TypeError(
            f"{function.__qualname__}() missing {len(missing)} required positional argument"
            f"{'' if len(missing) == 1 else 's'}: {_listing(missing)}"
        )
    for i in range(positional, total):
        if slots[i] is NULL:
            name = code.co_varnames[i]
            values_by_name = keyword_defaults()
            if name in values_by_name:
                slots[i] = values_by_name[name]
            else:
                missing.append(name)
    if missing:
        raise TypeError(
            f"{function.__qualname__}() missing {len(missing)} required keyword-only argument"
            f"{'' if len(missing) == 1 else 's'}: {_listing(missing)}"
        )


def _listing(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    if len(quoted) == 1:
        return quoted[0]
    if len(quoted) == 2:
        return f"{quoted[0]} and {quoted[1]}"
    return ", ".join(quoted[:-1]) + f", and {quoted[-1]}"
