"""Attention masks that hold in every call are dropped or named; all others stay."""

import operator

import pytest
import torch
from torch.fx import Graph, GraphModule

from aot_autograd.masks import simplified_masks
from primtorch.fake import ShapeContext, fakeify

attention = torch.nn.functional.scaled_dot_product_attention


def simplify(build, value):
    """What changes for an attention node whose mask `build(graph, input)` makes; the mask is like `value`."""
    graph = Graph()
    tokens = graph.placeholder("x")
    mask = build(graph, tokens)
    mask.meta["val"] = fakeify(value, ShapeContext())
    node = graph.call_function(
        attention, (tokens, tokens, tokens), {"attn_mask": mask, "is_causal": False}
    )
    graph.output((node,))
    module = GraphModule(torch.nn.Module(), graph)
    (attending,) = (n for n in module.graph.nodes if n.target is attention)
    return simplified_masks(module).get(attending, {})


def ones(graph, _):
    made = graph.call_function(torch.ones, ((2, 1, 6, 6),), {"dtype": torch.bool})
    return graph.call_method("expand", (made, 2, 4, 6, 6))


def causal(graph, _):
    full = graph.call_function(torch.ones, ((6, 6),), {"dtype": torch.bool})
    return graph.call_function(torch.tril, (full,))


def causal_numbers(graph, _):
    full = graph.call_function(torch.full, ((6, 6), float("-inf")))
    return graph.call_function(torch.triu, (full, 1))


def test_a_mask_that_masks_nothing_is_dropped():
    assert simplify(ones, torch.ones(2, 4, 6, 6, dtype=torch.bool)) == {"attn_mask": None}


@pytest.mark.parametrize("build", [causal, causal_numbers])
def test_a_lower_triangle_is_causal(build):
    value = torch.ones(6, 6, dtype=torch.bool) if build is causal else torch.zeros(6, 6)
    assert simplify(build, value) == {"attn_mask": None, "is_causal": True}


def test_a_mask_that_depends_on_an_input_stays():
    result = simplify(
        lambda graph, x: graph.call_method("bool", (x,)), torch.ones(6, 6, dtype=torch.bool)
    )
    assert not result


def test_a_mask_from_random_numbers_stays():
    def build(graph, _):
        drawn = graph.call_function(torch.rand, (6, 6))
        return graph.call_method("ge", (drawn, 0.0))

    assert not simplify(build, torch.ones(6, 6, dtype=torch.bool))


def test_a_mask_from_uninitialised_memory_stays():
    def build(graph, _):
        made = graph.call_function(torch.empty, ((6, 6),))
        return graph.call_method("__eq__", (made, made))

    assert not simplify(build, torch.ones(6, 6, dtype=torch.bool))


def test_finite_numbers_above_the_diagonal_are_no_causal_mask():
    def build(graph, _):
        full = graph.call_function(torch.full, ((6, 6), -1.0))
        return graph.call_function(torch.triu, (full, 1))

    assert not simplify(build, torch.zeros(6, 6))


def test_a_mask_from_positions_that_are_the_same_in_every_call_is_causal():
    """What transformers builds where it can't look: later keys, and keys of another packed sequence, are masked."""

    def build(graph, _):
        positions = graph.call_function(torch.arange, (6,))
        before = graph.call_function(torch.full, ((1,), -1))
        step = graph.call_function(torch.diff, (positions,), {"prepend": before})
        rows = graph.call_function(operator.getitem, (positions, (slice(None), None)))
        sequence = graph.call_method("cumsum", (graph.call_method("ne", (step, 1)), -1))
        same = graph.call_method(
            "__eq__", (graph.call_function(operator.getitem, (sequence, rows)), sequence)
        )
        return graph.call_method("__and__", (graph.call_method("le", (positions, rows)), same))

    value = torch.ones(6, 6, dtype=torch.bool)
    assert simplify(build, value) == {"attn_mask": None, "is_causal": True}


def item_of_the_mask(graph, mask, x):
    graph.call_function(operator.setitem, (mask, 0, False))


def in_place_method(graph, mask, x):
    graph.call_method("masked_fill_", (mask, graph.call_method("bool", (x,)), False))


def a_view_of_the_mask(graph, mask, x):
    graph.call_method("fill_", (graph.call_function(operator.getitem, (mask, 0)), False))


def in_place_operator(graph, mask, x):
    graph.call_method("__iand__", (mask, graph.call_method("bool", (x,))))


def an_output_argument(graph, mask, x):
    graph.call_function(torch.logical_not, (mask,), {"out": mask})


@pytest.mark.parametrize(
    "write",
    [
        item_of_the_mask,
        in_place_method,
        a_view_of_the_mask,
        in_place_operator,
        an_output_argument,
    ],
)
def test_a_mask_that_is_written_to_stays(write):
    def build(graph, x):
        mask = graph.call_function(torch.ones, ((6, 6),), {"dtype": torch.bool})
        write(graph, mask, x)
        return mask

    assert not simplify(build, torch.ones(6, 6, dtype=torch.bool))
