"""A result is as new as eager's: how it was filled isn't counted, whoever fills it."""

import pytest
import torch
from torch.nn import functional as F

import compile_api

SQUARE = torch.linspace(-1, 1, 64).view(8, 8)
ROW = torch.linspace(0, 1, 8)
BATCH = torch.linspace(-1, 1, 128).view(2, 8, 8)
IMAGE = torch.linspace(-1, 1, 192).view(1, 3, 8, 8)
KERNEL = torch.linspace(-1, 1, 108).view(4, 3, 3, 3)
CLASSES = torch.arange(4)

OF_TENSORS = {
    "linear": lambda square, row, batch: F.linear(square, square, row),
    "linear without bias": lambda square, row, batch: F.linear(square, square),
    "linear, then relu in the same memory": lambda square, row, batch: F.linear(
        square, square, row
    ).relu(),
    "mm": lambda square, row, batch: square @ square,
    "addmm with factors": lambda square, row, batch: torch.addmm(
        square, square, square, beta=0.5, alpha=2
    ),
    "bmm": lambda square, row, batch: torch.bmm(batch, batch),
    "baddbmm": lambda square, row, batch: torch.baddbmm(batch, batch, batch),
    "addmv": lambda square, row, batch: torch.addmv(row, square, row),
    "convolution": lambda square, row, batch: F.conv2d(batch[None], batch[None]),
    "attention": lambda square, row, batch: F.scaled_dot_product_attention(
        batch[None], batch[None], batch[None]
    ),
    "sort": lambda square, row, batch: square.sort().values,
    "inverse": lambda square, row, batch: torch.linalg.inv(square + torch.eye(8)),
    "an addmm's result written in the function": lambda square, row, batch: F.linear(
        square, square, row
    ).mul_(2),
}
OF_NONE = {
    "randn": lambda: torch.randn(3, 3),
    "randn complex": lambda: torch.randn(3, 3, dtype=torch.complex64),
    "rand": lambda: torch.rand(3, 3, dtype=torch.float64),
    "randint": lambda: torch.randint(0, 5, (3, 3)),
    "randint of bfloat16": lambda: torch.randint(0, 5, (3, 3), dtype=torch.bfloat16),
    "randperm": lambda: torch.randperm(5),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "one_hot": lambda: F.one_hot(CLASSES, 5),
    "linspace": lambda: torch.linspace(0, 1, 5),
}


def history_of(tensor):
    return tensor._version, tensor._is_view(), tensor.requires_grad, tensor.is_leaf


@pytest.mark.parametrize("gradients", ["forward", "training", "no_grad", "inference"])
@pytest.mark.parametrize("name", OF_TENSORS)
def test_results_of_operators(name, gradients):
    function = OF_TENSORS[name]
    compiled = compile_api.compile(function, options={"strict": True})
    with torch.inference_mode(gradients == "inference"):
        tensors = [one.clone() for one in (SQUARE, ROW, BATCH)]
    if gradients in ("training", "no_grad"):
        tensors = [one.requires_grad_() for one in tensors]
    with torch.set_grad_enabled(gradients != "no_grad"):
        found, expected = compiled(*tensors), function(*tensors)
    if gradients == "inference":
        with torch.inference_mode():
            found, expected = compiled(*tensors), function(*tensors)
        assert found.is_inference()
        assert expected.is_inference()
        return
    assert history_of(found) == history_of(expected)
    found.mul_(2) if not found.requires_grad else found.detach().mul_(2)
    assert found._version == expected._version + 1


@pytest.mark.parametrize("fallback_random", [False, True])
@pytest.mark.parametrize("name", OF_NONE)
def test_tensors_made_of_none(name, fallback_random):
    function = OF_NONE[name]
    options = {"strict": True, "fallback_random": fallback_random}
    found = compile_api.compile(function, options=options)()
    assert history_of(found) == history_of(function())


def test_a_result_in_another_layout_than_its_operator_gives():
    def function(x):
        return torch.linalg.qr(x).Q.mT.contiguous(), torch.linalg.svd(x).U

    x = SQUARE + torch.eye(8)
    found = compile_api.compile(function, options={"strict": True})(x)
    assert [one._version for one in found] == [one._version for one in function(x)]


NORMS = {
    "batch": lambda: torch.nn.BatchNorm1d(4),
    "batch, of all batches": lambda: torch.nn.BatchNorm1d(4, momentum=None),
    "instance": lambda: torch.nn.InstanceNorm1d(4, track_running_stats=True),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", NORMS)
def test_running_statistics_are_counted_as_eager_counts(name, dynamic):
    eager, module = NORMS[name](), NORMS[name]()
    compiled = compile_api.compile(module, dynamic=dynamic, options={"strict": True})
    for batch in (3, 5, 6):
        x = torch.randn(batch, 4, 5)
        torch.testing.assert_close(compiled(x), eager(x))
    found, expected = (
        {key: (one._version, one.sum().item()) for key, one in model.named_buffers()}
        for model in (module, eager)
    )
    assert found.keys() == expected.keys()
    for key, (version, total) in expected.items():
        assert found[key][0] == version, key
        assert found[key][1] == pytest.approx(total, rel=1e-4)
