"""Other decompositions, from end to end: one operator kept whole, one taken apart otherwise, both checked.

A table is an immutable mapping from operators to functions. It is passed to `compile`; nothing is registered globally,
so two compiled functions of one process may mean different things by the same operator.
"""

import torch
from torch import Tensor

import compile_api
from primtorch import decomposition_table
from primtorch.errors import DecompositionError

aten = torch.ops.aten


def quick_gelu(x: Tensor, *, approximate: str = "none") -> Tensor:  # noqa: ARG001  an operator's own signature
    """gelu as x * sigmoid(1.702 x), what some models were trained with."""
    return aten.mul.Tensor(x, aten.sigmoid.default(aten.mul.Tensor(x, 1.702)))


def model(x: Tensor, weight: Tensor) -> Tensor:
    """A layer with two activations and a sum."""
    return torch.nn.functional.silu(torch.nn.functional.gelu(x @ weight)).sum()


x, weight = torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)
table = (
    decomposition_table("inductor")
    .without(aten.silu.default)
    .extended({aten.gelu.default: quick_gelu})
)
compiled = compile_api.compile(model, options={"decompositions": table})

hidden = x @ weight
expected = torch.nn.functional.silu(hidden * torch.sigmoid(1.702 * hidden)).sum()
torch.testing.assert_close(compiled(x, weight), expected)
torch.testing.assert_close(compile_api.compile(model)(x, weight), model(x, weight))  # as ever
compiled(x, weight).backward()
with torch.no_grad():
    difference = float(compiled(x, weight) - model(x, weight))
print("gelu is quick_gelu here: the results differ by", difference)


def wrong(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Another dtype than gelu's."""
    return quick_gelu(x, approximate=approximate).double()


# `verified` compares what each function returns with its operator's shape rule. In a compile: options={"verify": True}.
bad = table.extended({aten.gelu.default: wrong}).verified()
try:
    bad[aten.gelu.default](x)
except DecompositionError as error:
    print(error)
