"""The autograd nodes of a call whose results do not all lead to the same inputs, or lead to one another.

One node for all results would carry every backward to every input: hooks above an input would be called for results
that it has no part in, custom functions there would make zeros of what is no gradient; and no way would lead from a
loss to the logits that it is made of. So each result gets a node, inputs that the same results lead to get one, and
the edges between them are eager's. Comes in: the function of the whole call (`training.py`) and the connections. Goes
out: a callable in its place.

A result's node only tells what arrived; the first inputs' node that runs runs the compiled backward with all of that
and leaves the other gradients for the other nodes. The engine runs an inputs' node after all nodes that lead to it;
what arrives after a compiled backward, for other nodes, gets one of its own, and gradients are sums. The node of the
first result, which the engine runs as the last of them, is itself the node of the inputs that nothing leads to without
leading to it. To a result that it is made of, a node sends nothing, unless the gradient there is for somebody: a hook,
`retain_grad`, a backward that was asked for some tensors' gradients. Then a compiled backward that ends at all such
results runs at once; what is behind these waits for what autograd itself brings them.

Invariant: a tangent is handed to a compiled backward once in a backward; what the call saved is in nobody's graph,
and lives until no result is left whose backward may still come. Where hooks want to see what is saved, it is saved in
the context of a node of the whole call; else beside autograd (`stowed.py`), which costs less.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from aot_autograd import _native
from aot_autograd._torch import (
    apply_without_transforms,
    current_backward,
    edge_of_leaf,
    keeps_graph,
    runs_in_this_backward,
    set_grad_enabled,
)
from aot_autograd.batched import AskedOnce, is_wanted
from aot_autograd.connections import bits_of, first_of, nodes_of_inputs, with_the_first
from aot_autograd.points import Points, Watched
from aot_autograd.steps import Steps, functions_of_nodes
from aot_autograd.stowed import Stowed
from aot_autograd.told import Told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aot_autograd.connections import Connections
    from aot_autograd.metadata import FunctionMetadata
    from aot_autograd.runtime import Building

__all__ = ["Nodes"]

_MOST_BITS = 60
"""Results, or nodes of inputs, for which the C form has bits."""


class Nodes:
    """The nodes of one compiled graph, and how a call makes them.

    Args:
        metadata: The contract.
        found: What is behind each result.
        whole: The autograd function of the whole call.
        keeping: Its backward, which leaves what is saved.
        freeing: Its backward, which lets go of it.
        keeping_to_ends: As `keeping`, for a backward that ends at results.
        freeing_to_ends: As `freeing`, for one.
        reads_tensors: Whether the backward without some tangents that ends at some results, both as bits, reads tensors
            that were saved.
        saved: How many tensors are.
        kind: The metaclass of autograd functions.
        second_backward: What autograd says of a second backward.

    Attributes:
        alone: The results that lead to no input and no other result.
    """

    def __init__(
        self,
        metadata: FunctionMetadata,
        found: Connections,
        whole: type[torch.autograd.Function],
        keeping: Callable[..., Sequence[Any]],
        freeing: Callable[..., Sequence[Any]],
        keeping_to_ends: Callable[[Any, int, Sequence[Any]], Sequence[Any]],
        freeing_to_ends: Callable[[Any, int, Sequence[Any]], Sequence[Any]],
        reads_tensors: Callable[[int, int], bool],
        saved: int,
        kind: type,
        second_backward: str,
    ) -> None:
        self.keeping, self.freeing = keeping, freeing
        self.keeping_to_ends, self.freeing_to_ends = keeping_to_ends, freeing_to_ends
        self.reads_tensors, self.saved = reads_tensors, saved
        self.everything = (1 << len(metadata.tangents)) - 1
        self.second_backward = second_backward
        self.told = Told(metadata.source)
        self.made_of, self.own, self.kept = found.made_of, found.own, found.kept
        self.leading_to = found.leading
        self.direct = tuple([tuple(bits_of(mask)) for mask in found.made_of])
        self.order, self.interior, self.beside = found.order, found.interior, found.beside
        self.leading = sum(1 << tangent for tangent in self.interior)
        self.tangents = len(found.reached)
        self.points = Points(found, metadata.points) if metadata.points else None
        self.values = tuple(
            n for n, requires in enumerate(metadata.value_requires_grad) if requires
        )
        self.count = len(metadata.value_requires_grad)
        self.differentiable = len(metadata.differentiable)
        inputs, edges = nodes_of_inputs(found.reached, len(metadata.differentiable))
        self.first = first_of(found)
        self.inputs, self.edges, self.own_inputs, self.leading_to_first = with_the_first(
            found, inputs, edges
        )
        self.alone = frozenset(
            tangent
            for tangent, reached in enumerate(found.reached)
            if not reached and not self.direct[tangent]
        )
        with torch.inference_mode(mode=False):
            self._leaf = torch.zeros((), device="cpu", requires_grad=True)
            # Runs, with nothing to do, in a backward of all that there is, and in none that was asked for some tensors;
            # and is behind results that lead nowhere.
            self._anything, self.anything = self._leaf.detach().requires_grad_(), None
            if self.interior:
                self.anything = edge_of_leaf(self._anything)
            # Where gradients are, so that the engine orders streams; a number, which detect_anomaly() looks at; of one
            # dtype, whatever the default is by the time of the backward: else the engine makes another tensor of it.
            self.token = torch.zeros((), dtype=torch.float32, device=metadata.tangents[0].device)
        self._forward: Callable[..., Sequence[Any]] = whole.forward
        self._apply_whole = apply_without_transforms(whole)
        self.lock = threading.Lock()
        made = self._in_c()
        self._call: type[_Call] = _Call if made is None else _CallInC
        self.running: type[_Running] = _Running if made is None else _RunningInC
        steps = Steps() if made is None else made
        self._of_inputs, self._of_results = functions_of_nodes(kind, steps)
        self._direct = (
            apply_without_transforms(self._of_inputs),
            apply_without_transforms(self._of_results),
        )
        if made is not None:
            made.begin(*self._direct)
            self.apply = made.run  # type: ignore[method-assign] # the same, in C

    def _in_c(self) -> Any:
        """The C form of what runs at each call; None where there is none, or a graph has too much of something."""
        if _native.node is None or max(len(self.values), len(self.inputs)) > _MOST_BITS:
            return None
        if self.points is not None or any(self.beside) or self.alone:
            return None  # what is rare is for Python to look at
        return _native.node.Maker(
            nodes=self,
            forward=self._forward,
            stowed=Stowed,
            call=_CallInC,
            set_grad=set_grad_enabled,
            token=self.token,
            anything=self._anything,
            edge=self.anything,
            current=current_backward,
            runs=runs_in_this_backward,
            backward=_RunningInC,
            lock=threading.RLock,
            keeping=self.keeping,
            freeing=self.freeing,
            keeps=keeps_graph,
            grad_enabled=torch.is_grad_enabled,
            own=self.own,
            kept=self.kept,
            count=self.count,
            own_inputs=self.own_inputs,
            leading_to_first=self.leading_to_first,
            inputs=self.inputs,
            edges=self.edges,
            direct=self.direct,
            values=self.values,
            order=self.order,
            interior=self.interior,
        )

    def apply(
        self, args: list[Any], sizes: Any, *inputs: Any, building: Building | None = None
    ) -> tuple[Any, ...]:
        """The results of a call; `inputs` are the differentiable ones of `args`, `building` makes its points.

        For when gradients are on and nobody wants to see what is saved.
        """
        stowed = Stowed()
        set_grad_enabled(False)
        try:
            values = list(self._forward(stowed, args, sizes))
        finally:
            set_grad_enabled(True)
        stowed.close()
        call = self._call(self, stowed, stowed, len(self.values))
        return self._made(call, values, inputs, building)

    def apply_with_hooks(
        self, args: list[Any], sizes: Any, *inputs: Any, building: Building | None = None
    ) -> tuple[Any, ...]:
        """The same where hooks see what is saved."""
        values = list(self._apply_whole(args, sizes, self._leaf))
        value = values[self.values[0]]
        # The node lives as long as another that leads to it: its context doesn't keep it.
        owner = value.view_as(value).grad_fn
        call = self._call(self, value.grad_fn, owner, len(self.values))
        call.spent = {}  # so that the Python form runs, which unpacks what is saved once in a backward
        return self._made(call, values, inputs, building)

    def _made(
        self,
        call: OfCall,
        values: list[Any],
        inputs: Sequence[Any],
        building: Building | None,
    ) -> tuple[Any, ...]:
        """The results that the caller gets, of the values of the whole call; points are made between their nodes."""
        of_inputs, of_results = self._direct
        tokens = [
            of_inputs(number, self.token, *[inputs[place] for place in places])
            for number, places in enumerate(self.inputs)
        ]
        made: dict[int, torch.Tensor] = {}
        watched: dict[int, Watched] = {}
        if self.points is not None:
            call.points = watched
        for tangent in self.order:  # the engine runs the last one first
            if self.points is not None and tangent >= self.tangents:
                assert building is not None, "points are made by the epilogue"
                key = self.points.keys[tangent - self.tangents]
                made[tangent], base = building.point(key, values)
                watched[tangent] = Watched(made[tangent], base)
                continue
            place = self.values[tangent]
            edges = [tokens[at] for at in self.edges[tangent]]
            direct = self.direct[tangent]
            if direct:
                edges += [
                    values[self.values[one]] if one < self.tangents else made[one] for one in direct
                ]
                edges.append(self._anything)
            if tangent == self.first:
                edges += [inputs[at] for at in self.own_inputs]
            if tangent in self.alone:
                edges.append(self._anything)
            # In a list, out of autograd's sight: the whole call's node is behind no result.
            value = of_results(call, tangent, [values[place]], *edges)
            values[place] = value
            call.tensors[tangent] = ref(value)
        return tuple(values)

    def note(self, values: Sequence[Any], tensors: Sequence[torch.Tensor]) -> None:
        """Remember what a call with these values gave to the caller that is beside its results' ways."""
        call: Any = values[self.values[0]].grad_fn.call
        call.beside = list(map(ref, tensors))

    def behind(self, tangent: int, ends: int) -> int:
        """What a backward from a result frees that ends at the results of these bits."""
        if not ends:
            return self.kept[tangent]
        found, pending, seen = 0, [tangent], ends
        while pending:
            one = pending.pop()
            found |= self.own[one]
            pending += [other for other in self.direct[one] if not seen >> other & 1]
            seen |= self.made_of[one]
        return found


class OfCall:
    """What the nodes of one call share.

    Attributes:
        nodes: What is the same for each call.
        context: What is saved: of the whole call's node, or as one.
        owner: Keeps it alive, which a context doesn't; None once it is freed.
        results: The results' nodes, as long as they live.
        tensors: The results, as long as Python knows them.
        hooks: Of results that others are made of, where they have any: what autograd calls, also when Python doesn't
            know the result any more.
        hooked: Those whose node has hooks, as bits.
        beside: What the caller got that is made of the results, or of arguments, and not on the results' ways.
        spent: What was freed, as the bits of the connections, by each backward that didn't retain the graph.
        running: The backwards that are at work.
        watching: The results' nodes again, if the end of one may be the end of what is saved.
        points: Who looks at the points, by their numbers, of a graph that has some.
    """

    if not TYPE_CHECKING:
        __slots__ = ()

    nodes: Nodes
    context: Any
    owner: Any
    results: list[Any]
    tensors: list[Any]
    hooks: dict[int, Any] | None
    hooked: int
    beside: list[ref[torch.Tensor]] | None
    spent: dict[int, int] | None
    running: tuple[ref[_OfBackward], ...]
    watching: list[Any]
    points: dict[int, Watched]

    def let_go(self) -> None:
        """Hold what is saved no longer: the compiled backward that runs now frees it."""
        self.context, self.owner = _Freed(self.context, self.nodes.saved), None

    def executed(self, things: int) -> int:
        """Those of what is behind results that the backward that runs now comes by."""
        nodes = self.nodes
        if nodes.anything is None or runs_in_this_backward(nodes.anything):
            return things
        inputs = sum(1 << place for place, asked in enumerate(self.wanted()) if asked)
        results = 0
        for tangent, reference in enumerate(self.results):
            node = reference()
            if node is not None and runs_in_this_backward(node):
                results |= 1 << tangent
        if nodes.points is not None:
            results |= self._points_that_run()
        return sum(
            1 << thing
            for thing in bits_of(things)
            if nodes.leading_to[thing][0] & inputs or nodes.leading_to[thing][1] & results
        )

    def free_with_the_last(self) -> None:
        """Let go of what is saved also when the last result whose backward may still come dies without one."""
        reference = ref(self)

        def died(_node: Any) -> None:
            call = reference()
            # A backward that runs now decides by itself.
            if call is None or any(one() is not None for one in call.running):
                return
            if type(call.context) is not _Freed and not call.more_may_come():
                call.let_go()

        nodes = [one() for one in self.results]
        self.watching = [ref(node, died) for node in nodes if node is not None]

    def more_may_come(self, running: _OfBackward | None = None) -> bool:
        """Whether a node may still run its backward: in the one that runs now, or in one to come."""
        spent = self.freed()
        for tangent, reference in enumerate(self.results):
            node = reference()
            if node is None:
                continue
            if running is not None and running.may_arrive(tangent, node):
                return True
            own = self.nodes.own[tangent]
            if own and not own & spent:
                return True
        return False

    def freed(self, number: int | None = None) -> int:
        """What backwards have freed, other than that of a number."""
        found = 0
        if self.spent is not None:
            for one, bits in list(self.spent.items()):
                if one != number:
                    found |= bits
        return found

    def observed(self) -> int:
        """The results whose gradient is for somebody, in the backward that runs now; as bits."""
        nodes = self.nodes
        found = self.hooked & nodes.leading
        of_some = not runs_in_this_backward(nodes.anything)
        hooks = self.hooks
        for tangent in nodes.interior:
            if tangent >= nodes.tangents:
                break  # points are behind results
            tensor = self.tensors[tangent]()
            retains = tensor is not None and tensor.retains_grad
            if retains or (hooks is not None and hooks.get(tangent)):
                found |= 1 << tangent
            elif of_some:
                # Autograd doesn't tell what it was asked for: all that it comes by may be that.
                node = self.results[tangent]()
                if node is not None and runs_in_this_backward(node):
                    found |= 1 << tangent
        if nodes.points is None:
            return found
        if of_some:
            found |= self._points_that_run()
        for point, watched in self.points.items():
            if watched():
                found |= 1 << point
        return nodes.points.with_those_before(found)

    def _points_that_run(self) -> int:
        """The points that results lead to and whose nodes run in this backward, as bits."""
        nodes = self.nodes
        assert nodes.points is not None, "there are points"
        found = 0
        for tangent in nodes.points.leading:
            node, direct = self.results[tangent](), nodes.direct[tangent]
            if node is None:
                continue
            behind = 1 + (len(nodes.own_inputs) if tangent == nodes.first else 0)
            edges = node.next_functions
            edges = edges[len(edges) - behind - len(direct) : len(edges) - behind]
            for one, (following, _) in zip(direct, edges, strict=True):
                if one >= nodes.tangents and _runs(following):
                    found |= 1 << one
        return found

    def wanted(self) -> list[bool]:
        """For each input with a gradient whether the backward that runs in this thread asks for it."""
        nodes = self.nodes
        found = [False] * nodes.differentiable
        for tangent, reference in enumerate(self.results):
            node = reference()
            if node is None or tangent in nodes.alone:
                continue
            tokens, direct = nodes.edges[tangent], nodes.direct[tangent]
            own = nodes.own_inputs if tangent == nodes.first else ()
            count = len(tokens) + (len(direct) + 1 if direct else 0) + len(own)
            edges = node.next_functions[-count:]
            for number, (inputs, _) in zip(tokens, edges, strict=False):
                places = nodes.inputs[number]
                behind = inputs.next_functions[-len(places) :]
                for place, (one, _) in zip(places, behind, strict=True):
                    found[place] |= is_wanted(one)
            for place, (one, _) in zip(own, edges[count - len(own) :], strict=True):
                found[place] |= is_wanted(one)
        return found

    def of_now(self) -> _OfBackward:
        """The backward that runs in this thread."""
        number = current_backward()
        found = self._found(number)
        if found is None:
            with self.nodes.lock:
                found = self._found(number)
                if found is None:
                    lock = threading.RLock()
                    found = self.nodes.running(self, number, self.nodes.count, lock)
                    others = [one for one in self.running if one() is not None]
                    self.running = (*others, ref(found))
        return found

    def _found(self, number: int) -> _OfBackward | None:
        for reference in self.running:
            found = reference()
            if found is not None and found.number == number:
                return found
        return None


_OF_CALL = ("__weakref__", "points", "watching")
_OF_BACKWARD = ("asked",)
"""Fields that are in Python in both forms: what is rare."""


class _Call(OfCall):
    """The same, with its fields in Python."""

    __slots__ = (
        "beside",
        "context",
        "hooked",
        "hooks",
        "nodes",
        "owner",
        "results",
        "running",
        "spent",
        "tensors",
        *_OF_CALL,
    )

    def __init__(self, nodes: Nodes, context: Any, owner: Any, results: int) -> None:
        self.nodes = nodes
        self.context = context
        self.owner = owner
        self.tensors = [None] * results
        self.results = [None] * results
        self.hooks = None
        self.hooked = 0
        self.beside = None
        self.spent = None
        self.running = ()


class _Freed:
    """In the place of a context whose saved tensors are gone: for results whose backward reads none."""

    __slots__ = ("kept", "saved_tensors")

    def __init__(self, context: Any, tensors: int) -> None:
        _, _, numbers, sizes, *_ = context.kept
        self.kept = (None, None, numbers, sizes, None)
        self.saved_tensors = (None,) * tensors


class _OfBackward:
    """What one backward has brought to the nodes of one call so far.

    It lives as long as its ticket, a gradient on its way to an inputs' node, and dies with an abandoned backward. What
    is for the inputs of the first result's node has no ticket: that node's context holds it until the node runs.

    Attributes:
        call: The call.
        number: The backward's, as autograd counts those that are at work.
        fresh: The tangents among `given`, as bits.
        arrived: The results whose nodes have run, as bits.
        given: The tangents that no compiled backward has had yet, one place for each value of the graph.
        gradients: Of the inputs whose nodes have not run yet.
        arriving: At the results that it ends at, until a node that leads there brings it.
        ticketed: Inputs' nodes that the ticket goes to, as bits.
        lock: Held by a thread that looks at this and changes it.
        asked: What is saved where hooks see it, once they have and another compiled backward may read it.
        busy: While a compiled backward is prepared and runs: what it brings is not here yet.
    """

    if not TYPE_CHECKING:
        __slots__ = ()

    call: OfCall
    number: int
    arrived: int
    fresh: int
    given: list[Any]
    gradients: dict[int, Any]
    arriving: dict[int, Any]
    ticketed: int
    lock: Any
    asked: AskedOnce | None
    busy: bool

    def arrive(self, tangent: int, gradient: Any) -> None:
        """Take what arrived at a result's node."""
        nodes = self.call.nodes
        with self.lock:
            self.arrived |= 1 << tangent
            held = getattr(self.call.results[tangent](), "held", None)
            if held:
                held.pop(self.number, None)
            if gradient is not None:
                self.given[nodes.values[tangent]] = gradient
                self.fresh |= 1 << tangent

    def sent(self, tangent: int) -> list[Any]:
        """What a result's node, which runs now, brings to the results that it is made of.

        Raises:
            RuntimeError: autograd's own, if what is behind it was freed.
        """
        nodes, call = self.call.nodes, self.call
        with self.lock:
            ends = call.observed() & ~self.arrived if nodes.direct[tangent] else 0
            if ends and nodes.points is not None:
                ends &= nodes.points.behind(self.fresh)
            spent = call.freed(self.number) & nodes.behind(tangent, ends)
            if spent and call.executed(spent):
                raise RuntimeError(nodes.second_backward)
            if nodes.beside[tangent] and call.beside:
                nodes.told.of_tensors_beside(
                    [call.beside[number] for number in bits_of(nodes.beside[tangent])]
                )
            if self.fresh and nodes.made_of[tangent] & ends:
                self._advance(ends)
            brought = [self.arriving.pop(one, None) for one in nodes.direct[tangent]]
            self._wait()
            return brought

    def _wait(self) -> None:
        """Stay until the nodes run that bring on what has arrived: they hold this, which may have no ticket."""
        if not self.arriving:
            return
        for tangent, direct in enumerate(self.call.nodes.direct[: self.call.nodes.tangents]):
            if self.arriving.keys().isdisjoint(direct):
                continue
            node = self.call.results[tangent]()
            if node is not None and self.may_arrive(tangent, node):
                node.held = {**(getattr(node, "held", None) or {}), self.number: self}

    def take(self, places: Sequence[int]) -> list[Any]:
        """The gradients of inputs, whose node runs now."""
        with self.lock:
            if self.fresh:
                self._advance(0)
            return [self.gradients.pop(place, None) for place in places]

    def hold(self) -> None:
        """Stay until the first result's node takes what is for its inputs, if it runs in this backward."""
        if self.fresh or self.gradients:
            node = self.call.results[self.call.nodes.first]()
            if node is not None and any(_runs(one) for one, _ in node.next_functions):
                node.held[self.number] = self

    def _advance(self, ends: int) -> None:
        """Run the compiled backward with what arrived since the last time, to the results of the bits of `ends`."""
        self.busy = True
        try:
            self._run(ends)
        finally:
            self.busy = False

    def _run(self, ends: int) -> None:
        nodes, call = self.call.nodes, self.call
        given, self.given = self.given, [None] * nodes.count
        fresh, self.fresh = self.fresh, 0
        freeing = False
        if not keeps_graph() and type(call.context) is not _Freed:
            if call.spent is None:
                call.spent = {}
            freed = call.spent.get(self.number, 0)
            for tangent in bits_of(fresh):
                freed |= call.executed(nodes.behind(tangent, ends))
            call.spent[self.number] = freed
            freeing = not call.more_may_come(self)
            if not freeing:
                call.free_with_the_last()
        context, owner = self._context(freeing=freeing), call.owner
        if freeing:
            call.let_go()
        elif type(context) is _Freed and nodes.reads_tensors(nodes.everything & ~fresh, ends):
            raise RuntimeError(nodes.second_backward)
        if ends:
            to_ends = nodes.freeing_to_ends if freeing else nodes.keeping_to_ends
            gradients = to_ends(context, ends, [*given, call])
        else:
            gradients = (nodes.freeing if freeing else nodes.keeping)(context, *given, call)
        del given, context, owner
        inputs = len(gradients) - (len(nodes.interior) if ends else 0)
        _add(self.gradients, range(inputs), gradients[2:inputs])
        _add(self.arriving, nodes.interior, gradients[inputs:])

    def may_arrive(self, tangent: int, node: Any) -> bool:
        """Whether a result's node will still run in this backward."""
        return bool(not self.arrived >> tangent & 1 and runs_in_this_backward(node))

    def _context(self, *, freeing: bool) -> Any:
        """What is saved, for a compiled backward: hooks see it once in a backward, also where it takes several."""
        context = self.call.context
        if type(context) in (Stowed, _Freed):
            return context
        asked = getattr(self, "asked", None) or AskedOnce(context)
        self.asked = None
        results = self.call.results
        for tangent in () if freeing else self.call.nodes.order:
            node = (
                results[tangent]() if tangent < len(results) else None
            )  # a point has none of ours
            if node is not None and self.may_arrive(tangent, node):
                # The last of them in this backward: no ticket may be on its way until then.
                node.held = {**(getattr(node, "held", None) or {}), self.number: self}
                self.asked = asked
                break
        return asked


class _Running(_OfBackward):
    """The same, with its fields in Python."""

    __slots__ = (
        "__weakref__",
        "arrived",
        "arriving",
        "busy",
        "call",
        "fresh",
        "given",
        "gradients",
        "lock",
        "number",
        "ticketed",
        *_OF_BACKWARD,
    )

    def __init__(self, call: OfCall, number: int, values: int, lock: Any) -> None:
        self.call = call
        self.number = number
        self.arrived = 0
        self.fresh = 0
        self.given = [None] * values
        self.gradients = {}
        self.arriving = {}
        self.ticketed = 0
        self.lock = lock
        self.busy = False


_CallInC: Any = None
_RunningInC: Any = None
if _native.node is not None:  # the same, with their fields in C
    _CallInC = type("_Call", (OfCall, _native.node.CallFields), {"__slots__": _OF_CALL})
    _RunningInC = type(
        "_Running", (_OfBackward, _native.node.RunningFields), {"__slots__": _OF_BACKWARD}
    )


def _runs(node: Any) -> bool:
    """Whether the backward of now runs this node, or was asked for the tensor that it is of."""
    try:
        return node is not None and runs_in_this_backward(node)
    except RuntimeError:  # autograd doesn't say it of a leaf that was asked for
        return True


def _add(sums: dict[int, Any], keys: Iterable[int], gradients: Iterable[Any]) -> None:
    """Add gradients to those that there are."""
    for key, gradient in zip(keys, gradients, strict=False):
        if gradient is not None:
            before = sums.get(key)
            sums[key] = gradient if before is None else before + gradient
