"""What a capture relied on without a guard.

Within a process torch, Python's library and builtins don't change, so nothing guards them. From process to process
they may: a program can replace a function of torch before it compiles. So each unguarded look-up is noted here, and
verified when an entry is restored. Invariant: notes cost a dict store each and change no capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import types

    from dynamo.source import Source

__all__ = ["ABSENT", "Assumptions"]


class _Absent:
    __slots__ = ()

    def __repr__(self) -> str:
        return "<absent>"


ABSENT: Any = _Absent()
"""What is noted for a name that a namespace lacks."""


class Assumptions:
    """The notes of one capture."""

    __slots__ = ("answers", "class_attributes", "functions", "names", "refusal")

    def __init__(self) -> None:
        self.names: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self.class_attributes: dict[tuple[type, str], Any] = {}
        self.functions: dict[types.CodeType, types.FunctionType] = {}
        self.answers: list[tuple[Any, Any, Any, Any]] = []
        self.refusal = ""

    def name(self, namespace: dict[str, Any], name: str, value: Any) -> None:
        """A module's namespace has this value under a name, or `ABSENT`."""
        self.names[(id(namespace), name)] = (namespace, name, value)

    def class_attribute(self, cls: type, name: str, value: Any) -> None:
        """A class finds this value under a name along its bases."""
        self.class_attributes[(cls, name)] = value

    def inlined(self, function: types.FunctionType) -> None:
        """The code of this function is part of the entry."""
        self.functions.setdefault(function.__code__, function)

    def answer(
        self,
        function: Any,
        args: list[tuple[Any, Source | None]],
        kwargs: dict[str, tuple[Any, Source | None]],
        result: Any,
    ) -> None:
        """A function was really called with these values from these sources, and gave this."""
        self.answers.append((function, args, kwargs, result))

    def refuse(self, why: str) -> None:
        """The entry depends on something that cannot be verified in another process."""
        self.refusal = self.refusal or why
