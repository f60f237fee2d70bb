"""An output that the loss never reads sends no gradient: parameters behind it alone keep None, as in eager."""

import torch

from aot_autograd import aot_module
from primtorch import decomposition_table


class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 4)
        self.read = torch.nn.Linear(4, 2)
        self.unread = torch.nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.body(x).relu()
        return self.read(hidden), self.unread(hidden)


def test_parameters_behind_an_unread_output_get_no_gradient():
    torch.manual_seed(0)
    module = TwoHeads()
    compiled = aot_module(
        module,
        fw_compiler=lambda graph, _: graph.forward,
        decompositions=decomposition_table("inductor"),
    )
    x = torch.randn(5, 4)
    module(x)[0].sum().backward()
    expected = {name: p.grad for name, p in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    compiled(x)[0].sum().backward()
    for name, parameter in module.named_parameters():
        if expected[name] is None:
            assert parameter.grad is None, name
        else:
            torch.testing.assert_close(parameter.grad, expected[name])
    assert module.unread.weight.grad is None
