"""From a call of the user's function to the compiled entry that serves it: the Python form.

Comes in: a call. It is bound to the function's argument slots exactly as Python binds it, the
entries of the code object are tried, the one that matches runs; if none does, the cache's `miss`
decides. The C extension has the same classes and is used where it was built; this module is what it
must agree with. Invariant: a call that Python would refuse is handed to the original function, so
that the user sees Python's own error.
"""

from __future__ import annotations

import functools
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from dynamo.guards.binding import bind, run_original
from dynamo.guards.program import GuardProgram, argument_names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

__all__ = ["CodeCache", "CompiledFunction", "Entry"]


class Entry:
    """One compiled version: its guards, and what runs when they hold.

    With `graph` the whole frame is one boxed callable: it gets the list of the program's inputs and
    gives a tuple; the result is that tuple, or its item `pick`. With `code` it is a code object
    with the frame's argument slots as plain positional arguments and one more, the list of inputs.
    """

    __slots__ = ("_function", "code", "graph", "hits", "pick", "program")

    def __init__(
        self,
        program: GuardProgram,
        *,
        graph: Callable[[list[Any]], tuple[Any, ...]] | None = None,
        pick: int | None = None,
        code: CodeType | None = None,
    ) -> None:
        if (graph is None) is (code is None):
            raise TypeError("an entry has either a graph or a code object")
        if code is not None and code.co_argcount != len(argument_names(program.code)) + 1:
            raise TypeError("the code object of an entry takes the argument slots and the inputs")
        self.program = program
        self.graph = graph
        self.pick = pick
        self.code = code
        self.hits = 0
        self._function: FunctionType | None = None

    def run(self, function: FunctionType, slots: Sequence[Any], inputs: list[Any]) -> Any:
        """The result of the call; `inputs` is emptied by the graph."""
        if self.graph is not None:
            result = self.graph(inputs)
            return result if self.pick is None else result[self.pick]
        return self.function_for(function)(*slots, inputs)

    def function_for(self, function: FunctionType) -> FunctionType:
        """The code object with `function`'s globals and closure."""
        assert self.code is not None
        made = self._function
        closure = function.__closure__ if self.code.co_freevars else None
        if (
            made is None
            or made.__globals__ is not function.__globals__
            or made.__closure__ is not closure
        ):
            made = FunctionType(self.code, function.__globals__, function.__name__, None, closure)
            self._function = made
        return made


class CodeCache:
    """The entries of one code object, the one that matched last first."""

    __slots__ = ("__weakref__", "code", "entries", "miss")

    def __init__(
        self,
        code: CodeType,
        miss: Callable[[CodeCache, FunctionType, tuple[Any, ...]], Any] | None = None,
    ) -> None:
        self.code = code
        self.miss = miss
        self.entries: tuple[Entry, ...] = ()

    def add(self, entry: Entry) -> None:
        """Try `entry` from now on, before all others."""
        self.entries = (entry, *self.entries)

    def remove(self, entry: Entry) -> None:
        """Forget `entry`; nothing happens if it is not there."""
        self.entries = tuple(kept for kept in self.entries if kept is not entry)

    def clear(self) -> None:
        """Forget all entries."""
        self.entries = ()

    def lookup(
        self, function: FunctionType, slots: tuple[Any, ...]
    ) -> tuple[Entry, list[Any]] | None:
        """The first entry whose guards hold, with its inputs loaded; None if there is none."""
        entries = self.entries
        for index, entry in enumerate(entries):
            inputs = entry.program.match(slots, function)
            if inputs is not None:
                entry.hits += 1
                if index:  # another thread may have changed the entries meanwhile: then leave them
                    moved = (entry, *entries[:index], *entries[index + 1 :])
                    if self.entries is entries:
                        self.entries = moved
                return entry, inputs
        return None

    def call(self, function: FunctionType, slots: tuple[Any, ...]) -> Any:
        """Run the entry that matches, or `miss`, or, without one, the function itself."""
        found = self.lookup(function, slots)
        if found is not None:
            entry, inputs = found
            del found
            return entry.run(function, slots, inputs)
        if self.miss is None:
            return run_original(function, slots)
        return self.miss(self, function, slots)


class CompiledFunction:
    """What the user calls in place of `function`; a method when found on a class."""

    def __init__(self, function: FunctionType, cache: CodeCache) -> None:
        if function.__code__ is not cache.code:
            raise TypeError("the cache belongs to another code object")
        functools.update_wrapper(self, function)
        self.__wrapped__: FunctionType = function
        self.cache = cache

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of `function` for these arguments."""
        function = self.__wrapped__
        if function.__code__ is not self.cache.code:  # the user replaced it
            return function(*args, **kwargs)
        slots = bind(function, args, kwargs)
        if slots is None:
            return function(*args, **kwargs)
        return self.cache.call(function, slots)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an instance as a function does."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<compiled {self.__wrapped__!r}>"

    def __copy__(self) -> CompiledFunction:
        """Itself, as of a function."""
        return self

    def __deepcopy__(self, memo: object) -> CompiledFunction:
        """Itself, as of a function."""
        return self

    def __reduce__(self) -> str:
        """By name, as a function: what is found under the name when it is loaded."""
        return self.__wrapped__.__qualname__
