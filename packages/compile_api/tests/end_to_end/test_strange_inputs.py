"""Inputs that no example in a manual has: compiled programs read them as eager does, or raise as it does."""

import pytest
import torch

import compile_api


def zeros_without_memory():
    x = torch.randn(3, requires_grad=True)
    return torch.autograd.grad(torch.sgn(x).sum(), x)[0]


INPUTS = {
    "zeros without memory": zeros_without_memory,
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "expanded": lambda: torch.randn(1).expand(3),
    "empty": lambda: torch.empty(0),
    "number": lambda: torch.tensor(2.5),
    "window": lambda: torch.randn(9)[1::3],
}


@pytest.mark.parametrize("name", INPUTS)
def test_any_memory_is_read_as_eager_reads_it(name):
    def function(x):
        return x * 2 + 1, x.abs()

    x = INPUTS[name]()
    compiled = compile_api.compile(function)
    for found, expected in zip(compiled(x), function(x), strict=True):
        assert torch.allclose(found, expected)


def outcome(function, *arguments):
    """What a call returns or raises."""
    try:
        return function(*arguments)
    except (IndexError, RuntimeError) as error:
        return error


BAD_INDICES = {
    "index": lambda x, i: x[i] * 2,
    "two indices": lambda x, i: x[:, i] * 2,
    "select": lambda x, i: x.index_select(0, i) + 1,
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "put": lambda x, i: x.index_put((i,), torch.ones(())),
    "add": lambda x, i: x.index_add(0, i, torch.ones(len(i), x.shape[1])),
    "copy": lambda x, i: x.index_copy(0, i, torch.ones(len(i), x.shape[1])),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BAD_INDICES)
def test_a_bad_index_raises_what_eager_raises(name, dynamic):
    function = BAD_INDICES[name]
    compiled = compile_api.compile(function, dynamic=dynamic)
    for shape in ((4, 4), (5, 5), (0, 2), (2, 0), (0, 0)):
        for index in ([0, 1], [0, -1], [5, 9]):
            x, i = torch.randn(shape), torch.tensor(index)
            expected = outcome(function, x, i)
            found = outcome(compiled, x, i)
            if isinstance(expected, torch.Tensor):
                assert torch.equal(found, expected), (shape, index)
            else:
                assert type(found) is type(expected), (shape, index)


def test_a_window_of_a_wider_tensor_is_not_taken_for_a_whole():
    def function(x):
        return x.transpose(0, 1) * 2, (x + 1).view(-1)

    compiled = compile_api.compile(function, dynamic=True)
    for x in (torch.randn(4, 6), torch.randn(8, 5), torch.randn(10, 9)[::2], torch.randn(7, 9)):
        for found, expected in zip(compiled(x), function(x), strict=True):
            assert torch.equal(found, expected)
