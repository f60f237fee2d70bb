"""What a call saves for its backward, kept beside autograd.

Autograd keeps saved tensors in a node, and a call with several results has no node that they could live in: one in the
graph frees them with the first backward through it. Comes in: what a context is told by the forward. Goes out: what it
tells the backward. Invariant: as in a context, a tensor that was changed since is not handed out, nor one that was
freed; what sees saved tensors (hooks) is not called, so this is for calls without any.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from aot_autograd._torch import refuse_to_hand_out, refuse_to_save

if TYPE_CHECKING:
    import torch

__all__ = ["SECOND_BACKWARD", "Stowed", "changed_since"]

SECOND_BACKWARD = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)

_version_of = attrgetter("_version")


def changed_since(tensor: torch.Tensor, version: int) -> RuntimeError:
    """Autograd's own error for a tensor that is not what was saved."""
    try:
        refuse_to_hand_out(tensor, version)
    except RuntimeError as error:
        return error
    # A hook of now has seen the tensor.
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} instead."
    )


class Stowed:
    """What is saved of one call, as a context has it.

    Attributes:
        to_save: The tensors; None once they are freed.
        kept: What else the backward reads.
        materialize_grads: As contexts have it; nothing comes of it.
        non_differentiable: The same.
    """

    __slots__ = (
        "_versions",
        "kept",
        "materialize_grads",
        "non_differentiable",
        "to_save",
    )

    def save_for_backward(self, *tensors: Any) -> None:
        """As contexts have it."""
        self.to_save: tuple[Any, ...] | None = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """As contexts have it."""

    def set_materialize_grads(self, value: bool) -> None:
        """As contexts have it."""

    def close(self) -> None:
        """From now on the tensors are saved.

        Raises:
            RuntimeError: autograd's own, if it doesn't save such.
        """
        tensors: Any = self.to_save
        try:
            self._versions = list(map(_version_of, tensors))
        except RuntimeError:
            refuse_to_save(tensors)
            raise

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors.

        Raises:
            RuntimeError: autograd's own, if one was changed, or they were freed.
        """
        tensors = self.to_save
        if tensors is None:
            raise RuntimeError(SECOND_BACKWARD)
        if list(map(_version_of, tensors)) != self._versions:
            for tensor, version in zip(tensors, self._versions, strict=True):
                if tensor._version != version:
                    raise changed_since(tensor, version)
        return tensors

    @property
    def _raw_saved_tensors(self) -> list[_Raw]:
        """The tensors, whatever their versions are by now: as `_torch.unchecked` takes them."""
        if self.to_save is None:
            raise RuntimeError(SECOND_BACKWARD)
        return list(map(_Raw, self.to_save))

    def maybe_clear_saved_tensors(self) -> None:
        """Free them."""
        self.to_save = None


class _Raw:
    """A saved tensor that no hook has seen."""

    __slots__ = ("data",)

    unpack_hook = None

    def __init__(self, data: Any) -> None:
        self.data = data
