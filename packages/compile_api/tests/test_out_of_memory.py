"""Memory that is not there: what a compiled graph raises is eager's, and it runs when asked again with less."""

import pytest
import torch

import compile_api

HUGE = 1 << 23  # rows and columns: 2**48 bytes of float32, more than an address space has for one


def outer(x, y):
    return (x[:, None] * y[None, :]).relu()


def summed(x, y):
    table = torch.sort(x[:, None] * y[None, :], -1).values  # a vendor call between own kernels
    return table.sum()


@pytest.mark.parametrize("function", [outer, summed])
def test_running_out_of_memory_raises_as_eager_does_and_a_smaller_call_works(function):
    compiled = compile_api.compile(function, dynamic=True)
    x, y = torch.randn(8), torch.randn(9)
    torch.testing.assert_close(compiled(x, y), function(x, y))
    large = torch.randn(HUGE)
    with pytest.raises(RuntimeError) as eager:
        function(large, large)
    for _ in range(2):
        with pytest.raises(RuntimeError) as ours:
            compiled(large, large)
        assert type(ours.value) is type(eager.value)
        assert "allocate" in str(ours.value)
    torch.testing.assert_close(compiled(x, y), function(x, y))


def test_what_was_mutated_before_memory_ran_out_is_as_eager_leaves_it():
    def mutate(x, y):
        x.add_(1)
        return outer(x, y)

    compiled = compile_api.compile(mutate, dynamic=True)
    compiled(torch.randn(8), torch.randn(9))
    large = torch.zeros(HUGE)
    with pytest.raises(RuntimeError, match="allocate"):
        compiled(large, large)
    assert not large.any() or bool((large == 1).all())  # whole before, or whole after: never half


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("function", [outer, summed])
def test_on_a_card(function):
    compiled = compile_api.compile(function, dynamic=True)
    x, y = torch.randn(8, device="cuda"), torch.randn(9, device="cuda")
    compiled(x, y)
    large = torch.randn(1 << 19, device="cuda")
    before = torch.cuda.memory_allocated()
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            compiled(large, large)
        assert torch.cuda.memory_allocated() == before
    torch.testing.assert_close(compiled(x, y), function(x, y))
