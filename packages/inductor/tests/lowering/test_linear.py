"""Large single-precision products of the CPU in oneDNN: which go there, and that they are right."""

from dataclasses import replace

import pytest
import torch

from inductor import InductorOptions, compile_fx
from inductor.ir import OperatorCall
from inductor.ir.machine import PROCESSOR
from inductor.lowering import lower
from inductor.lowering.linear import LINEAR

pytestmark = pytest.mark.skipif(LINEAR is None, reason="this build of torch has no oneDNN")

WITH_ONEDNN = replace(PROCESSOR, products="onednn")
ROWS, DEPTH, COLUMNS = 9, 768, 800
X = torch.randn(ROWS, DEPTH, generator=torch.Generator().manual_seed(0))
W = torch.randn(COLUMNS, DEPTH, generator=torch.Generator().manual_seed(1))
B = torch.randn(COLUMNS, generator=torch.Generator().manual_seed(2))


def called(graph):
    return [node.operator for node in graph.nodes if isinstance(node, OperatorCall)]


@pytest.mark.cxx
@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x, w: x @ w.t(), (X, W)),
        (lambda x, w: x @ w, (X, W.t().contiguous())),
        (torch.nn.functional.linear, (X, W, B)),
        (lambda x, w, b: torch.relu(x * 2) @ w.t() + b, (X, W, B)),
        (lambda x, w: x @ w.t(), (torch.cat([X, X + 1], 1)[:, DEPTH:], W)),
    ],
    ids=["rows", "columns", "bias", "computed operand", "rows of a wider matrix"],
)
def test_a_large_product_is_one_call_of_onednn_and_right(traced, function, inputs):
    gm = traced(function, *inputs)
    assert called(lower(gm, processor=WITH_ONEDNN)) == [LINEAR]
    (made,) = compile_fx(gm, options=InductorOptions(products="onednn", strict=True))(list(inputs))
    expected = function(*(x.double() for x in inputs))
    eager = function(*inputs)
    assert made.stride() == eager.stride()
    assert (made - expected).abs().max() <= 4 * (eager - expected).abs().max()


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda g, x: g.t() @ x, (torch.randn(DEPTH, ROWS), torch.randn(DEPTH, COLUMNS))),
        (lambda x, w: x @ w.t(), (X[:2], W)),
        (lambda x, w: x @ w.t(), (X[:, :64].contiguous(), W[:, :64].contiguous())),
        (lambda x, w: x @ w.t(), (X.double(), W.double())),
        (lambda x, w: x @ w.t(), (X[:1].expand(ROWS, DEPTH), W)),
    ],
    ids=["transposed", "few rows", "few weights", "double", "one row repeated"],
)
def test_other_products_stay_with_the_blas(traced, function, inputs):
    assert called(lower(traced(function, *inputs), processor=WITH_ONEDNN)) == [
        torch.ops.aten.mm.default
    ]


def test_the_choice_is_an_option(traced):
    gm = traced(torch.nn.functional.linear, X, W, B)
    assert called(lower(gm, processor=PROCESSOR)) == [torch.ops.aten.addmm.default]
    (made,) = compile_fx(gm, options=InductorOptions(products="blas", strict=True))([X, W, B])
    torch.testing.assert_close(made, torch.nn.functional.linear(X, W, B))
