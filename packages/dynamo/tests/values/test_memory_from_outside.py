"""Objects whose bytes anybody may write: no guard sees them, so they are read and written by the program itself."""

import array
import ctypes

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

MAKERS = {
    "bytearray": lambda: bytearray([3, 5, 7]),
    "memoryview": lambda: memoryview(bytearray([3, 5, 7])),
    "array": lambda: array.array("i", [3, 5, 7]),
    "ctypes": lambda: (ctypes.c_int * 3)(3, 5, 7),
    "storage": lambda: torch.tensor([3, 5, 7], dtype=torch.uint8).untyped_storage(),
}


def read_and_written(memory, x):
    memory[0] = memory[0] + 1
    return x * memory[0], x + sum(memory)


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_written_is_written_in_each_call(name):
    memory, other = MAKERS[name](), MAKERS[name]()
    compiled = dynamo.optimize(CompileCounter())(read_and_written)
    x = torch.ones(2)
    for _ in range(3):
        torch.testing.assert_close(compiled(memory, x), read_and_written(other, x))
        assert list(memory) == list(other)


@pytest.mark.parametrize("name", MAKERS)
def test_what_others_write_in_between_is_read(name):
    memory = MAKERS[name]()
    compiled = dynamo.optimize(CompileCounter())(lambda x: x * memory[1] + len(memory))
    for number in (4, 9, 6):
        memory[1] = number
        assert compiled(torch.ones(1)).item() == number + len(memory)


def test_the_size_of_a_storage_is_that_of_the_call():
    def size(x):
        return (x + 1).untyped_storage().nbytes() + x.untyped_storage().size()

    compiled = dynamo.optimize(CompileCounter())(size)
    for rows in (3, 5, 6):
        x = torch.ones(rows)
        assert compiled(x) == size(x)


def test_a_storage_is_made_by_the_program():
    def made(x):
        storage = torch.UntypedStorage(4)
        storage.fill_(2)
        return x * storage[0]

    compiled = dynamo.optimize(CompileCounter())(made)
    assert [compiled(torch.ones(n)).sum().item() for n in (2, 3)] == [4, 6]
