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


def test_an_operator_that_writes_what_it_does_not_return():
    def function(x, mean, variance):
        return torch._native_batch_norm_legit(x, None, None, mean, variance, True, 0.5, 1e-5)

    x = torch.randn(2, 3, 4)
    found_state, expected_state = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    found = compile_api.compile(function)(x, *found_state)
    expected = function(x, *expected_state)
    assert len(found) == 3
    for one, other in zip((*found, *found_state), (*expected, *expected_state), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_indices_computed_for_each_lane_of_a_sweep(recwarn):
    def function(x, grid):
        return torch.nn.functional.grid_sample(x, grid, align_corners=False).sum((0, 2))

    x, grid = torch.randn(2, 3, 5, 5, requires_grad=True), torch.rand(2, 4, 6, 2) * 2 - 1
    found, expected = compile_api.compile(function)(x, grid), function(x, grid)
    assert torch.allclose(found, expected, atol=1e-5)
    tangent = torch.randn_like(expected)
    (one,), (other,) = (torch.autograd.grad(y, x, tangent) for y in (found, expected))
    assert torch.allclose(one, other, atol=1e-5)


CLAMPS = {
    "relu": torch.relu,
    "relu6": torch.nn.functional.relu6,
    "clamp": lambda x: x.clamp(0, 1),
    "clamp_max": lambda x: x.clamp(max=0),
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, 0, 1),
    "fmax": lambda x: torch.fmax(x, -x),
    "fmin": lambda x: torch.fmin(x, -x),
}


@pytest.mark.parametrize("name", CLAMPS)
def test_zeros_keep_their_sign(name):
    x = torch.tensor([-0.0, 0.0, 0.5, 1.0, -1.0] * 5)
    found, expected = (run(x) for run in (compile_api.compile(CLAMPS[name]), CLAMPS[name]))
    torch.testing.assert_close(found, expected)
    assert torch.equal(torch.signbit(found), torch.signbit(expected))


def test_tensors_without_data_run_by_torch():
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).to("meta")
    output = compile_api.compile(model, options={"strict": True})(torch.empty(2, 4, device="meta"))
    output.sum().backward()
    assert output.device.type == model[0].weight.grad.device.type == "meta"
    assert output.shape == (2, 3)


@pytest.mark.parametrize("wrong", [3, -1])
def test_a_class_out_of_range_raises(wrong):
    def function(classes):
        return torch.nn.functional.one_hot(classes, 3).float() @ torch.ones(3, 2)

    compiled = compile_api.compile(function)
    torch.testing.assert_close(compiled(torch.tensor([0, 2])), torch.ones(2, 2))
    for run in (function, compiled):
        with pytest.raises(RuntimeError):
            run(torch.tensor([0, wrong]))


@pytest.mark.parametrize("wrong", [5, -1])
@pytest.mark.parametrize("pixels", [False, True])
def test_a_target_out_of_range_is_an_index_error(wrong, pixels):
    def function(x, targets):
        if pixels:
            x, targets = (
                x[..., None, None].expand(4, 5, 2, 2),
                targets[:, None, None].expand(4, 2, 2),
            )
        return torch.nn.functional.cross_entropy(x, targets)

    compiled = compile_api.compile(function)
    x = torch.randn(4, 5, requires_grad=True)
    good = torch.tensor([0, -100, 4, 2])
    torch.testing.assert_close(compiled(x, good), function(x, good))
    for run in (function, compiled):
        with pytest.raises(IndexError):
            run(x, torch.tensor([0, 1, wrong, 2]))


def test_integers_with_a_history_are_a_break_with_a_reason():
    """Eager lets a tensor with a gradient be written into integers, whose history then leads nowhere."""

    def made():
        torch.manual_seed(0)
        x, numbers = torch.randn(3).requires_grad_(), torch.zeros(3, dtype=torch.long)
        numbers[:2] = x.sum() * 9
        assert numbers.requires_grad
        return numbers, x

    def read(numbers, x):
        return numbers.float() * x

    def written(numbers, x):
        numbers = torch.zeros_like(numbers).detach()
        numbers[:2] = x.sum() * 9
        return numbers.float() * x

    with pytest.raises(Exception, match="is of torch.int64 and has a history"):
        compile_api.compile(read, fullgraph=True)(*made())
    for function in (read, written):
        compiled = compile_api.compile(function, options={"strict": True})
        for _ in range(2):
            found, expected = compiled(*made()), function(*made())
            torch.testing.assert_close(found, expected)
            assert found.requires_grad
