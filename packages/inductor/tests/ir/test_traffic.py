"""What a schedule's text says of the bytes that kernels move."""

import re

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from inductor import InductorOptions
from inductor.ir import program_text
from inductor.pipeline import plan

aten = torch.ops.aten


def moved(function, *inputs):
    """Reads and writes of each kernel."""
    module = make_fx(function)(*inputs)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            node.meta["input"] = {"kind": "argument", "name": node.name, "static": False}
        elif node.op == "output":
            node.args = (
                tuple(node.args[0]) if isinstance(node.args[0], list) else (node.args[0],),
            )
    text = program_text(plan(module, InductorOptions(strict=True)))
    return [
        tuple(map(int, found)) for found in re.findall(r"reads (\d+) bytes, writes (\d+)", text)
    ]


def test_rows_of_a_table_count_as_often_as_they_are_looked_up():
    table, index = torch.randn(1000, 8), torch.randint(0, 1000, (5,))
    ((read, written),) = moved(lambda t, i: aten.embedding.default(t, i) * 2, table, index)
    assert (read, written) == (5 * 8 * 4 + 5 * 8, 5 * 8 * 4)


def test_a_piece_of_a_buffer_is_not_the_whole():
    x = torch.randn(100, 10)
    ((read, written),) = moved(lambda x: x[:7] + 1, x)
    assert (read, written) == (280, 280)


def test_what_is_read_twice_counts_once():
    x = torch.randn(6, 10)
    ((read, written),) = moved(lambda x: x - x.sum(-1, keepdim=True), x)
    assert (read, written) == (240, 240)
