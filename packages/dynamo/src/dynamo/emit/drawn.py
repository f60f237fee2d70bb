"""Numbers that a call draws from a generator of the program, drawn before the rest of the call runs.

Where capture meets such a draw, the call up to it is read again: the entry draws, and calls a *second* function, the
same code with the number as one more argument, which is captured in its turn and finds the number where it draws.
So the value is an input like others: arithmetic with it stays in the graph, a branch on it is a guard. Invariant: run
as it is, the second function puts the generator back first and draws itself, so that it may run eagerly at any time.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
import types
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo.bytecode import assemble, build, decode, header_of, without_pairs
from dynamo.errors import DynamoError
from dynamo.guards.program import argument_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from dynamo._native import CodeCache

__all__ = ["Ahead", "Draw", "DrawFound", "Drawing", "Undrawn", "begin", "is_drawn"]

_FIRST = ("MAKE_CELL", "COPY_FREE_VARS", "RESUME")
_FLAGS = 0x3 | 0x10  # of the original: an optimized function, nested or not
_BEFORE = "<before>"
_DRAWN = "<drawn "
_MOST_BRANCHES = 2  # draws of a call that it may branch on: each doubles its versions
_MOST_VERSIONS = 4  # of a second function: a draw that needs more is made where it stands

Draw = tuple[Any, tuple[Any, ...], tuple[tuple[str, Any], ...]]
"""The function that draws, and its arguments behind the generator: by place, and by name."""


def is_drawn(name: str) -> bool:
    """Whether an argument of a function is a number drawn before it."""
    return name.startswith(_DRAWN)


class DrawFound(BaseException):
    """The captured call draws: what comes, and from which generator."""

    def __init__(self, draw: Draw, generator: Any) -> None:
        super().__init__(draw)
        self.draw, self.generator = draw, generator


class Undrawn(DynamoError):
    """A second function is not to be captured: its last draw is made where it stands."""

    def __init__(self, before: Any) -> None:
        super().__init__("too many drawn numbers decide branches")
        self.before = before


class _Before:
    """The states of generators before anything was drawn from them."""

    __slots__ = ("kept",)

    def __init__(self, kept: tuple[tuple[Any, Any], ...]) -> None:
        self.kept = kept

    def put_back(self) -> None:
        """Undo what was drawn since."""
        for generator, state in self.kept:
            match generator:
                case random.Random():
                    generator.setstate(_unpacked(state) if type(state[0]) is bytes else state)
                case np.random.RandomState():
                    generator.set_state(state)
                case _:
                    generator.bit_generator.state = state


# The state of `random.Random` lies behind the head of its object: its place in the words, then the words. `getstate`
# makes 625 integers of it, for a state that is hardly ever put back: a copy of the memory takes a fiftieth of the time.
_WORDS = struct.Struct("i624I")


def _memory(generator: Any) -> tuple[bytes, float | None]:
    words = ctypes.string_at(id(generator) + object.__basicsize__, _WORDS.size)
    return words, generator.gauss_next


def _unpacked(state: tuple[bytes, float | None]) -> tuple[Any, ...]:
    """What `getstate` would have given."""
    place, *words = _WORDS.unpack(state[0])
    return random.Random.VERSION, (*words, place), state[1]


@functools.cache
def _lies_in_memory() -> bool:
    """Whether this interpreter keeps the state there."""
    if random.Random.__basicsize__ < object.__basicsize__ + _WORDS.size:
        return False
    tried: Any = random.Random(7)  # noqa: S311 - nothing secret
    for _ in range(3):
        if _unpacked(_memory(tried)) != tried.getstate():
            return False
        tried.gauss(0.0, 1.0)
    return True


def _state(generator: Any) -> Any:
    match generator:
        case random.Random():
            if _lies_in_memory():
                return _memory(generator)
            return generator.getstate()
        case np.random.RandomState():
            return generator.get_state(legacy=False)
        case _:
            return generator.bit_generator.state


def begin(draws: tuple[Draw, ...], before: _Before, *values: Any) -> None:
    """What a second function begins with: outside of a capture, it draws itself.

    Args:
        draws: what is drawn, in order.
        before: the generators' states.
        values: what was drawn, for the capture.
    """
    del draws, values
    before.put_back()


class Ahead:
    """Draws one number of a call, and calls the second function with it."""

    __slots__ = ("_own", "_refuse", "at", "cache", "code", "draw")

    def __init__(
        self, draw: Draw, code: CodeType, cache: CodeCache, at: int, own: CodeCache, refuse: Any
    ) -> None:
        self.draw, self.code, self.cache, self.at = draw, code, cache, at
        self._own, self._refuse = own, refuse

    def __call__(self, function: types.FunctionType, slots: tuple[Any, ...], generator: Any) -> Any:
        """The result of the call of `function` with these argument slots."""
        method, args, named = self.draw
        before = slots[self.at] if self.at >= 0 else _Before(())
        if not any(known is generator for known, _ in before.kept):
            before = _Before((*before.kept, (generator, _state(generator))))
        drawn = method(generator, *args, **dict(named))
        if self._refuse is not None and len(self.cache.entries) > _MOST_VERSIONS:
            self._refuse()
        own = (
            (*slots[: self.at], before, *slots[self.at + 1 :]) if self.at >= 0 else (*slots, before)
        )
        second = types.FunctionType(
            self.code, function.__globals__, function.__name__, None, function.__closure__
        )
        if self.at >= 0:
            return self.cache.call(second, (*own, drawn))
        try:
            return self.cache.call(second, (*own, drawn))
        except Undrawn as found:
            found.before.put_back()
        return self._own.call(function, slots)  # which draws as far as it may


class Drawing:
    """The second functions of one compiler, by the code that draws; with `fullgraph` none is given up."""

    def __init__(self, cache: Callable[[CodeType], CodeCache], *, fullgraph: bool) -> None:
        self._cache = cache
        self._fullgraph = fullgraph
        self._made: dict[tuple[CodeType, Any], Ahead] = {}
        self._refuse: dict[CodeType, Callable[[], None]] = {}  # what makes the last draw in place
        self.draws: dict[CodeType, tuple[Draw, ...]] = {}  # what is drawn before a second function
        self.refused: set[CodeType] = set()

    def forget(self) -> None:
        """Draw ahead again where that was given up."""
        self.refused.clear()

    def require_few(self, code: CodeType, branches: int, slots: tuple[Any, ...]) -> None:
        """Raise `Undrawn` if a second function branches on more draws than its versions are worth."""
        if branches > _MOST_BRANCHES and code in self.draws and not self._fullgraph:
            self._refuse[code]()
            raise Undrawn(slots[argument_names(code).index(_BEFORE)])

    def ahead(self, code: CodeType, draw: Draw, own: CodeCache) -> Ahead:
        """What draws in place of `code`, whose entries are `own`, and goes on."""
        key = (code, _key(draw))
        found = self._made.get(key)
        if found is None:
            draws = (*self.draws.get(code, ()), draw)
            made = _second(code, draws)
            at = argument_names(code).index(_BEFORE) if len(draws) > 1 else -1

            def refuse() -> None:
                self.refused.add(code)
                own.clear()

            given_up = None if self._fullgraph else refuse
            found = self._made[key] = Ahead(draw, made, self._cache(made), at, own, given_up)
            self.draws[made] = draws
            self._refuse[made] = refuse
        return found


def _key(draw: Draw) -> Any:
    """A draw as a dict key: 1, 1.0 and True are different arguments."""
    method, args, named = draw
    return method, repr(args), repr(named)


def _second(code: CodeType, draws: tuple[Draw, ...]) -> CodeType:
    """The code with its argument slots, the states and what was drawn as plain arguments."""
    slots = argument_names(code)
    drawn = [f"{_DRAWN}{number}>" for number in range(len(draws))]
    added = [name for name in (_BEFORE, *drawn) if name not in slots]
    instructions = decode(code)
    start = 0
    while instructions[start].opname in _FIRST:
        start += 1
    body = start if len(draws) == 1 else _end_of_beginning(instructions, start)
    rest = instructions[body:]
    call = [
        *build.begin_call([build.load_const(begin)]),
        build.load_const(draws),
        *(build.load_fast(name) for name in (_BEFORE, *drawn)),
        *build.end_call(len(drawn) + 2),
        build.pop_top(),
    ]
    for instruction in call:
        instruction.positions = rest[0].positions
    header = replace(
        header_of(code),
        argument_count=len(slots) + len(added),
        positional_only_count=0,
        keyword_only_count=0,
        flags=code.co_flags & _FLAGS,
        local_names=(*slots, *added, *code.co_varnames[len(slots) :]),
    )
    return assemble(without_pairs([*instructions[:start], *call, *rest]), header)


def _end_of_beginning(instructions: Any, start: int) -> int:
    """Behind the call of `begin` that a second function has."""
    for at in range(start, len(instructions)):
        if instructions[at].opname == "POP_TOP":
            return at + 1
    raise AssertionError("a second function begins with a call")
