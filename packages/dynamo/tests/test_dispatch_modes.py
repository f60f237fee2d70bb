"""A call under a dispatch mode of the user's: the mode sees each operator, as in eager."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dynamo
from dynamo.testing import CompileCounter


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class Indifferent(Seen):
    """Says that compiled code may hide its operators."""

    @classmethod
    def ignore_compile_internals(cls):
        return True


def test_runs_eagerly_under_a_mode_and_compiled_outside():
    def inner(x):
        return x.cos()

    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(lambda x: inner(x.sin()) * 2)
    x = torch.randn(3)
    for frames in (0, 1):
        with Seen() as mode:
            got = compiled(x)
        assert mode.names == ["aten::sin", "aten::cos", "aten::mul.Tensor"]
        assert counter.frame_count == frames
        assert torch.equal(got, x.sin().cos() * 2)
        compiled(x)
        assert counter.frame_count == 1


def test_a_mode_that_ignores_what_compilers_do_keeps_the_graph():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(lambda x: x.sin() * 2)
    with Indifferent():
        compiled(torch.randn(3))
    assert counter.frame_count == 1
