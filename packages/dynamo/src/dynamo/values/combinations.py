"""`torch.combinations`: in C++ a mask chooses, whose count is asked of its data, though it follows from the size."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.values.operators import plain_numbers
from dynamo.values.rules import rule

if TYPE_CHECKING:
    from torch import Tensor

    from dynamo.machine.interpreter import Machine

_MOST = 1 << 22  # places that are kept as a constant


def chosen(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """The combinations as rows of `r` elements, as `torch.combinations` gives them.

    Raises:
        RuntimeError: eager refuses the arguments, in other words.
        GraphBreak: there are very many.
    """
    if input.dim() != 1 or r < 0:
        raise RuntimeError("combinations are of elements of a vector, and of none or more")
    if r == 0:
        return torch.empty(0, dtype=input.dtype, device=input.device)
    size = plain_numbers(input.shape[0])
    count = math.comb(size + r - 1 if with_replacement and size else size, r)
    if count * r > _MOST:
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, f"{count} combinations are asked for")
    among = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = torch.tensor(list(among(range(size), r)), dtype=torch.int64, device=input.device)
    return input[places.reshape(-1, r)]


@rule(torch.combinations)
def _combinations(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    del machine
    return chosen(*args, **kwargs)
