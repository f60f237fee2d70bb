"""The texts of stages, as files that a person reads: loops and schedules of four small functions."""

import pytest
import torch
import torch.nn.functional as F
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from inductor.ir import graph_text, program_text
from inductor.schedule import build

X = torch.zeros(4, 8)
ROW = torch.zeros(8)
COLUMN = torch.zeros(4, 1)


class TextFile(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "txt"


def norm_backward(grad, x, weight, mean, reciprocal):
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, [8], mean, reciprocal, weight, weight, [True, True, True]
    )


CASES = {
    "softmax": (lambda x: F.softmax(x, -1), (X,), ()),
    "gelu_of_product": (lambda x, y: F.gelu(x @ y.t()), (X, X), ()),
    "norm_backward": (norm_backward, (X, X, ROW, COLUMN, COLUMN), ()),
    "symbolic_embedding": (
        lambda i, w: F.embedding(i, w).relu(),
        (torch.zeros(5, dtype=torch.int64), X),
        ((0, 0, "n"),),
    ),
    "half_sum": (lambda x: (x * 2.5 + 1).sum(0), (X.bfloat16(),), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_text(name, lowered, snapshot):
    function, inputs, symbolic = CASES[name]
    graph = lowered(function, *inputs, symbolic=symbolic)
    both = graph_text(graph) + "\n" + program_text(build(graph))
    assert both == snapshot(extension_class=TextFile)
