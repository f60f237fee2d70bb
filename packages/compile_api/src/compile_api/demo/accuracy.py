"""How far results are from the truth: eager in float64, for ours and for eager in the tested type.

In: tensors by name from three runs. Out: the largest relative error over the names, with the name.
Invariant: the error of a tensor is |x - truth| / max(|truth|, 1e-4 of the largest truth), in the
2-norm: a gradient that is zero in exact arithmetic is judged on the scale of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

__all__ = ["Error", "largest_error"]


@dataclass(frozen=True, slots=True)
class Error:
    """The largest relative error, and the tensor that has it."""

    value: float
    name: str


def largest_error(actual: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> Error:
    """Compares tensors by name with the float64 ones.

    Raises:
        KeyError: a name of the truth is missing.
    """
    norms = {name: torch.linalg.vector_norm(value).item() for name, value in truth.items()}
    floor = 1e-4 * max(norms.values(), default=0.0)
    worst = Error(0.0, "")
    for name, value in truth.items():
        difference = torch.linalg.vector_norm(actual[name].to(torch.float64) - value).item()
        error = difference / max(norms[name], floor, 1e-300)
        if not error <= worst.value:  # a nan is an error too
            worst = Error(error, name)
    return worst
