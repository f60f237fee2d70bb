"""One model ready to run: a module, an inference, a training step.

In: what a builder made. Out: a `Subject`. Invariant: `infer` and `loss` only call the target that they
are handed, so that the module, its float64 twin and the compiled module run the same Python; all
randomness of a step (dropout, masks) is switched off, so that three runs can be compared.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

__all__ = ["NotInstalled", "Subject", "call", "loss_of_result", "still", "tensors_of", "wake"]


QUIET = 1e-2


class NotInstalled(Exception):
    """The package that builds this model isn't in the environment."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with its inputs; `inputs` and `training_inputs` are pytrees of tensors and numbers."""

    module: nn.Module
    inputs: dict[str, Any]
    training_inputs: dict[str, Any] | None = None  # None: the model isn't trained (decoding)
    infer: Callable[[Any, dict[str, Any]], Any] = lambda target, inputs: target(**inputs)
    loss: Callable[[Any, dict[str, Any]], Tensor] = lambda target, inputs: target(**inputs).loss
    graphs: int = 1  # how many an inference needs by its nature (prefill, decode, growing sizes)
    resize: Callable[[int, int], dict[str, Any]] | None = None  # inputs of another batch and length

    def double(self) -> Subject:
        """A twin in float64 with the same weights."""

        def widen(leaf: Any) -> Any:
            return (
                leaf.double()
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
                else leaf
            )

        module = copy.deepcopy(self.module).double()
        _compute_in_double(module)
        inputs, training = pytree.tree_map(widen, (self.inputs, self.training_inputs))
        return replace(self, module=module, inputs=inputs, training_inputs=training)


def _compute_in_double(module: nn.Module) -> None:
    """transformers reads the dtype of masks and caches from the configuration."""
    for part in module.modules():
        config = getattr(part, "config", None)
        if getattr(config, "dtype", None) is not None:
            config.dtype = torch.float64


def call(target: Any, inputs: dict[str, Any]) -> Any:
    """The plainest inference: positional, in the order of `inputs`."""
    return target(*inputs.values())


def loss_of_result(target: Any, inputs: dict[str, Any]) -> Tensor:
    """A loss for models that bring none: the mean square of every floating output."""
    parts = [
        leaf.square().mean()
        for _, leaf in tensors_of(target(*inputs.values()))
        if leaf.is_floating_point()
    ]
    return torch.stack(parts).sum()


def still(module: nn.Module) -> nn.Module:
    """Switches off what draws random numbers in a training step."""
    for part in module.modules():
        if isinstance(part, nn.Dropout | nn.Dropout1d | nn.Dropout2d):
            part.p = 0.0
        for name, value in list(vars(part).items()):
            if isinstance(value, float) and ("drop" in name or "mask_time_prob" in name):
                setattr(part, name, 0.0)
    return module


def wake(module: nn.Module) -> nn.Module:
    """Draws the parameters that start at zero or next to it (biases, scales of residual branches, tokens).

    With their first values whole branches would have no influence and no gradient, and be right whatever they compute.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.is_floating_point() and float(parameter.abs().max()) < QUIET:
                parameter.normal_(std=0.1)
    return module


def tensors_of(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a result with their places: tuples, dicts, model outputs, caches."""
    match value:
        case torch.Tensor():
            yield path, value
        case dict():
            for key, item in value.items():
                yield from tensors_of(item, f"{path}.{key}" if path else str(key))
        case list() | tuple():
            for index, item in enumerate(value):
                yield from tensors_of(item, f"{path}[{index}]")
        case _ if hasattr(value, "layers") or hasattr(value, "self_attention_cache"):  # HF's caches
            for name in ("self_attention_cache", "cross_attention_cache", "layers"):
                yield from tensors_of(getattr(value, name, None), f"{path}.{name}")
        case _ if hasattr(value, "keys") and isinstance(value.keys, torch.Tensor):  # one layer's
            yield f"{path}.keys", value.keys
            yield f"{path}.values", value.values
