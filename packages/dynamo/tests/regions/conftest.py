"""What the tests of regions share: compiling with a bare backend or through AOT."""

from __future__ import annotations

import pytest

import dynamo
from dynamo import DynamoOptions
from dynamo.testing import CompileCounter


def _compiled(function, backend="eager", *, fullgraph=True):
    counter = CompileCounter()
    if backend == "aot":
        aot = pytest.importorskip("aot_autograd")
        primtorch = pytest.importorskip("primtorch")

        def forward(gm, inputs):
            del inputs
            return aot.make_boxed_func(gm.forward)

        def run(gm, inputs):
            counter.frame_count += 1
            counter.graphs.append(gm)
            return aot.aot_module_simplified(
                gm,
                inputs,
                fw_compiler=forward,
                bw_compiler=forward,
                inference_compiler=forward,
                decompositions=primtorch.decomposition_table("inductor"),
            )

        run.symbolic = True
    else:
        run = counter
    options = DynamoOptions(strict=True)
    return dynamo.optimize(run, fullgraph=fullgraph, options=options)(function), counter


@pytest.fixture
def compiled():
    """`compiled(function, backend="eager", *, fullgraph=True)`: the fast function and its counter."""
    return _compiled
