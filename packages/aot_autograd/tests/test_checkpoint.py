"""`torch.utils.checkpoint` in all its forms: values as in eager, and what it says is recomputed is recomputed."""

import functools

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import aot_autograd


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def body(x, w):
    return ((x @ w).sin().exp() @ w).tanh()


def saved_shapes(function, inputs, graph_runner, **options):
    """How many values of what kind the backward recomputes, and its gradients compared with eager's."""
    graphs = []

    def backward_compiler(gm, example_inputs):
        graphs.append(gm)
        return graph_runner(gm, example_inputs)

    compiled = aot_autograd.aot_function(function, graph_runner, backward_compiler, options=options)
    results = []
    for one in (function, compiled):
        given = [value.detach().clone().requires_grad_() for value in inputs]
        torch.manual_seed(3)
        out = one(*given)
        out.sum().backward()
        results.append([out.detach(), *(value.grad for value in given)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
    (graph,) = graphs
    calls = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    saved = [
        node.name
        for node in graph.graph.nodes
        if node.op == "placeholder" and node.meta["input"]["kind"] == "saved"
    ]
    return calls, saved


def test_everything_inside_is_recomputed(graph_runner):
    def function(x, w):
        return checkpoint(body, x, w, use_reentrant=False)

    calls, saved = saved_shapes(function, [leaf(4, 4), leaf(4, 4)], graph_runner)
    assert saved == ["primal_0", "primal_1"]
    assert calls.count("aten.mm.default") == 6
    assert calls.count("aten.exp.default") == 1


@pytest.mark.parametrize("policy", [CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE])
def test_a_policy_says_what_is_saved(graph_runner, policy):
    def choose(_context, operator, *_args, **_kwargs):
        return (
            policy if operator is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE
        )

    def function(x, w):
        contexts = functools.partial(create_selective_checkpoint_contexts, choose)
        return checkpoint(body, x, w, use_reentrant=False, context_fn=contexts)

    for budget in (1.0, 0.3):
        calls, saved = saved_shapes(
            function,
            [leaf(4, 4), leaf(4, 4)],
            graph_runner,
            activation_memory_budget=budget,
        )
        assert calls.count("aten.mm.default") == 4
        assert calls.count("aten.exp.default") == 1
        assert saved == ["primal_0", "primal_1", "mm_default", "mm_default_1"]


def test_a_list_of_operators_is_a_policy(graph_runner):
    def function(x, w):
        contexts = functools.partial(
            create_selective_checkpoint_contexts, [torch.ops.aten.exp.default]
        )
        return checkpoint(body, x, w, use_reentrant=False, context_fn=contexts)

    calls, saved = saved_shapes(function, [leaf(4, 4), leaf(4, 4)], graph_runner)
    assert saved == ["primal_0", "primal_1", "exp_default"]
    assert "aten.exp.default" not in calls


def test_the_operators_of_two_regions_are_told_apart(graph_runner):
    def function(x, w):
        first = checkpoint(body, x, w, use_reentrant=False)
        between = first.cos()
        return checkpoint(body, between, w, use_reentrant=False).sin()

    _, saved = saved_shapes(function, [leaf(4, 4), leaf(4, 4)], graph_runner)
    # The inputs, what lies between the regions (`cos` too: a product of the backward reads it), what follows.
    assert saved == ["primal_0", "primal_1", "tanh_default", "cos_default", "tanh_default_1"]


def test_reentrant_checkpoints_have_eagers_gradients(agree):
    def function(x, w):
        return checkpoint(lambda one: body(one, w), x, use_reentrant=True).sum()

    agree(function, lambda: [leaf(4, 4), leaf(4, 4)])
    agree(
        lambda x, w: checkpoint(body, x, w, use_reentrant=True, preserve_rng_state=False) * x,
        lambda: [leaf(4, 4), leaf(4, 4)],
    )


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("fallback_random", [True, False])
def test_dropout_is_the_same_when_recomputed(graph_runner, use_reentrant, fallback_random):
    def function(x):
        inside = lambda a: torch.nn.functional.dropout(a, 0.5)
        return checkpoint(inside, x, use_reentrant=use_reentrant)

    compiled = aot_autograd.aot_function(
        function, graph_runner, options={"fallback_random": fallback_random}
    )
    x = torch.ones(200, requires_grad=True)
    out = compiled(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_checkpoints_nest_and_follow_each_other(agree):
    def nested(x, w):
        inner = lambda a: checkpoint(torch.sin, a @ w, use_reentrant=False)
        return checkpoint(inner, x, use_reentrant=False).exp()

    agree(nested, lambda: [leaf(4, 4), leaf(4, 4)])
    stages = [torch.sin, torch.exp, torch.tanh]
    agree(lambda x: checkpoint_sequential(stages, 2, x, use_reentrant=False), lambda: [leaf(4, 4)])


def test_keywords_containers_and_early_stop(agree):
    def function(x, w):
        def inside(pair, *, scale):
            return {"out": (pair[0] @ pair[1]).sin() * scale}

        return checkpoint(inside, (x, w), scale=2.0, use_reentrant=False, early_stop=False)["out"]

    agree(function, lambda: [leaf(4, 4), leaf(4, 4)])
