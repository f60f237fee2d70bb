"""The backwards of one compiled graph: one for each set of outputs that nobody differentiates.

Comes in: the backward graph of the partition and what compiles it. Goes out: for the bits of the absent tangents a
compiled backward, made when it is first needed. The set that a loss among the outputs suggests (the loss alone is
differentiated) is compiled in the background from the forward's first call on. Invariant: the same set is compiled
once; a graph with one tangent has one backward.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from aot_autograd.absent import tangents_reaching, without_tangents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import fx

    from aot_autograd.deferred import Deferred
    from aot_autograd.metadata import FunctionMetadata
    from aot_autograd.runtime import Boxed

    Load = Callable[[], fx.GraphModule]

MOST_SETS = 8
"""Sets of absent tangents that a graph is compiled for; for others zeros are made at run time."""


class Backward:
    """One backward.

    Attributes:
        deferred: The compiled callable to be.
        kept: Which saved values it takes; None for all of them. Known once `deferred` was asked.
        zeros: Whether it takes zeros for absent tangents, instead of only those that are there.
        unreached: Numbers of the gradients that are None all the same.
    """

    __slots__ = ("deferred", "kept", "unreached", "zeros")

    def __init__(self, deferred: Deferred) -> None:
        self.deferred = deferred
        self.kept: tuple[int, ...] | None = None
        self.zeros = False
        self.unreached: frozenset[int] = frozenset()


class Backwards:
    """All backwards of one graph; safe from several threads.

    Args:
        deferred: Makes a compiled backward to be, from what gives its graph or from what was compiled.
        metadata: The contract.
        load: Gives the graph with all tangents; None where its only backward was compiled already.
        parts: By absent tangents: backwards that were compiled in another process, and which saved
            values each takes.
    """

    __slots__ = (
        "_complete",
        "_deferred",
        "_load",
        "_lock",
        "everything",
        "known",
        "likely",
    )

    def __init__(
        self,
        deferred: Callable[..., Deferred],
        metadata: FunctionMetadata,
        load: Load | None,
        parts: Mapping[int, tuple[Boxed, tuple[int, ...] | None]] | None = None,
    ) -> None:
        self._deferred = deferred
        self._load = load
        self._lock = threading.RLock()
        self._complete: list[Callable[[], None]] = []
        self.known: dict[int, Backward] = {}
        self.everything = (1 << len(metadata.tangents)) - 1
        self.likely = likely_absent(metadata)
        for absent, (made, kept) in (parts or {}).items():
            backward = self.known[absent] = Backward(deferred(made=made))
            backward.kept = kept
        if self.everything <= 1:
            self.of(0)
            self._load = None  # there is no other set, and the graph is large

    @property
    def whole(self) -> Backward:
        """The one for all tangents."""
        return self.of(0)

    def start(self) -> None:
        """Begin to compile the likely one in the background."""
        self.of(self.likely).deferred.start()

    def of(self, absent: int) -> Backward:
        """The backward for the tangents whose bits are not in `absent`."""
        found = self.known.get(absent)
        if found is None:
            with self._lock:
                found = self.known.get(absent)
                if found is None:
                    found = self._add(absent)
        return found

    def _add(self, absent: int) -> Backward:
        load = self._load
        assert load is not None, "a graph with one tangent has one backward"
        specialised = None
        if self.everything > 1 and (not absent or len(self.known) < MOST_SETS):
            # Also for no absent one a copy: what a compiler does to its graph is its own affair.
            specialised = without_tangents(load(), absent)
        if self.everything <= 1:
            made = Backward(self._deferred(load=load))
        elif specialised is None:
            made = Backward(self.whole.deferred)
            made.kept, made.zeros = self.whole.kept, True
            made.unreached = frozenset(
                number
                for number, mask in enumerate(tangents_reaching(load()))
                if mask and not mask & ~absent
            )
        else:
            module = specialised.module
            made = Backward(self._deferred(load=partial(_given, module)))
            made.kept = specialised.kept
        for then in self._complete:
            made.deferred.when_made(then)
        self.known[absent] = made
        return made

    def when_made(self, then: Callable[[], None]) -> None:
        """Call `then` each time that one of the backwards is compiled."""
        with self._lock:
            self._complete.append(then)
            known = list({id(one.deferred): one for one in self.known.values()}.values())
        for one in known:
            one.deferred.when_made(then)

    def stored(self) -> Iterator[tuple[int, Backward]]:
        """The sets that have a compiled backward of their own."""
        with self._lock:
            known = list(self.known.items())
        for absent, backward in known:
            if not backward.zeros and backward.deferred.made is not None:
                yield absent, backward

    @contextmanager
    def settled(self) -> Iterator[fx.GraphModule | None]:
        """Inside, nobody changes the graph with all tangents; None where it is needed no more."""
        if self._load is not None:
            yield self._load()
        else:
            with self.whole.deferred.settled() as graph:
                yield graph


def likely_absent(metadata: FunctionMetadata) -> int:
    """The tangents that will be absent if those outputs that are single numbers are the losses."""
    wanted = [n for n, requires in enumerate(metadata.value_requires_grad) if requires]
    first = metadata.mutation_values
    others = losses = 0
    for slot, (number, meta) in enumerate(zip(wanted, metadata.tangents, strict=True)):
        if number < first:
            continue
        if not meta.shape:
            losses |= 1 << slot
        else:
            others |= 1 << slot
    return others if losses else 0


def _given(module: fx.GraphModule) -> fx.GraphModule:
    return module
