# ruff: noqa: UP031, UP032 - the captured programs are written as users do
"""Sizes and numbers that change: one more compile, then symbolic."""

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

STRICT = dynamo.DynamoOptions(strict=True)


def compiled_with(function, **settings):
    counter = CompileCounter()
    return counter, dynamo.optimize(counter, options=STRICT, **settings)(function)


def mixed(x, y):
    n = x.shape[0]
    return torch.cat([x, y]).reshape(-1) * n + y.size(0) // 2, n * 2


def test_a_changing_size_compiles_twice():
    counter, compiled = compiled_with(mixed)
    for n in (3, 5, 7, 11):
        x, y = torch.randn(n, 4), torch.randn(2 * n, 4)
        assert same(compiled(x, y), mixed(x, y))
    assert counter.frame_count == 2


def test_dynamic_from_the_start():
    counter, compiled = compiled_with(mixed, dynamic=True)
    for n in (3, 5, 7):
        x, y = torch.randn(n, 4), torch.randn(2 * n, 4)
        assert same(compiled(x, y), mixed(x, y))
    assert counter.frame_count == 1
    kinds = [
        n.meta["input"]["kind"] for n in counter.graphs[0].graph.nodes if n.op == "placeholder"
    ]
    assert kinds == sorted(kinds, key=["size", "scalar", "argument"].index)


def test_never_dynamic():
    counter, compiled = compiled_with(mixed, dynamic=False)
    for n in (3, 5, 7):
        x, y = torch.randn(n, 4), torch.randn(2 * n, 4)
        assert same(compiled(x, y), mixed(x, y))
    assert counter.frame_count == 3


def test_a_changing_integer():
    def function(x, n):
        return x * n + n // 2, n

    counter, compiled = compiled_with(function)
    x = torch.randn(3)
    for n in (5, 9, 14, 200, -7):
        assert same(compiled(x, n), function(x, n))
    assert counter.frame_count == 2


def test_a_changing_float():
    def function(x, scale):
        return x * scale + (scale + 1)

    counter, compiled = compiled_with(function)
    x = torch.randn(3)
    for scale in (0.5, 1.5, 2.5, -3.5):
        assert same(compiled(x, scale), function(x, scale))
    assert counter.frame_count == 2


def test_a_branch_on_a_size_is_guarded():
    def function(x):
        return x + 1 if x.shape[0] > 5 else x - 1

    counter, compiled = compiled_with(function, dynamic=True)
    for n in (3, 4, 8, 9, 2):
        x = torch.randn(n)
        assert same(compiled(x), function(x))
    assert counter.frame_count == 2


def test_an_empty_tensor_is_its_own():
    counter, compiled = compiled_with(lambda x: x * x.shape[0], dynamic=True)
    for size in (4, 5, 0):
        x = torch.randn(size, 2)
        assert same(compiled(x), x * x.shape[0])
    assert counter.frame_count == 2


def _attend(x):
    return torch.softmax(x @ x.transpose(-1, -2), -1).sum(1)


_ONE_OF_MANY = {
    "linear": torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LayerNorm(4), torch.nn.GELU()),
    "two inputs": lambda x: x + torch.ones_like(x)[:, :1] * x.mean(0),
    "reshaped": lambda x: x.view(x.shape[0], -1, 2).permute(0, 2, 1).reshape(x.shape[0], -1),
    "attention": lambda x: _attend(x.view(-1, 3, 2)),
    "convolution": lambda x: torch.conv1d(x[:, None], torch.ones(2, 1, 3)).flatten(1),
    "sums": lambda x: x.sum(0) + x.amax(0),
}


@pytest.mark.parametrize("name", _ONE_OF_MANY)
def test_a_batch_of_one_needs_no_version_where_nothing_depends_on_it(name):
    function = _ONE_OF_MANY[name]
    counter, compiled = compiled_with(function)
    for size in (4, 5, 1, 7):
        x = torch.randn(size, 6)
        result, expected = compiled(x), function(x)
        assert same(result, expected)
        assert result.stride() == expected.stride()
    assert counter.frame_count == 2


_ONE_BY_ITSELF = {
    "squeezed": lambda x: x.squeeze(0) * 2,
    "asked": lambda x: x + 1 if x.shape[0] == 1 else x - 1,
    "broadcast": lambda x: x + torch.ones(5, 6) if x.shape[0] in (1, 5) else x,
    "layout": lambda x: x.t().contiguous(),
    "one less": lambda x: x[1:].max(0).values if x.shape[0] > 1 else x,
}


@pytest.mark.parametrize("name", _ONE_BY_ITSELF)
def test_a_batch_of_one_is_its_own_where_it_means_something_else(name):
    function = _ONE_BY_ITSELF[name]
    _, compiled = compiled_with(function)
    for size in (4, 3, 1, 5, 1):
        x = torch.randn(size, 6)
        result, expected = compiled(x), function(x)
        assert same(result, expected)
        assert result.stride() == expected.stride()
        assert (result.data_ptr() == x.data_ptr()) == (expected.data_ptr() == x.data_ptr())


def test_text_of_symbolic_numbers():
    def function(x):
        n = x.shape[0]
        return x + 1, f"{n:03d} {n!r} {tuple(x.shape)}", "%s %d" % (n, n), "{}".format(n), str([n])

    _, compiled = compiled_with(function, dynamic=True)
    for n in (3, 5):
        x = torch.randn(n)
        assert same(compiled(x), function(x))


def test_numbers_of_modules_are_symbolic_only_once_they_change():
    class Heads(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = 4

        def forward(self, x):
            return x.view(x.shape[0], self.heads, -1) * self.heads

    counter, compiled = compiled_with(Heads(), dynamic=True)
    for n in (3, 5, 7):
        assert compiled(torch.randn(n, 12)).shape == (n, 4, 3)
    names = [n.meta["input"]["name"] for n in counter.graphs[0].graph.find_nodes(op="placeholder")]
    assert counter.frame_count == 1
    assert not any("heads" in name for name in names), names


def test_a_cache_as_long_as_the_prompt_grows_in_one_graph():
    class Cache:
        keys = None

    def attend(x, cache):
        keys = x if cache.keys is None else torch.cat([cache.keys, x], 1)
        cache.keys = keys
        return (x @ keys.transpose(1, 2)).softmax(-1) @ keys

    counter, compiled = compiled_with(attend)
    cache, twin = Cache(), Cache()
    for length in (7, 1, 1, 1, 1):
        x = torch.randn(2, length, 8)
        assert same(compiled(x, cache), attend(x, twin))
    assert counter.frame_count == 2


@pytest.mark.parametrize("limits", [{}, {"min": 2, "max": 64}])
def test_a_mark_that_the_program_breaks_is_an_error(limits):
    def function(x):
        return x + 1 if x.shape[0] == 8 else x - 1

    x = torch.randn(8, 3)
    dynamo.mark_dynamic(x, 0, **limits)
    _, compiled = compiled_with(function)
    with pytest.raises(
        dynamo.UsageError, match=r"x\.size\(0\) is marked dynamic.*(?s:.)*== 8 else"
    ):
        compiled(x)


def test_a_mark_whose_limits_the_program_breaks_is_an_error():
    x = torch.randn(8, 3)
    dynamo.mark_dynamic(x, 0, min=4, max=64)
    _, compiled = compiled_with(lambda x: x + 1 if x.shape[0] < 32 else x - 1)
    with pytest.raises(dynamo.UsageError, match="64"):
        compiled(x)


@pytest.mark.parametrize(
    ("function", "most"),
    [
        (lambda x: x + torch.tensor(x.shape[0]), 2),
        (lambda x: torch.tensor([[x.shape[0], 2.0], [1, x.shape[1]]]), 2),
        (lambda x: torch.tensor(x.shape).sum(), 2),
        (lambda x: x * torch.sqrt(torch.tensor(x.shape[0], dtype=torch.float)), 2),
        (lambda x: x[: torch.tensor(min(x.shape[0], 512)) - 1], 2),
        (lambda x: x[torch.tensor(x.shape[0]) // 2 :], 2),
        (lambda x: x.clamp(0, torch.tensor(x.shape[0]) * 2 - 1), 2),
        (lambda x: x * torch.tensor(x.shape[0]).item(), 2),
        (lambda x: x * (2 if torch.tensor(x.shape[0]) > 1 else 3), 2),
        # other arithmetic fixes the size, and only where the number is asked for
        (lambda x: x * torch.tensor(x.shape[0]).float().sqrt().item(), 4),
        (lambda x: x * (2 if torch.tensor(x.shape[0]).float() > 0.5 else 3), 4),
    ],
)
def test_tensors_of_one_size_stay_symbolic(function, most):
    counter, compiled = compiled_with(function, fullgraph=True)
    for rows, columns in ((2, 8), (3, 6), (4, 9), (5, 7)):
        x = torch.randn(rows, columns)
        assert same(compiled(x), function(x))
    assert counter.frame_count <= most


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.arange(x.shape[1], -x.shape[1], -1.0),
        lambda x: torch.arange(x.shape[1], -x.shape[1], -1.0, dtype=torch.int64),
        lambda x: torch.arange(0, x.shape[1], 0.5),
        lambda x: torch.arange(0.25, x.shape[1], 2),
        lambda x: torch.arange(0.25, x.shape[1], 2, dtype=torch.int64),
    ],
)
def test_ranges_of_a_size_in_steps_of_a_float(function):
    counter, compiled = compiled_with(function, fullgraph=True)
    for rows, columns in ((2, 8), (3, 6), (4, 9), (5, 7)):
        x = torch.randn(rows, columns)
        assert same(compiled(x), function(x))
    assert counter.frame_count == 2


_PINNED_BY_TORCH = {
    "item": lambda x: x[x.shape[0] - 2] + x[x.shape[0] // 2, ..., 1:3].sum(),
    "assigned item": lambda x: _assigned(x.clone()),
    "linspace": lambda x: torch.linspace(0, 1, x.shape[0])[:, None] * x,
    "pooling": lambda x: torch.nn.functional.max_pool1d(x.T[None], 3, 2, ceil_mode=True),
    "distances": lambda x: torch.cdist(x, x),
}


def _assigned(y):
    y[y.shape[0] - 2, 0] = 7
    y[y.shape[0] - 1] = y[0]
    return y


@pytest.mark.parametrize("name", _PINNED_BY_TORCH)
@pytest.mark.parametrize("gradient", [False, True])
def test_sizes_that_torch_reads_as_numbers_stay_symbolic(name, gradient):
    function = _PINNED_BY_TORCH[name]
    counter, compiled = compiled_with(function)
    for size in (6, 9, 12, 5):
        x = torch.randn(size, 4, requires_grad=gradient)
        result, expected = compiled(x), function(x)
        torch.testing.assert_close(result, expected)
        if gradient:
            grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (result, expected)]
            torch.testing.assert_close(*grads)
    assert counter.frame_count == 2


def window(x):
    return (x * 2).sum(0) + x.stride(0), x.transpose(0, 1)[1:]


def test_windows_of_tensors_whose_sizes_vary_get_symbolic_strides():
    """A mask of all positions, of which each call takes a row: shape (n,) or (b, n), stride n * n."""
    counter, compiled = compiled_with(window)
    for width in (8, 16, 24, 32):
        x = torch.randn(5, width, 3)[:, 2]
        assert same(compiled(x), window(x))
        assert compiled(x)[1].stride() == window(x)[1].stride()
    assert counter.frame_count == 2


def test_strides_that_once_followed_from_sizes_and_then_do_not():
    counter, compiled = compiled_with(window)
    for rows, width, taken in ((4, 8, 8), (5, 6, 6), (4, 9, 7), (6, 12, 5), (3, 7, 6)):
        x = torch.randn(rows, width)[:, :taken]
        assert same(compiled(x), window(x))
    assert counter.frame_count == 3, "one static, one contiguous, one for all windows"


@pytest.mark.parametrize("mode", ["floor", "trunc", None])
@pytest.mark.parametrize("offset", [0, 50])
def test_tensors_made_of_sizes_by_arithmetic_serve_as_sizes(mode, offset):
    """`torch.div(length, 4, rounding_mode="trunc")` is a tensor; transformers hands such ones to `new_zeros`."""

    def function(x):
        parts = torch.div(x.shape[1] - offset, 4, rounding_mode=mode)
        if mode is None:
            return x + parts
        return x.new_zeros((x.shape[0], abs(parts - 1) + 1, 2)) + x.sum(), parts

    counter, compiled = compiled_with(function)
    for length in (24, 17, 10, 35):
        x = torch.randn(3, length)
        assert same(compiled(x), function(x))
    assert counter.frame_count <= (2 if mode is None or offset == 0 else 3)


def padded(tokens, mask=None):
    extra = -tokens.shape[1] % 8
    if extra > 0:
        tokens = torch.nn.functional.pad(tokens, (0, extra), value=1)
    windows = tokens.view(tokens.shape[0], -1, 8).sum(-1)
    return windows if mask is None else windows * mask.sum()


@torch.no_grad()
@pytest.mark.parametrize("masked", [False, True])
def test_who_pads_to_a_multiple_is_compiled_for_padding_and_for_none(masked):
    counter, compiled = compiled_with(padded)
    for batch, length in ((2, 24), (3, 16), (2, 20), (5, 12), (4, 40), (7, 9)):
        tokens = torch.randint(0, 9, (batch, length))
        mask = torch.rand(batch, length) if masked else None
        assert same(compiled(tokens, mask), padded(tokens, mask))
    assert counter.frame_count == 2


def sizes_in(counter):
    return [
        node.meta["input"]["name"]
        for node in counter.graphs[0].graph.nodes
        if node.op == "placeholder" and node.meta["input"]["kind"] == "size"
    ]


@torch.no_grad()
def test_remainders_of_other_numbers_leave_sizes_alone():
    number = 25
    for tokens, asked in ((torch.randn(2, 24), 24), (torch.randint(0, 9, (2, 24)), number)):
        counter, compiled = compiled_with(lambda x, asked=asked: x * (asked % 7))
        compiled(tokens)
        assert sizes_in(counter) == []
    counter, compiled = compiled_with(lambda x: x * (x.shape[1] % 7))
    compiled(torch.randint(0, 9, (2, 24)))
    assert sorted(sizes_in(counter)) == ["x.size(0)", "x.size(1)"]


@torch.no_grad()
def test_a_static_mark_is_kept_where_remainders_are_asked():
    counter, compiled = compiled_with(padded)
    tokens = torch.randint(0, 9, (2, 24))
    dynamo.mark_static(tokens)
    assert same(compiled(tokens), padded(tokens))
    assert sizes_in(counter) == []


def test_remainders_leave_sizes_alone_where_gradients_are():
    counter, compiled = compiled_with(padded)
    compiled(torch.randint(0, 9, (2, 24)))
    assert sizes_in(counter) == []
