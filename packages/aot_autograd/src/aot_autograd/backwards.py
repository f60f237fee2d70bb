"""The backwards of one compiled graph: one for each set of outputs that nobody differentiates.

Comes in: the backward graph of the partition and what compiles it. Goes out: for the bits of the absent tangents, and
above them of the results at which it ends, a compiled backward, made when it is first needed. The set that a loss among
the outputs suggests (the loss alone is differentiated) is compiled in the background from the forward's first call on.
Invariant: the same set is compiled once; a graph with one tangent has one backward.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from aot_autograd.absent import Ends, none_of, without_tangents
from aot_autograd.connections import bits_of
from aot_autograd.runtime import as_boxed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import fx

    from aot_autograd.deferred import Deferred
    from aot_autograd.metadata import FunctionMetadata
    from aot_autograd.runtime import Boxed

    Load = Callable[[], fx.GraphModule]

MOST_SETS = 8
"""Sets of absent tangents that a graph is compiled for; for others zeros are made at run time."""
MOST_ENDS = 32
"""Backwards that end at results, for which a graph is compiled; others run by ATen, node by node."""


class Backward:
    """One backward.

    Attributes:
        deferred: The compiled callable to be.
        kept: Which saved values it takes; None for all of them. Known once `deferred` was asked.
        zeros: Whether it takes zeros for absent tangents, instead of only those that are there.
        unreached: Numbers of the outputs that are None all the same.
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
        "_gradients",
        "_interior",
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
        self._gradients = metadata.backward_results
        self._interior = metadata.interior
        self.everything = (1 << len(metadata.tangents)) - 1
        self.likely = likely_absent(metadata)
        for absent, (made, kept) in (parts or {}).items():
            backward = self.known[absent] = Backward(deferred(made=made))
            backward.kept = kept
        if self.everything <= 1 and not self._interior:
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
        """The backward for the tangents whose bits are not in `absent`; bits above these: where it ends."""
        found = self.known.get(absent)
        if found is None:
            with self._lock:
                found = self.known.get(absent)
                if found is None:
                    found = self._add(absent)
        return found

    def key(self, absent: int, results: int) -> int:
        """What `of` is asked for, for a backward that ends at these results."""
        return absent | results << self.everything.bit_length()

    def _add(self, key: int) -> Backward:
        load = self._load
        assert load is not None, "a graph with one tangent has one backward"
        if self.everything <= 1 and not self._interior:
            made = Backward(self._deferred(load=load))
        else:
            results = key >> self.everything.bit_length()
            places = tuple(self._interior.index(number) for number in bits_of(results))
            made = self._specialised(load(), key & self.everything, Ends(self._gradients, places))
        for then in self._complete:
            made.deferred.when_made(then)
        self.known[key] = made
        return made

    def _specialised(self, graph: fx.GraphModule, absent: int, ends: Ends) -> Backward:
        """Also for no absent tangent a copy: what a compiler does to its graph is its own affair."""
        found = None
        if not absent or ends.places or len(self.known) < MOST_SETS:
            found = without_tangents(graph, absent, ends)
        zeros = found is None
        if found is None and not ends.places:
            made = Backward(self.whole.deferred)
            made.kept = self.whole.kept
        else:
            if found is None:
                found = without_tangents(graph, 0, ends)
                assert found is not None, "what arrives at a result fills its memory"
            made = Backward(self._to_be(found.module, ends))
            made.kept = found.kept
        made.zeros = zeros
        if zeros:
            made.unreached = none_of(graph, absent, ends)
        return made

    def _to_be(self, module: fx.GraphModule, ends: Ends) -> Deferred:
        shift = self.everything.bit_length()
        if ends.places and sum(key >> shift > 0 for key in self.known) >= MOST_ENDS:
            return self._deferred(made=as_boxed(module.forward, "the graph"))
        return self._deferred(load=partial(_given, module))

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
