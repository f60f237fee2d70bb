"""The partition that saves least: a minimum cut between what is given and what the backward reads.

Comes in: a joint graph and the memory budget. Goes out: a `Partition`. Each forward value is a pair
of vertices joined by an edge whose capacity is what saving it occupies; an edge from the source
stands for the cost of computing it again. The cheapest cut therefore weighs bytes against work.
At budget 1.0 expensive operators are never repeated. Below it, the price of work falls until the
cut fits the budget (bisection over one factor), so that the cheapest work is repeated first.
Invariant: views, random numbers and what is computed of varying numbers are never saved, impure calls never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from aot_autograd.errors import PartitionError
from aot_autograd.options import AotOptions, checked_budget
from aot_autograd.partition.classify import Kind, kind_of, memory_of, repeat_cost, saved_bytes
from aot_autograd.partition.flow import INFINITE, Network
from aot_autograd.partition.split import (
    Partition,
    joint_outputs,
    split,
    tangent_dependent,
)
from aot_autograd.partition.written import written_values
from primtorch.fake import FakeTensor

_DEFAULT = AotOptions()
_BISECTIONS = 10
_UNWRITTEN = 2.0
"""Saving a value that the forward would have kept inside a kernel writes it too, and doesn't only keep it."""
_REWRITTEN = 2.0
"""Repeating the operand of an expensive operator fuses into nothing: it is read for, written, and only then used."""
_MORE_READ = 1.5
"""Weight of what the reader of a repeated operator reads beyond its result: the sums of a residual stream add up."""
_HIGHEST_PRICE = 1e5
_EACH = 8192.0
"""What a saved value costs beside its bytes, on a CPU: an allocation and two Python objects, together about 1.5 us."""
_EACH_ELSEWHERE = 64.0
"""A little: fewer, larger tensors are better than many small ones."""


def min_cut_rematerialization_partition(
    joint: fx.GraphModule,
    *,
    forward_outputs: int,
    options: AotOptions = _DEFAULT,
    activation_memory_budget: float | None = None,
) -> Partition:
    """Save the cheapest set of values from which the backward can be computed.

    Args:
        joint: The joint graph.
        forward_outputs: Number of leading outputs that the forward returns.
        options: `activation_memory_budget` is read from here unless given by itself.
        activation_memory_budget: 1.0 repeats only cheap operators, 0.0 saves inputs only.

    Raises:
        OptionError: the budget is not between 0 and 1.
    """
    budget = options.activation_memory_budget
    if activation_memory_budget is not None:
        budget = checked_budget(activation_memory_budget)
    problem = _Problem.of(joint, forward_outputs)
    saved = problem.cut(price=None)
    if budget < 1.0 and saved:
        target = budget * problem.occupied(saved)
        saved = problem.cut_within(target, saved)
    return split(joint, forward_outputs, saved)


@dataclass(slots=True)
class _Problem:
    """The forward values that the backward could read, and what each costs."""

    nodes: list[fx.Node]
    users: list[list[int]]
    needed: list[bool]
    save: list[float]
    repeat: list[float]
    kinds: list[Kind | None]
    static: list[bool]

    @classmethod
    def of(cls, joint: fx.GraphModule, forward_outputs: int) -> _Problem:
        late = tangent_dependent(joint)
        direct: set[fx.Node] = set()
        for node in joint.graph.nodes:
            if node in late:
                direct.update(node.all_input_nodes)
        direct.update(
            item for item in joint_outputs(joint)[forward_outputs:] if isinstance(item, fx.Node)
        )
        direct -= late
        written = written_values(joint, joint_outputs(joint)[:forward_outputs], late)
        operands = _operands(late)
        live = set(direct)
        for node in reversed(joint.graph.nodes):
            if node in live:
                live.update(node.all_input_nodes)
        nodes = [node for node in joint.graph.nodes if node in live]
        number = {node: index for index, node in enumerate(nodes)}
        problem = cls(
            nodes,
            [[] for _ in nodes],
            [node in direct for node in nodes],
            [],
            [],
            [],
            [],
        )
        for index, node in enumerate(nodes):
            for source in node.all_input_nodes:
                problem.users[number[source]].append(index)
            problem._cost(node, written=written, operand=node in operands)
        return problem

    def _cost(self, node: fx.Node, *, written: set[fx.Node], operand: bool) -> None:
        value = node.meta["val"]
        kind: Kind | None = None
        save, repeat, static = saved_bytes(value), INFINITE, False
        save = save if node in written else _UNWRITTEN * save
        if node.op == "placeholder":
            static = bool(node.meta["input"]["static"])
            save = 0.0 if static else save
        elif node.op == "get_attr":
            repeat, save = 0.0, INFINITE
        else:
            kind = kind_of(node)
            region = node.meta.get("recompute_region", 0)
            inside = region and all(
                user.meta.get("recompute_region", 0) == region
                or user.meta.get("phase") != "forward"
                for user in node.users
            )
            if node.meta.get("impure"):
                repeat = INFINITE
            elif node.meta.get("kept_by_policy"):
                repeat, save = INFINITE, 0.0
            elif kind in ("view", "random") or inside or isinstance(value, torch.SymFloat):
                repeat, save = repeat_cost(node), INFINITE
                if inside:
                    repeat = 0.0
            elif region:
                # Read outside of its checkpoint: from there nothing inside is computed for it.
                repeat = INFINITE
            else:
                repeat = repeat_cost(node)
                if operand:  # a kernel of its own
                    repeat += _REWRITTEN * saved_bytes(value) + _each(node)
                if node in written and kind == "pointwise":
                    repeat += _MORE_READ * _more_read(node, written)
        self.kinds.append(kind)
        self.save.append(save)
        self.repeat.append(repeat)
        self.static.append(static)

    def cut(self, price: float | None) -> list[fx.Node]:
        """The values to save when work costs `price` times its bytes.

        None is the price at budget 1.0: full, and expensive operators are out of question.
        """
        count = len(self.nodes)
        source, sink = 2 * count, 2 * count + 1
        network = Network(2 * count + 2)
        for index in range(count):
            save = self.save[index]
            if save != INFINITE:
                save += _each(self.nodes[index])
            network.edge(2 * index, 2 * index + 1, save)
            repeat = self.repeat[index]
            if price is None:
                if self.kinds[index] == "expensive" and not _is_inside(self.nodes[index]):
                    repeat = INFINITE
            elif repeat != INFINITE:
                # Equal layers must not all tip over at the same price.
                repeat *= price * (1.0 + 0.2 * index / count)
            if repeat > 0:
                network.edge(source, 2 * index, repeat)
            for user in self.users[index]:
                network.edge(2 * index + 1, 2 * user, INFINITE)
            if self.needed[index]:
                network.edge(2 * index + 1, sink, INFINITE)
        try:
            side = network.minimum_cut(source, sink)
        except ValueError as error:
            raise PartitionError(
                "no partition exists",
                "a value that can neither be saved nor computed again is needed by the backward",
                "use default_partition and report this graph",
            ) from error
        return [
            node
            for index, node in enumerate(self.nodes)
            if side[2 * index] and not side[2 * index + 1]
        ]

    def occupied(self, saved: list[fx.Node]) -> float:
        """Bytes that a set of saved values keeps alive beyond parameters and buffers."""
        return sum(
            saved_bytes(node.meta["val"])
            for node in saved
            if not (node.op == "placeholder" and node.meta["input"]["static"])
        )

    def cut_within(self, target: float, full: list[fx.Node]) -> list[fx.Node]:
        """The cut with the least repeated work found that keeps at most `target` bytes."""
        best, low, high, above = self.cut(0.0), 0.0, 1.0, full
        while high < _HIGHEST_PRICE:
            saved = self.cut(high)
            if self.occupied(saved) > target:
                above = saved
                break
            best, low, high = saved, high, 8.0 * high
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            saved = self.cut(middle)
            if self.occupied(saved) <= target:
                best, low = saved, middle
            else:
                above, high = saved, middle
        if self.occupied(best) > self.occupied(full):
            return full
        # Between two prices a cut changes by large steps.
        return self._filled(self._filled(best, above, target), full, target)

    def _filled(self, saved: list[fx.Node], more: list[fx.Node], target: float) -> list[fx.Node]:
        """A cut, and as much of another as still fits, what saves most work for its bytes first."""
        number = {node: index for index, node in enumerate(self.nodes)}
        kept = {number[node] for node in saved}
        left = [
            number[node]
            for node in more
            if number[node] not in kept and 0 < saved_bytes(node.meta["val"]) <= target
        ]
        left.sort(key=lambda index: -self.repeat[index] / max(1.0, self.save[index]))
        for index in left:
            tried = self._read_of({*kept, index}, number)
            if self.occupied([self.nodes[one] for one in tried]) <= target:
                kept = tried
        return [node for index, node in enumerate(self.nodes) if index in kept]

    def _read_of(self, saved: set[int], number: dict[fx.Node, int]) -> set[int]:
        """Those saved values that the backward still reads, or computes something from."""
        pending = [index for index, needed in enumerate(self.needed) if needed]
        seen = set(pending)
        found: set[int] = set()
        while pending:
            index = pending.pop()
            if index in saved:
                found.add(index)
                continue
            for source in self.nodes[index].all_input_nodes:
                above = number[source]
                if above not in seen:
                    seen.add(above)
                    pending.append(above)
        return found


def _each(node: fx.Node) -> float:
    """What keeping one more value costs beside its bytes, or writing one more in the backward."""
    value = node.meta["val"]
    on_processor = isinstance(value, FakeTensor) and value.device.type == "cpu"
    return _EACH if on_processor and node.op != "placeholder" else _EACH_ELSEWHERE


def _more_read(node: fx.Node, written: set[fx.Node]) -> float:
    """Bytes of a value's large operands in memory beyond the value's own."""
    own = saved_bytes(node.meta["val"])
    sources = map(memory_of, node.all_input_nodes)
    sizes = [saved_bytes(source.meta["val"]) for source in sources if source in written]
    large = [size for size in sizes if 2 * size >= own]
    return max(0.0, sum(large) - own) if len(large) > 1 else 0.0


def _operands(late: set[fx.Node]) -> set[fx.Node]:
    """What expensive operators of the backward read from memory, views and the tensors behind them.

    Not what is made from nothing: that is written and never read for.
    """
    found: set[fx.Node] = set()
    waiting = [
        source
        for node in late
        if node.op == "call_function" and kind_of(node) == "expensive"
        for source in node.all_input_nodes
        if source not in late
    ]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if node.op == "call_function" and not node.all_input_nodes:
            continue
        found.add(node)
        if node.op == "call_function" and kind_of(node) == "view":
            waiting.extend(node.all_input_nodes)
    return found


def _is_inside(node: fx.Node) -> bool:
    return bool(node.meta.get("recompute_region", 0))
