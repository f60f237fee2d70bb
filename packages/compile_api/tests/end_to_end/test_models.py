"""Whole models, forward and backward, against float64 eager: small configurations of the demo's."""

import pytest

import compile_api
from compile_api.demo.run import Request, run_demo
from compile_api.demo.subjects import Sizes

SIZES = {
    "bert": Sizes(length=16, layers=2, hidden=64, vocabulary=1000),
    "gpt2": Sizes(length=16, layers=2, hidden=64, vocabulary=1000),
    "resnet50": Sizes(batch=2, hidden=64),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp", "inductor"])
@pytest.mark.parametrize("model", sorted(SIZES))
def test_one_graph_and_errors_like_eagers(model, backend):
    report = run_demo(Request(model=model, sizes=SIZES[model], rounds=3, backend=backend))
    for row in report.rows:
        assert (row.graphs, row.breaks) == (1, 0), row
        floor = 1e-6
        assert row.ours.output_error.value <= 2 * row.eager.output_error.value + floor, row
        if row.ours.gradient_error is not None:
            assert row.eager.gradient_error is not None
            limit = 3 * row.eager.gradient_error.value + 10 * floor
            assert row.ours.gradient_error.value <= limit, row
    compile_api.reset()
