"""Points between the results of a call: views among what it gives, and arguments that it writes.

Real autograd makes a point, of the results or arguments before it (`runtime.Building`), and the results after it have
an edge to it; so what arrives there, and whoever looks at it, is autograd's own affair, as soon as something is sent.
That is only where somebody looks, else the compiled backward goes through it. Comes in: the connections, in which
points are numbered behind the results, and the tensors. Goes out: which points a backward has to end at. Invariant: a
hook is noted when it is registered, in dicts that autograd itself calls; nothing here changes a node in a backward.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any
from weakref import ref

from aot_autograd.connections import bits_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from aot_autograd.connections import Connections

__all__ = ["Points", "Watched"]


class Points:
    """The points of one compiled graph.

    Args:
        found: What is behind results and points.
        keys: `FunctionMetadata.points`.

    Attributes:
        keys: The same.
        leading: The results that lead to a point, without another result or point between.
    """

    __slots__ = ("_after", "_behind", "_first", "keys", "leading")

    def __init__(self, found: Connections, keys: Sequence[int]) -> None:
        self.keys = tuple(keys)
        self._first = len(found.reached)
        of_points = -1 << self._first
        self.leading = tuple(
            [number for number in range(self._first) if found.made_of[number] & of_points]
        )
        self._behind = [0] * len(found.made_of)
        after: dict[int, int] = {}
        for number in found.order:  # what one is made of is before it
            direct = found.made_of[number]
            for one in bits_of(direct):
                self._behind[number] |= 1 << one | self._behind[one]
            if number >= self._first:
                after[number] = direct
                for one in bits_of(direct):
                    after[number] |= after.get(one, 0)
        self._after = after

    def behind(self, results: int) -> int:
        """The results and points that some of these results lead to; all as bits."""
        found = 0
        for number in bits_of(results):
            found |= self._behind[number]
        return found

    def with_those_before(self, observed: int) -> int:
        """With the points from which autograd leads to those of these bits: what arrives there must be sent on."""
        for point, further in self._after.items():
            if further & observed:
                observed |= 1 << point
        return observed


class Watched:
    """Whether somebody looks at a point: at the tensor, or at a node of autograd from it to what it is made of.

    Args:
        tensor: The tensor.
        base: What it is a view of; None of an argument that is written.

    Attributes:
        tensor: The tensor, as long as Python knows it.
    """

    __slots__ = ("_hooks", "_version", "tensor")

    def __init__(self, tensor: torch.Tensor, base: torch.Tensor | None) -> None:
        self.tensor = ref(tensor)
        self._version = tensor._version
        self._hooks: list[Any] = []
        node = tensor.grad_fn
        if node is None:
            return
        if tensor._backward_hooks is None:
            tensor._backward_hooks = OrderedDict()
            node._register_hook_dict(tensor)
        self._hooks.append(tensor._backward_hooks)
        last = None if base is None else base.grad_fn
        while node is not None and node is not last and not hasattr(node, "variable"):
            self._hooks += _hooks_of(node)
            node = None if base is None else node.next_functions[0][0]

    def unchanged(self) -> torch.Tensor | None:
        """The tensor, if Python knows it and nobody wrote into it or cut it off since."""
        tensor = self.tensor()
        if tensor is None or tensor._version != self._version or tensor.grad_fn is None:
            return None
        return tensor

    def __call__(self) -> bool:
        """Whether it is so now."""
        tensor = self.tensor()
        return any(self._hooks) or (tensor is not None and tensor.retains_grad)


def _hooks_of(node: Any) -> list[Any]:
    found = []
    for register in (node.register_hook, node.register_prehook):
        handle = register(_nothing)
        found.append(handle.hooks_dict_ref())
        handle.remove()
    return found


def _nothing(*_gradients: Any) -> None:
    return None
