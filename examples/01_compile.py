"""A function and a module, compiled; values and gradients are eager's.

python examples/01_compile.py
"""

import torch
from torch import Tensor, nn

import compile_api


@compile_api.compile
def normalize(x: Tensor) -> Tensor:
    """Brings each row to mean 0 and deviation 1."""
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()


def main() -> None:
    """Compares with eager."""
    torch.manual_seed(0)
    x = torch.randn(8, 32)
    torch.testing.assert_close(normalize(x), nn.functional.layer_norm(x, (32,)))

    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
    compiled = compile_api.compile(model)
    compiled(x).square().sum().backward()
    actual = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).square().sum().backward()
    for gradient, parameter in zip(actual, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
    print(f"{compile_api.graph_count()} graphs; values and gradients as eager")


if __name__ == "__main__":
    main()
