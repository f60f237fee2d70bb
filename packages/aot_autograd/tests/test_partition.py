"""The cut: what is saved, what is computed again, and that the gradients stay the same."""

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import randn

import aot_autograd
from aot_autograd.partition import classify
from aot_autograd.partition.flow import INFINITE, Network
from primtorch import decomposition_table, regions


def leaf(*shape):
    return randn(*shape).requires_grad_()


class Graphs:
    def __init__(self, function, inputs, *, table=None, **kwargs):
        self.backward = self.forward = self.cut = None

        def partition(joint, *, forward_outputs, options):
            choose = kwargs.pop("partition_fn", aot_autograd.min_cut_rematerialization_partition)
            self.joint = joint
            self.cut = choose(joint, forward_outputs=forward_outputs, options=options)
            return self.cut

        def runner(gm, example_inputs):
            return aot_autograd.make_boxed_func(gm.forward)

        self.compiled = aot_autograd.aot_function(
            function,
            runner,
            partition_fn=partition,
            decompositions=table,
            options=kwargs.get("options"),
        )
        self.outputs = self.compiled(*inputs)

    def saved(self):
        nodes = [n for n in self.cut.backward.graph.nodes if n.op == "placeholder"]
        return nodes[: len(self.cut.saved)]

    def saved_bytes(self):
        return sum(
            classify.saved_bytes(n.meta["val"])
            for n in self.saved()
            if not n.meta["input"]["static"]
        )

    def backward_targets(self):
        return [str(n.target) for n in self.cut.backward.graph.nodes if n.op == "call_function"]


def same_gradients(function, inputs, **kwargs):
    graphs = Graphs(function, inputs, **kwargs)
    graphs.outputs.sum().backward()
    ours = [t.grad.clone() for t in inputs]
    for t in inputs:
        t.grad = None
    function(*inputs).sum().backward()
    for t, grad in zip(inputs, ours, strict=True):
        torch.testing.assert_close(grad, t.grad, rtol=1e-4, atol=1e-5)
    return graphs


def test_minimum_cut_of_a_small_network():
    network = Network(6)
    for tail, head, capacity in [
        (0, 1, 3),
        (0, 2, 2),
        (1, 3, INFINITE),
        (2, 3, 1),
        (3, 4, 2.5),
        (4, 5, INFINITE),
    ]:
        network.edge(tail, head, capacity)
    side = network.minimum_cut(0, 5)
    assert side == [True, True, True, True, False, False]


def test_a_network_without_a_finite_cut_is_refused():
    network = Network(2)
    network.edge(0, 1, INFINITE)
    with pytest.raises(ValueError, match="infinite"):
        network.minimum_cut(0, 1)


@pytest.mark.parametrize("seed", range(20))
def test_minimum_cut_equals_networkx(seed):
    import random

    networkx = pytest.importorskip("networkx")
    draw = random.Random(seed)
    size = draw.randint(3, 14)
    reference = networkx.DiGraph()
    reference.add_nodes_from(range(size))
    network = Network(size)
    for _ in range(size * 3):
        tail, head = draw.sample(range(size), 2)
        if reference.has_edge(tail, head):
            continue
        capacity = draw.randint(1, 9)
        reference.add_edge(tail, head, capacity=capacity)
        network.edge(tail, head, capacity)
    want, _ = networkx.minimum_cut(reference, 0, size - 1)
    side = network.minimum_cut(0, size - 1)
    cut = sum(d["capacity"] for a, b, d in reference.edges(data=True) if side[a] and not side[b])
    assert cut == want


def test_pointwise_chain_saves_its_start_only():
    graphs = same_gradients(lambda x: (x @ x).sin().exp().tanh().cos(), [leaf(8, 8)])
    products = [n for n in graphs.saved() if "primal" not in n.name]
    assert len(products) == 1
    assert products[0].meta["val"].shape == (8, 8)
    assert graphs.backward_targets().count("aten.mm.default") == 2


def test_default_partition_repeats_nothing_but_views():
    graphs = same_gradients(
        lambda x, w: (x @ w.t()).sin().exp(),
        [leaf(8, 8), leaf(8, 8)],
        partition_fn=aot_autograd.default_partition,
    )
    assert not any("sin" in t or "exp" in t for t in graphs.backward_targets())
    assert not any(
        classify.kind_of(n) == "view" for n in graphs.joint.graph.nodes if n in graphs.saved()
    )


def test_views_are_saved_as_their_base():
    graphs = same_gradients(lambda x, w: (x.t() @ w).relu(), [leaf(8, 4), leaf(8, 4)])
    assert all("t_default" not in n.name for n in graphs.saved())


def test_the_narrow_type_is_saved():
    def function(x):
        h = x @ x
        return h.to(torch.bfloat16).float().sin() * h.to(torch.bfloat16).float()

    graphs = same_gradients(function, [leaf(64, 64)])
    kept = [n.meta["val"].dtype for n in graphs.saved() if "primal" not in n.name]
    assert kept == [torch.bfloat16]


def test_random_numbers_come_back_from_the_seed():
    graphs = Graphs(lambda x: F.dropout(x, 0.5), [leaf(1000)])
    kept = graphs.saved()
    assert [tuple(n.meta["val"].shape) for n in kept] == [(1,)]
    assert any("philox" in t for t in graphs.backward_targets())


def test_expensive_operators_are_never_repeated_at_full_budget():
    def function(x, w, v):
        return ((x @ w).relu() @ v).relu()

    graphs = same_gradients(function, [leaf(16, 16), leaf(16, 16), leaf(16, 16)])
    assert graphs.backward_targets().count("aten.mm.default") == 4


def test_what_a_product_reads_in_the_backward_is_kept():
    graphs = same_gradients(
        lambda x, first, second: F.gelu(x @ first).mul(2).tanh() @ second,
        [leaf(16, 8), leaf(8, 32), leaf(32, 4)],
    )
    assert "aten.gelu.default" not in graphs.backward_targets()
    assert graphs.saved_bytes() == 4 * (16 * 8 + 2 * 16 * 32 + 8 * 32 + 32 * 4)


@pytest.mark.parametrize(("rows", "kept"), [(16, 2), (2048, 4)])
def test_a_value_that_is_kept_costs_more_than_its_bytes(rows, kept):
    """Statistics of few rows are taken again; of many rows they are kept beside the input and the weight."""
    graphs = same_gradients(
        lambda x, weight, bias: F.layer_norm(x, (256,), weight, bias),
        [leaf(rows, 256), leaf(256), leaf(256)],
        table=decomposition_table("inductor"),
    )
    assert len(graphs.saved()) == kept


def test_what_is_made_from_nothing_is_made_again():
    index = torch.tensor([0, 2, 2])
    graphs = same_gradients(
        lambda table: F.embedding(index, table), [leaf(5, 4)], table=decomposition_table("inductor")
    )
    assert graphs.saved_bytes() <= index.numel() * 8


def layers(x, *weights):
    for w in weights:
        x = F.gelu(x @ w).softmax(-1) + x
    return x


@pytest.mark.parametrize("budget", [1.0, 0.75, 0.5, 0.25, 0.0])
def test_memory_budget_is_kept(budget):
    inputs = [leaf(64, 16), *(leaf(16, 16) for _ in range(6))]
    table = decomposition_table("inductor")
    full = Graphs(layers, inputs, table=table).saved_bytes()
    options = {"activation_memory_budget": budget}
    graphs = same_gradients(layers, inputs, table=table, options=options)
    inputs_only = sum(t.numel() * 4 for t in inputs)
    assert graphs.saved_bytes() <= max(budget * full, inputs_only) + 64
    if budget < 0.5:
        assert graphs.backward_targets().count("aten.mm.default") > 12


def test_saves_no_more_than_eager_in_a_transformer_layer():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    x = leaf(4, 16, 32)
    seen = {}

    def pack(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        layer(x)
    graphs = {}

    def partition(joint, *, forward_outputs, options):
        graphs["cut"] = aot_autograd.min_cut_rematerialization_partition(
            joint, forward_outputs=forward_outputs, options=options
        )
        return graphs["cut"]

    compiled = aot_autograd.aot_module(
        layer,
        lambda gm, _: aot_autograd.make_boxed_func(gm.forward),
        partition_fn=partition,
        decompositions=decomposition_table("inductor"),
    )
    compiled(x)
    nodes = [n for n in graphs["cut"].backward.graph.nodes if n.op == "placeholder"]
    saved = nodes[: len(graphs["cut"].saved)]
    ours = sum(classify.saved_bytes(n.meta["val"]) for n in saved if not n.meta["input"]["static"])
    assert ours <= sum(seen.values())


def test_checkpoint_region_is_computed_again():
    def function(x, w, v):
        h = regions.checkpoint(lambda a: (F.dropout(a @ w, 0.5).relu() @ v).sin(), x)
        return h @ w

    graphs = Graphs(function, [leaf(8, 8), leaf(8, 8), leaf(8, 8)])
    kept = [
        n for n in graphs.saved() if "primal" not in n.name and n.meta["val"].dtype == torch.float32
    ]
    assert len(kept) <= 1
    assert graphs.backward_targets().count("aten.mm.default") > 6
    graphs.outputs.sum().backward()


def test_saved_values_name_their_origin():
    graphs = Graphs(lambda x, w: ((x @ w).tanh(), x.sum()), [leaf(4, 4), leaf(4, 4)])
    outputs = next(iter(reversed(graphs.cut.forward.graph.nodes))).args[0]
    placeholders = [n for n in graphs.cut.forward.graph.nodes if n.op == "placeholder"]
    for origin, node in zip(graphs.cut.saved, graphs.saved(), strict=True):
        source = outputs[origin.index] if origin.origin == "output" else placeholders[origin.index]
        assert source.meta["val"].shape == node.meta["val"].shape


def test_a_partition_that_loses_a_gradient_is_named():
    def losing(joint, *, forward_outputs, options):
        cut = aot_autograd.default_partition(
            joint, forward_outputs=forward_outputs, options=options
        )
        output = next(iter(reversed(cut.backward.graph.nodes)))
        output.args = (output.args[0][:-1],)
        return cut

    compiled = aot_autograd.aot_function(
        lambda x, w: x @ w, lambda gm, _: gm.forward, partition_fn=losing
    )
    with pytest.raises(aot_autograd.PartitionError, match="returns 1 gradients"):
        compiled(leaf(2, 2), leaf(2, 2))


def test_a_partition_that_saves_too_little_is_named():
    def forgetful(joint, *, forward_outputs, options):
        return aot_autograd.split(joint, forward_outputs, [])

    compiled = aot_autograd.aot_function(
        lambda x: x.sin(), lambda gm, _: gm.forward, partition_fn=forgetful
    )
    with pytest.raises(aot_autograd.PartitionError, match="needs input 'primal_0'"):
        compiled(leaf(3))


def test_getitem_has_the_kind_of_its_source():
    graphs = Graphs(lambda x: torch.var_mean(x, 1)[0], [leaf(4, 4)])
    picked = [node for node in graphs.joint.graph.nodes if node.target is operator.getitem]
    assert {classify.kind_of(node) for node in picked} == {"reduction"}
