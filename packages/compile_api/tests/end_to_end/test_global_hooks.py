"""Hooks of all modules see the program's modules and their results, never the graphs that were made of them."""

import pytest
import torch
from torch.nn.modules import module as modules
from torch.utils.checkpoint import checkpoint

import compile_api


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Hooked(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(3, 3), torch.nn.Tanh())
        self[1].register_full_backward_hook(lambda module, given, taken: (given[0] * 2,))


class Function(torch.nn.Linear):
    def forward(self, x):
        return Twice.apply(super().forward(x).exp())


class Checkpointed(torch.nn.Linear):
    def forward(self, x):
        return checkpoint(torch.nn.functional.linear, x, self.weight, use_reentrant=False).sin()


class Mapped(torch.nn.Linear):
    def forward(self, x):
        return torch.func.vmap(lambda row: row.softmax(-1))(super().forward(x))


class GradientHook(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        y.register_hook(lambda gradient: gradient * 3)
        return y.sin()


@pytest.mark.parametrize("backend", ["inductor", "eager"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("kind", [Hooked, Function, Checkpointed, Mapped, GradientHook])
def test_they_see_and_change_what_eager_gives_them(kind, before, backend):
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = kind(3, 3) if kind is not Hooked else kind()
        x, seen = torch.randn(2, 3, requires_grad=True), []
        options = {"strict": True} if backend == "inductor" else None
        call = compile_api.compile(module, backend=backend, options=options) if compiled else module
        if before:
            call(x).sum().backward()

        def hook(one, given, result, seen=seen):
            seen.append(type(one).__name__)
            return result * 2

        handle = modules.register_module_forward_hook(hook)
        try:
            for _ in range(2):
                call(x).sum().backward()
        finally:
            handle.remove()
        found.append((seen, x.grad, [one.grad for one in module.parameters()]))
    (seen, *gradients), (seen_then, *gradients_then) = found
    assert seen_then == seen
    torch.testing.assert_close(gradients_then, gradients)
