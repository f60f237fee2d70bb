"""The conformance kit: eager passes it, a wrong backend is found out, errors are findings."""

import pytest
import torch

from primtorch import PRIMS, check_backend
from primtorch.samples import samples_of

aten = torch.ops.aten
FEW = (
    aten.add.Tensor,
    aten.silu.default,
    aten.sum.dim_IntList,
    aten.view.default,
    aten.convolution.default,
)


def interpreted(gm, example_inputs):
    return gm


def test_eager_passes_its_own_kit():
    report = check_backend(interpreted, operators=FEW)
    assert report.ok, report.text()
    assert {r.operator for r in report.results} == {str(op) for op in FEW}
    peculiarities = {s.peculiarity for s in samples_of(aten.add.Tensor, torch.float32)}
    assert {"edge values", "transposed", "empty", "expanded", "channels last"} <= peculiarities


def test_boxed_callables_and_fake_examples_are_served():
    seen = []

    def boxed(gm, example_inputs):
        seen.extend(type(i).__name__ for i in example_inputs)

        def call(arguments):
            values = list(arguments)
            arguments.clear()
            return gm(*values)

        call.boxed = True
        return call

    assert check_backend(boxed, operators=FEW[:2], dtypes=[torch.float32], fake_inputs=True).ok
    assert set(seen) == {"FakeTensor"}


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda t: t + 1, "values differ"),
        (lambda t: t.double(), "torch.float64"),
        (lambda t: t.flatten()[:0], "of shape [0]"),
    ],
)
def test_a_wrong_backend_is_found_out(spoil, text):
    def wrong(gm, example_inputs):
        return lambda *inputs: tuple(spoil(t) for t in gm(*inputs))

    report = check_backend(wrong, operators=[aten.silu.default], dtypes=[torch.float32])
    assert not report.ok
    assert text in report.failed()[0].failures[0]
    assert "aten.silu.default float32" in report.text()


def test_an_exception_is_a_finding():
    def broken(gm, example_inputs):
        raise ValueError("no such kernel")

    report = check_backend(broken, operators=[aten.neg.default], dtypes=[torch.float32])
    assert "raised ValueError: no such kernel" in report.failed()[0].failures[0]


def test_operators_without_samples_are_named():
    report = check_backend(interpreted, operators=[aten.linalg_eig.default], dtypes=[torch.float32])
    assert report.untried == ("aten.linalg_eig.default",)
    assert "no samples (1)" in report.text()


def test_most_prims_have_samples():
    tried = sum(
        any(True for _ in samples_of(op, torch.float32))
        or any(True for _ in samples_of(op, torch.int64))
        for op in PRIMS
        if "empty" not in str(op)
    )
    assert tried >= 0.9 * len(PRIMS)


def test_samples_are_the_same_every_time():
    first, second = (list(samples_of(aten.mul.Tensor, torch.float32)) for _ in range(2))
    assert len(first) == len(second) > 10
    torch.testing.assert_close(
        [s.expected for s in first], [s.expected for s in second], equal_nan=True
    )
