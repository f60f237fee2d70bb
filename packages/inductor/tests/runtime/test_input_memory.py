"""The launcher reads an input's address in place only where that is what the C ABI would say."""

import pytest
import torch
from torch import nn

from inductor.runtime.launch import native_launcher

pytestmark = pytest.mark.skipif(native_launcher() is None, reason="the C launcher is not built")


def memory(tensor):
    from inductor.runtime import _launch

    return _launch.memory(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_plain_tensors_are_read_in_place(dtype):
    whole = torch.zeros(4, 6, dtype=dtype)
    for tensor in (whole, whole.t(), whole[:2, ::2], whole.view(-1), torch.zeros((), dtype=dtype)):
        assert memory(tensor) == tensor.data_ptr() != 0


def test_parameters_and_what_needs_gradients():
    parameter = nn.Parameter(torch.ones(3))
    for tensor in (parameter, parameter * 2, parameter.detach()):
        assert memory(tensor) == tensor.data_ptr() != 0


def test_memory_of_others():
    numbers = torch.frombuffer(bytearray(64), dtype=torch.float32)
    assert memory(numbers) == numbers.data_ptr()
    with torch.inference_mode():
        made = torch.ones(3)
    assert memory(made) == made.data_ptr()


class Marked(torch.Tensor):
    pass


def test_everything_else_is_left_to_the_abi():
    with_offset = torch.ones(8)[3:]
    sparse = torch.eye(3).to_sparse()
    others = [with_offset, torch.empty(0), torch.empty(3, device="meta"), sparse]
    for tensor in [*others, torch.ones(2).as_subclass(Marked)]:
        assert memory(tensor) == 0


def test_memory_that_moves_is_read_anew():
    tensor = torch.ones(4)
    for size in (4, 4000, 40000):
        tensor.resize_(size)
        assert memory(tensor) == tensor.data_ptr()
    tensor.set_(torch.ones(5).untyped_storage(), 2, (3,))
    assert memory(tensor) == 0
