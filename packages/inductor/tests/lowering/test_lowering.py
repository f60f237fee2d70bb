"""Lowering against eager: every family, unfused and fused, by the reference interpreter."""

import pytest
import torch
import torch.nn.functional as F

from inductor.ir import LoopNode, OperatorCall
from inductor.ir.execute import run_graph
from inductor.lowering import LOWERINGS, VENDOR

aten = torch.ops.aten
torch.manual_seed(0)
X = torch.randn(4, 8)
Y = torch.randn(4, 8)
ROW = torch.randn(8)
CUBE = torch.randn(2, 3, 8)
COUNTS = torch.randint(-5, 5, (4, 8))
INDEX = torch.tensor([[0, 2, 1, 3], [3, 3, 0, 1]])

CASES = {
    "add": (lambda x, y: x + 2 * y, X, Y),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=3), X, Y),
    "broadcast": (lambda x, r: x * r - 1.5, X, ROW),
    "int division": (lambda x: x // 3, COUNTS),
    "int remainder": (lambda x: x % 3, COUNTS),
    "true division of ints": (lambda x: x / 3, COUNTS),
    "int with float": (lambda n, x: n * x, COUNTS, X),
    "trunc division": (lambda x: torch.div(x, 3, rounding_mode="trunc"), COUNTS),
    "pow": (lambda x: x.abs() ** 1.7 + x**2 + x**3, X),
    "compare mixed": (lambda n, x: n < x, COUNTS, X),
    "where": (lambda x, y: torch.where(x > 0, x, y), X, Y),
    "masked fill": (lambda x: x.masked_fill(x > 0, float("-inf")), X),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), X),
    "logic": (lambda x, y: (x > 0) & ~(y > 0) | (x == y), X, Y),
    "bits": (lambda n: (n & 3) ^ 5, COUNTS),
    "nan": (lambda x: torch.isnan(x / 0 * 0), X),
    "half": (lambda x: x.bfloat16() * 3.3 + x.bfloat16().exp(), X),
    "float16": (lambda x: (x.half() * 3.3).relu(), X),
    "convert": (lambda x: (x.double(), x.int(), x.bool(), (x > 0).float()), X),
    "gelu": (F.gelu, X),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "silu": (F.silu, X),
    "softplus": (F.softplus, X),
    "softmax": (lambda x: F.softmax(x, -1), X),
    "softmax over rows": (lambda x: F.softmax(x, 0), X),
    "log softmax": (lambda x: F.log_softmax(x, -1), X),
    "layer norm": (lambda x, r: F.layer_norm(x, (8,), r, r), X, ROW),
    "group norm": (lambda x: F.group_norm(x, 3), CUBE),
    "sum": (lambda x: (x.sum(), x.sum(0), x.sum(1, keepdim=True)), X),
    "mean": (lambda x: (x.mean(), x.mean((0, 2))), CUBE),
    "int sum": (lambda n: (n.sum(), (n > 0).sum(0)), COUNTS),
    "extremes": (lambda x: (x.amax(-1), x.amin(), x.max(1).values), X),
    "positions": (lambda n: (n.argmax(-1), n.argmin(), n.argmax(0)), COUNTS),
    "any all": (lambda x: ((x > 0).any(-1), (x > -9).all(), (x > 9).any()), X),
    "prod": (lambda x: x.prod(1), X),
    "var": (lambda x: (x.var(1), x.std(), torch.var_mean(x, 0, correction=0)[1]), X),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), X),
    "logsumexp": (lambda x: torch.logsumexp(x, 1), X),
    "cumsum": (lambda x: (x.cumsum(1), x.cumsum(0)), X),
    "cumprod": (lambda x: x.cumprod(1), X),
    "transpose": (lambda x: x.t().contiguous(), X),
    "permute and reshape": (lambda c: c.permute(2, 0, 1).reshape(4, 12) + 1, CUBE),
    "view of computed": (lambda c: (c * 2).view(6, 8).sum(1), CUBE),
    "slice": (lambda x: x[1:3, ::2] * 2, X),
    "negative slice": (lambda x: x[-2:, -3:] + 1, X),
    "select": (lambda c: c[:, -1] + c[0, 1], CUBE),
    "expand": (lambda r: r.expand(4, 8) * 2, ROW),
    "diagonal": (lambda x: x.diagonal(1) * 2, X),
    "unfold": (lambda x: x.unfold(1, 3, 2).sum(-1), X),
    "flip roll": (lambda x: x.flip(1) + x.roll(3, 1) + x.roll(5), X),
    "repeat": (lambda x: x.repeat(2, 3), X),
    "as strided": (lambda x: x.as_strided((3, 2), (8, 2), 1) + 1, X),
    "split": (lambda x: [p * 2 for p in x.split(3, 1)], X),
    "unbind": (lambda x: torch.stack(x.unbind(0), 1), X),
    "cat": (lambda x, y: torch.cat([x, y * 2, x.exp()], 1), X, Y),
    "stack": (lambda x, y: torch.stack([x, y]), X, Y),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=7.0), X),
    "pad negative": (lambda x: F.pad(x, (-1, 2)), X),
    "slice scatter": (lambda x, y: torch.slice_scatter(x, y[:, 2:6], 1, 1, 8, 2) * 2, X, Y),
    "select scatter": (lambda x, r: torch.select_scatter(x, r, 0, 2), X, ROW),
    "diagonal scatter": (lambda x, y: torch.diagonal_scatter(x, y[:, 0], 1), X, Y),
    "embedding": (F.embedding, INDEX, X),
    "index": (lambda i, x: x[i], INDEX, X),
    "index two": (lambda i, x: x[i, i * 2], INDEX, X),
    "index middle": (lambda i, c: c[:, i[0] % 3], INDEX, CUBE),
    "index computed": (lambda i, x: (x.exp() * 3)[i - 4], INDEX, X),
    "index select": (lambda i, x: x.index_select(1, i[0]), INDEX, X),
    "gather": (lambda i, x: x.gather(1, i), INDEX, X),
    "scatter": (lambda i, x, y: x.scatter(0, i, y[:2, :4]), INDEX, X, Y),
    "scatter value": (lambda i, x: x.scatter(1, i, 3.0), torch.tensor([[0, 2], [1, 3]]), X),
    "scatter add": (lambda i, x, y: x.scatter_add(0, i, y[:2, :4]), INDEX, X, Y),
    "index put": (lambda i, x, y: x.index_put((i[0],), y), INDEX, X, Y),
    "index add": (lambda i, x: x.index_put((i,), x[i], accumulate=True), INDEX, X),
    "index put by mask": (
        lambda x, m, v: x.index_put((m > 0,), v) + x.index_put((m[:, 0] > 0,), v),
        X,
        Y,
        torch.tensor(3.0),
    ),
    "scatter reduce": (
        lambda i, x, y: (
            x.scatter_reduce(0, i, y[:2, :4], "sum") + x.scatter_reduce(0, i, y[:2, :4], "amax")
        ),
        INDEX,
        X,
        Y,
    ),
    "triangles": (lambda x: (x.tril(), x.triu(1)), X),
    "arange": (lambda x: x + torch.arange(8) + torch.arange(0, 4, 0.5), X),
    "full eye": (lambda x: x @ torch.full((8, 8), 0.5) + torch.eye(4, 8), X),
    "linear": (lambda x, y: F.linear(x, y) + 1, X, Y),
    "bmm": (lambda c: torch.bmm(c, c.transpose(1, 2)), CUBE),
    "cross entropy": (lambda x, i: F.cross_entropy(x, i[0] % 8), X, INDEX),
    "zero size": (lambda x: (x[:0] * 2, x[:0].sum(0), x[:, :0].sum(1)), X),
    "without dimensions": (lambda x: x.sum() * 2 + x[0, 0], X),
    "complex": (lambda x, y: torch.complex(x, y) * torch.complex(y, x) + 1, X, Y),
    "complex abs": (lambda x, y: torch.complex(x, y).abs(), X, Y),
    "complex pairs": (
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 4, 2)) * 2).sum(-1),
        X,
    ),
    "complex conjugate": (lambda x, y: torch.complex(x, y).conj() * torch.complex(y, x), X, Y),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1), torch.randn(2, 3, 9, 8)),
    "average pool without padding": (
        lambda x: F.avg_pool2d(x.exp(), (2, 3), 1, 1, count_include_pad=False),
        torch.randn(2, 3, 7, 8),
    ),
    "average pool rounded up": (
        lambda x: (
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True) + F.avg_pool2d(x, 3, 2, 1, True, True, 7)
        ),
        torch.randn(1, 2, 8, 8),
    ),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), torch.randn(2, 3, 9, 8)),
    "batch norm": (
        lambda x, m, v: F.batch_norm(x, m, v, m, v),
        torch.randn(2, 3, 5, 4),
        torch.randn(3),
        torch.rand(3),
    ),
    "channels last": (
        lambda x: F.relu(x) + 1,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ),
    "sort": (lambda x: torch.sort(x, dim=1, stable=True), X),
    "bool arithmetic": (lambda x: (x > 0) * 2 + (x > 1), X),
    "fmod": (lambda x: torch.fmod(x, 0.3) + torch.remainder(x, 0.3), X),
    "extremes ignoring nan": (lambda x, y: torch.fmax(x / 0 * 0, y) + torch.fmin(x, y), X, Y),
}


@pytest.mark.parametrize("name", CASES)
def test_loops_equal_eager(name, compare):
    function, *inputs = CASES[name]
    compare(function, *inputs)


def test_index_out_of_bounds_raises_what_eager_raises(lowered):
    bad, good = torch.tensor([[1, 9]]), torch.tensor([[1, 0]])
    for function in (F.embedding, lambda i, x: x[i], lambda i, x: x.gather(0, i)):
        with pytest.raises((IndexError, RuntimeError)) as eager:
            function(bad, X)
        graph = lowered(function, good, X)
        with pytest.raises(eager.type) as ours:
            run_graph(graph, [bad, X])
        assert str(ours.value) == str(eager.value)


def test_copies_share_no_memory_with_what_they_copy(lowered):
    def copies(x):
        y = x * 2
        return x.clone(), y, y.clone(), y.t(), y

    graph = lowered(copies, X)
    first, y, copied, turned, again = run_graph(graph, [X])
    assert first.data_ptr() != X.data_ptr()
    assert copied.data_ptr() != y.data_ptr()
    assert turned.data_ptr() == y.data_ptr() == again.data_ptr()
    (same,) = run_graph(lowered(lambda x: x, X), [X])
    assert same is X


def test_an_operator_that_nobody_lowers_is_called(lowered):
    graph = lowered(lambda x: torch.frexp(x)[0] + 1, X)
    calls = [node for node in graph.nodes if isinstance(node, OperatorCall)]
    assert [(call.kind, call.operator) for call in calls] == [("fallback", aten.frexp.Tensor)]


def test_vendor_operators_state_a_reason(lowered):
    graph = lowered(lambda x, y: x @ y.t(), X, Y)
    (call,) = graph.nodes
    assert call.kind == "vendor"
    assert call.reason
    assert len(VENDOR) <= 120
    assert not set(VENDOR) & set(LOWERINGS)


def test_views_are_not_copied(lowered):
    graph = lowered(lambda c, y: c.permute(0, 2, 1).reshape(2, 8, 3)[1] @ y[:3], CUBE, Y)
    assert all(not isinstance(node, LoopNode) for node in graph.nodes)


def test_cheap_values_are_recomputed_and_dear_ones_stored_once(lowered):
    cheap = lowered(lambda x: ((x * 2).sum(0), (x * 2).sum(1)), X)
    assert len(cheap.nodes) == 2
    dear = lowered(lambda x: ((x.exp().sin()).sum(0), (x.exp().sin()).sum(1)), X)
    names = [node.kind for node in dear.nodes]
    assert names.count("reduction") == 2


SYMBOLIC = {
    "pointwise": lambda x, y: (x + y).exp(),
    "softmax": lambda x, y: F.softmax(x * 2, -1),
    "norm": lambda x, y: F.layer_norm(x, (8,)) + y,
    "columns": lambda x, y: (x * y).sum(0),
    "mean": lambda x, y: x.mean(0) + y.mean(),
    "cat": lambda x, y: torch.cat([x, y * 2]),
    "last elements": lambda x, y: (x[-50:] * 2, x[:, -50:] + 1),
    "last elements but one": lambda x, y: x[-50:-1] * 2,
    "slice": lambda x, y: x[1:] * 2,
    "reshape": lambda x, y: (x + y).reshape(-1) * 2,
    "transpose": lambda x, y: (x.t() + 1).contiguous(),
    "arange": lambda x, y: x + torch.arange(x.shape[0]).unsqueeze(1),
    "product": lambda x, y: x @ y.t(),
    "flip": lambda x, y: x.flip(0),
    "pad": lambda x, y: F.pad(x, (0, 0, 1, 2)),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes_need_no_second_compile(name, compare):
    again = [(torch.randn(n, 8), torch.randn(n, 8)) for n in (2, 7, 33)]
    symbols = ((0, 0, "n"), (1, 0, "n"))
    compare(SYMBOLIC[name], X, Y, symbolic=symbols, again=again)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: (x * 2).view(torch.int32) & 255, torch.linspace(-3, 3, 12)),
        (lambda x: x.double().view(torch.int64) ^ 1, torch.linspace(-3, 3, 12)),
        (lambda x: (x + 1).view(torch.float32) * 2, torch.arange(12, dtype=torch.int32) << 20),
        (lambda x: (x > 0).view(torch.uint8) * 3, torch.linspace(-3, 3, 12)),
        (lambda x: (x * 2).view(torch.int16) + 1, torch.linspace(-3, 3, 12).bfloat16()),
        (lambda x: (x * 2).view(torch.int16), torch.linspace(-3, 3, 12)),
    ],
)
def test_bits_of_something_computed_are_read_as_another_dtype(compare, function, x):
    compare(function, x)


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.float64])
def test_ranges_begin_at_a_size_and_go_in_steps_of_a_float(compare, dtype):
    def function(x):
        n = x.shape[0]
        return torch.arange(n, -n, -1.0, dtype=dtype), torch.arange(1.5, n, 2, dtype=dtype)

    again = [(torch.randn(n),) for n in (3, 9)]
    compare(function, torch.randn(6), symbolic=[(0, 0, "n")], again=again)
