"""Backwards of several gradients at once, through compiled kernels: as eager's."""

import logging
import warnings

import pytest
import torch
from torch.nn import functional

import compile_api
import dynamo.dispatch
from aot_autograd import batched, deferred

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


ON_CARD = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


@pytest.fixture(autouse=True, params=["in one pass", "one by one"])
def _pass_or_passes(request, monkeypatch):
    monkeypatch.setattr(batched, "_FEW", 1 if request.param == "in one pass" else 1000)


class Perceptron(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.last(functional.gelu(self.norm(self.first(x))))


class Convolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(2, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return functional.max_pool2d(self.norm(self.layer(x)).relu(), 2).mean((2, 3))


class Words(torch.nn.Module):
    def __init__(self, sparse=False) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(7, 5, sparse=sparse)
        self.layer = torch.nn.Linear(5, 3)

    def forward(self, indices):
        return self.layer(self.table(indices)).log_softmax(-1)


class Attends(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Recurs(torch.nn.Module):
    def __init__(self, steps) -> None:
        super().__init__()
        self.layer, self.steps = torch.nn.LSTM(4, 3, batch_first=True), steps

    def forward(self, x):
        return self.layer(x)[0]


class Casts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 4)

    def forward(self, x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.layer(x).float().tanh()


class Several(torch.nn.Module):
    """Results with nodes of their own, which lead to different parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = torch.nn.Linear(6, 4), torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.one(x).sin(), self.other(x) * 2


MODELS = {
    "perceptron": (Perceptron, lambda: torch.randn(2, 6)),
    "convolutions": (Convolutions, lambda: torch.randn(2, 2, 4, 4)),
    "words": (Words, lambda: torch.randint(7, (2, 3))),
    "attention": (Attends, lambda: torch.randn(1, 3, 8)),
    "a short LSTM": (lambda: Recurs(3), lambda: torch.randn(2, 3, 4)),
    "a long LSTM": (lambda: Recurs(40), lambda: torch.randn(1, 40, 4)),
    "autocast": (Casts, lambda: torch.randn(2, 6)),
    "several": (Several, lambda: torch.randn(2, 6)),
}


def by_option(results, wanted, tangents, **settings):
    return torch.autograd.grad(
        results, wanted, tangents, is_grads_batched=True, allow_unused=True, **settings
    )


def by_map(results, wanted, tangents, **settings):
    return torch.func.vmap(lambda *rows: torch.autograd.grad(results, wanted, rows, **settings))(
        *tangents
    )


def tangents_of(results):
    torch.manual_seed(3)
    return [torch.randn(5, *one.shape).to(one.device) for one in results]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CARD)])
@pytest.mark.parametrize("way", [by_option, by_map])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, way, device):
    if device == "cuda" and "LSTM" in name:
        pytest.skip("eager maps no cuDNN layer")
    make, make_input = MODELS[name]
    torch.manual_seed(0)
    model, given = make().to(device), make_input().to(device)
    found = []
    for one in (compile_api.compile(model, fullgraph=True), model):
        results = one(given)
        results = results if isinstance(results, tuple) else (results,)
        found.append(way(results, [*model.parameters()], tangents_of(results)))
    rough = {"rtol": 2e-2, "atol": 2e-2} if name == "autocast" else {"rtol": 1e-4, "atol": 1e-5}
    for ours, eager in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, **rough)


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians_and_hessians(vectorize):
    torch.manual_seed(0)
    model, x = Perceptron(), torch.randn(2, 6)
    compiled = compile_api.compile(model)
    jacobian, hessian = torch.autograd.functional.jacobian, torch.autograd.functional.hessian
    for derivative, function in (
        (jacobian, lambda one: one),
        (hessian, lambda one: lambda x: one(x).square().sum()),
    ):
        for create_graph in (False, True):
            ours, eager = (
                derivative(function(one), x, vectorize=vectorize, create_graph=create_graph)
                for one in (compiled, model)
            )
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", [by_option, by_map])
def test_sizes_that_vary(way):
    def function(x, w):
        return (x @ w).tanh() * x.shape[0]

    compiled = compile_api.compile(function, dynamic=True)
    w = torch.randn(3, 2, requires_grad=True)
    for rows in (4, 5, 2):
        x = torch.randn(rows, 3, requires_grad=True)
        ours, eager = (
            way([one(x, w)], [x, w], [torch.ones(6, rows, 2)]) for one in (compiled, function)
        )
        for one, other in zip(ours, eager, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("way", [by_option, by_map])
def test_each_of_many_meets_the_mask_of_the_forward(way):
    compiled = compile_api.compile(lambda x: functional.dropout(x * 2, 0.5))
    x = torch.ones(256, requires_grad=True)
    for _ in range(2):
        result = compiled(x)
        (gradient,) = way([result], [x], [torch.ones(4, 256)])
        for row in gradient:
            assert torch.equal(row, result.detach())  # 4 or 0


@pytest.mark.parametrize("way", [by_option, by_map])
def test_buffers_change_once(way):
    torch.manual_seed(0)
    model, x = Convolutions(), torch.randn(2, 2, 4, 4)
    compiled = compile_api.compile(model)
    result = compiled(x)
    mean = model.norm.running_mean.clone()
    way([result], [*model.parameters()], tangents_of([result]))
    assert torch.equal(model.norm.running_mean, mean)
    assert int(model.norm.num_batches_tracked) == 1


def test_parameters_that_changed_since_are_refused_where_they_are_read():
    x, bias = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled = compile_api.compile(lambda x, bias: (x + bias) * 3)
    result = compiled(x, bias)
    with torch.no_grad():
        bias.add_(1)  # nobody reads it
    found = by_option([result], [x, bias], [torch.eye(3)])
    assert all(torch.equal(one, torch.eye(3) * 3) for one in found)
    compiled = compile_api.compile(lambda x, bias: x * bias)
    result = compiled(x, bias)
    with torch.no_grad():
        bias.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        by_option([result], [x, bias], [torch.eye(3)])


def test_the_whole_is_quiet(caplog):
    """Nothing is warned of, and nothing falls back."""
    model = Perceptron()
    result = compile_api.compile(model)(torch.randn(2, 6))
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG, logger="aot_autograd"):
        warnings.simplefilter("error")
        by_map([result], [*model.parameters()], tangents_of([result]))
    assert not [record for record in caplog.records if "one by one" in record.message]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("way", [by_option, by_map])
def test_what_a_former_process_compiled(way, dynamic, tmp_path, monkeypatch):
    """Neither its graph nor its backward's is there; both are made again, or done without."""
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("COMPILE_API_ARTIFACTS", "1")
    captured = []
    original = dynamo.dispatch.capture
    monkeypatch.setattr(
        dynamo.dispatch, "capture", lambda request: captured.append(1) or original(request)
    )

    def function(x, w):
        return functional.dropout((x @ w).tanh(), 0.5) * 2

    w = torch.randn(3, 2, requires_grad=True)
    found = []
    for _ in range(2):
        deferred._worker.wait()  # what was compiled is written behind the backward
        compile_api.reset()
        compiled = compile_api.compile(function, dynamic=dynamic)
        for rows in (4, 5):
            torch.manual_seed(rows)
            x = torch.randn(rows, 3, requires_grad=True)
            result = compiled(x, w)
            found.append(way([result], [x, w], tangents_of([result])))
            one_by_one = [
                torch.autograd.grad(compiled_again, [x, w], tangent)
                for tangent in tangents_of([result])[0]
                for compiled_again in [seeded(compiled, rows, x, w)]
            ]
            for ours, rows_of_it in zip(found[-1], zip(*one_by_one, strict=True), strict=True):
                torch.testing.assert_close(ours, torch.stack(rows_of_it), rtol=1e-4, atol=1e-5)
    assert len(captured) == (1 if dynamic else 2)
    for first, second in zip(found[:2], found[2:], strict=True):
        for one, other in zip(first, second, strict=True):
            torch.testing.assert_close(one, other)


def seeded(compiled, rows, x, w):
    """The call again, with the numbers that it drew."""
    torch.manual_seed(rows)
    torch.randn(rows, 3)
    return compiled(x, w)


def test_nothing_but_the_inputs_is_computed_again():
    """What a library's operator does besides its result happens once."""
    ran = []

    @torch.library.custom_op("batched_gradients::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        ran.append(x.shape)
        return x * 2

    noted.register_fake(torch.empty_like)
    noted.register_autograd(lambda ctx, gradient: gradient * 2)
    x = torch.randn(4, requires_grad=True)
    result = compile_api.compile(lambda x: noted(x.sin()).cos())(x)
    del ran[:]
    (ours,) = by_option([result], [x], [torch.eye(4)])
    assert not ran
    torch.testing.assert_close(ours, torch.diag(-2 * x.cos() * (2 * x.sin()).sin()))
