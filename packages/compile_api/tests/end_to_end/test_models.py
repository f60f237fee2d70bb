"""Whole models, forward and backward, against float64 eager: small configurations of the demo's."""

import copy
import functools

import pytest
import torch

import compile_api
from compile_api.demo.run import Request, errors_of, results_of, run_demo, truth_of
from compile_api.demo.subjects import Sizes, build_subject

SIZES = {
    "bert": Sizes(length=16, layers=2, hidden=64, vocabulary=1000),
    "gpt2": Sizes(length=16, layers=2, hidden=64, vocabulary=1000),
    "resnet50": Sizes(batch=2, hidden=64),
}


@functools.cache
def sensitivity(model, training):
    """How far outputs and gradients move, in float64, when weights change by a rounding error of float32.

    A loss is one number: eager's own error of it may be far smaller than the next machine's, by luck.
    """
    subject = build_subject(model, SIZES[model]).to(torch.device("cpu"), torch.float32)
    subject.module.train(training)
    truth = truth_of(subject, training=training)
    found = []
    for draw in range(4):
        wide = copy.deepcopy(subject).to(torch.device("cpu"), torch.float64)
        generator = torch.Generator().manual_seed(draw)
        with torch.no_grad():
            for weight in wide.module.parameters():
                noise = torch.empty_like(weight).uniform_(-1, 1, generator=generator)
                weight.mul_(1 + torch.finfo(torch.float32).eps * noise)
        found.append(errors_of(results_of(wide, wide.module, training=training), truth))
    outputs, gradients = zip(*found, strict=True)
    return (
        max(error.value for error in outputs),
        max((error.value for error in gradients if error is not None), default=0.0),
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp", "inductor"])
@pytest.mark.parametrize("model", sorted(SIZES))
def test_one_graph_and_errors_like_eagers(model, backend):
    report = run_demo(Request(model=model, sizes=SIZES[model], rounds=3, backend=backend))
    for row in report.rows:
        assert (row.graphs, row.breaks) == (1, 0), row
        floor = 1e-6
        moved, moved_gradient = sensitivity(model, row.mode != "inference")
        assert row.ours.output_error.value <= 2 * (row.eager.output_error.value + moved) + floor, (
            row
        )
        if row.ours.gradient_error is not None:
            assert row.eager.gradient_error is not None
            limit = 3 * max(row.eager.gradient_error.value, moved_gradient) + 10 * floor
            assert row.ours.gradient_error.value <= limit, row
    compile_api.reset()
