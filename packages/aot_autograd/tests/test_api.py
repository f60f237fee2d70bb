"""The public functions: what they accept, what they refuse, and what they show."""

import warnings
from functools import partial

import pytest
import torch
from torch import fx, randn

import aot_autograd
from primtorch import decomposition_table


def leaf(*shape):
    return randn(*shape).requires_grad_()


def symbolic_graph(function, *inputs):
    gm = fx.symbolic_trace(function)
    for node, value in zip(
        [n for n in gm.graph.nodes if n.op == "placeholder"], inputs, strict=True
    ):
        node.meta["input"] = {"kind": "argument", "name": str(node.target), "static": False}
        node.meta["example"] = value
    for node in gm.graph.nodes:
        node.meta["source_line"] = ("model.py", 41, "forward", "y = x @ w")
    return gm


def test_simplified_takes_and_empties_one_list(graph_runner):
    x, w = leaf(3, 4), leaf(4, 2)
    gm = symbolic_graph(lambda x, w: ((x @ w).relu(), x.sum()), x, w)
    compiled = aot_autograd.aot_module_simplified(gm, [x, w], fw_compiler=graph_runner)
    assert compiled.boxed
    args = [x, w]
    one, two = compiled(args)
    torch.testing.assert_close(one, (x @ w).relu())
    torch.testing.assert_close(two, x.sum())


def test_inference_without_effects_is_the_compiled_callable_itself():
    kept = []

    def compiler(gm, example_inputs):
        kept.append(aot_autograd.make_boxed_func(gm.forward))
        return kept[0]

    x = randn(3)
    gm = symbolic_graph(lambda x: (x.sin(),), x)
    assert aot_autograd.aot_module_simplified(gm, [x], fw_compiler=compiler) is kept[0]


def test_compilers_get_the_graphs_and_their_roles():
    roles = []

    def compiler(gm, example_inputs):
        roles.append((gm.meta["role"], gm.meta["wire"], len(example_inputs)))
        return aot_autograd.make_boxed_func(gm.forward)

    compiled = aot_autograd.aot_function(lambda x, w: (x @ w).tanh(), compiler)
    compiled(leaf(2, 2), leaf(2, 2)).sum().backward()
    with torch.no_grad():
        compiled(leaf(2, 2), leaf(2, 2))
    assert roles == [("forward", 1, 2), ("backward", 1, 4), ("inference", 1, 2)]


def test_backward_is_compiled_after_the_forward_unless_told():
    roles = []

    def compiler(gm, example_inputs):
        roles.append(gm.meta["role"])
        return aot_autograd.make_boxed_func(gm.forward)

    aot_autograd.aot_function(lambda x: x.sin(), compiler, options={"backward_worker": False})(
        leaf(2)
    )
    assert roles == ["forward"]
    aot_autograd.aot_function(lambda x: x.sin(), compiler, options={"lazy_backward": False})(
        leaf(2)
    )
    assert roles == ["forward", "forward", "backward"]


def test_containers_constants_and_keywords(graph_runner):
    def function(batch, *, scale, names):
        return {"out": batch["x"] * scale, "names": names, "pair": (batch["y"], None)}

    compiled = aot_autograd.aot_function(function, graph_runner)
    batch = {"x": randn(3), "y": randn(2)}
    result = compiled(batch, scale=2, names=["a"])
    torch.testing.assert_close(result["out"], batch["x"] * 2)
    assert result["pair"][0] is batch["y"]
    assert result["names"] == ["a"]
    torch.testing.assert_close(compiled(batch, scale=3, names=["a"])["out"], batch["x"] * 3)


def test_other_shapes_compile_again(graph_runner):
    count = []

    def compiler(gm, example_inputs):
        count.append(gm)
        return graph_runner(gm, example_inputs)

    compiled = aot_autograd.aot_function(lambda x: x.sin(), compiler)
    for size in (3, 4, 3):
        compiled(randn(size))
    assert len(count) == 2


def test_module_shares_its_parameters(graph_runner):
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
    compiled = aot_autograd.aot_module(module, graph_runner)
    x = randn(5, 3)
    compiled(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    assert module[1].num_batches_tracked == 1
    assert set(dict(compiled.named_parameters())) == {
        f"module.{n}" for n, _ in module.named_parameters()
    }


def test_tied_parameters(graph_runner):
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    module[2].weight = module[0].weight
    compiled = aot_autograd.aot_module(module, graph_runner)
    x = randn(5, 3)
    compiled(x).sum().backward()
    got = module[0].weight.grad.clone()
    module.zero_grad()
    module(x).sum().backward()
    torch.testing.assert_close(got, module[0].weight.grad)


def test_decompositions_are_an_argument(graph_runner):
    seen = []

    def compiler(gm, example_inputs):
        seen.extend(str(n.target) for n in gm.graph.nodes)
        return graph_runner(gm, example_inputs)

    table = decomposition_table("inductor")
    compiled = aot_autograd.aot_function(torch.nn.functional.gelu, compiler, decompositions=table)
    x = randn(5)
    torch.testing.assert_close(compiled(x), torch.nn.functional.gelu(x))
    assert "aten.gelu.default" not in seen


def test_exceptions_of_the_user_pass_through(graph_runner):
    def function(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        aot_autograd.aot_function(function, graph_runner)(randn(2))


def test_observer_sees_every_stage(graph_runner):
    stages = {}
    compiled = aot_autograd.aot_function(
        lambda x, w: (x @ w).sin(), graph_runner, observer=stages.__setitem__
    )
    compiled(leaf(2, 3), leaf(3, 2))
    assert list(stages) == ["03_joint.py", "04_forward.py", "05_backward.py"]
    assert "primal_0: f32[2, 3],  # argument" in stages["03_joint.py"]
    assert "aten.mm.default(primal_0, primal_1)" in stages["04_forward.py"]
    assert "# tangent tangent_0" in stages["05_backward.py"]


def test_text_names_the_users_line(graph_runner):
    stages = {}
    x, w = randn(3, 4), randn(4, 2)
    gm = symbolic_graph(lambda x, w: ((x @ w).relu(),), x, w)
    aot_autograd.aot_module_simplified(
        gm, [x, w], fw_compiler=graph_runner, observer=stages.__setitem__
    )
    assert "# model.py:41  y = x @ w" in stages["04_forward.py"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda r: aot_autograd.AotOptions(activation_memory_budget=2),
            "OptionError",
            "between 0 and 1",
        ),
        (
            lambda r: aot_autograd.aot_function(len, r, options={"fallback_randon": True}),
            "OptionError",
            "'fallback_random'",
        ),
        (
            lambda r: aot_autograd.aot_function(len, r, decompositions={"gelu": len}),
            "WireError",
            "operator overloads",
        ),
        (
            lambda r: aot_autograd.aot_module_simplified(
                fx.symbolic_trace(lambda x: (x,)), ["text"], fw_compiler=r
            ),
            "WireError",
            "input 0 is a str",
        ),
        (
            lambda r: aot_autograd.aot_module_simplified(
                fx.symbolic_trace(lambda x: (x,)), [], fw_compiler=r
            ),
            "WireError",
            "1 placeholders",
        ),
        (
            lambda r: aot_autograd.aot_function(torch.sin, lambda g, e: None)(randn(2)),
            "CompilerContractError",
            "callable",
        ),
        (
            lambda r: aot_autograd.aot_function(lambda x: (x.sin(), x), lambda g, e: lambda *a: ())(
                randn(2)
            ),
            "CompilerContractError",
            "returned 0 values",
        ),
        (
            lambda r: aot_autograd.aot_function(torch.sin, lambda g, e: lambda *a: ())(leaf(2)),
            "CompilerContractError",
            "the compiled forward returned 0 values",
        ),
        (
            lambda r: aot_autograd.aot_function(torch.sin, lambda g, e: lambda *a: None)(leaf(2)),
            "CompilerContractError",
            "the compiled forward returned a NoneType, no tuple",
        ),
        (  # it could be iterated, and has one row
            lambda r: aot_autograd.aot_function(torch.sin, lambda g, e: lambda x: x)(leaf(1, 3)),
            "CompilerContractError",
            "the compiled forward returned a Tensor, no tuple",
        ),
        (
            lambda r: (
                aot_autograd.aot_function(torch.sin, r, lambda g, e: lambda *a: a[0])(leaf(1, 3))
                .sum()
                .backward()
            ),
            "CompilerContractError",
            "the compiled backward returned a Tensor, no tuple",
        ),
        (
            lambda r: aot_autograd.aot_function(torch.sin, None),
            "CompilerContractError",
            "fw_compiler is a NoneType",
        ),
        (
            lambda r: aot_autograd.aot_function(torch.sin(randn(2)), r),
            "WireError",
            "given a Tensor",
        ),
        (
            lambda r: aot_autograd.aot_module(torch.sin, r),
            "WireError",
            "use aot_function",
        ),
        (
            lambda r: aot_autograd.aot_function(
                torch.sin,
                r,
                partition_fn=partial(
                    aot_autograd.min_cut_rematerialization_partition, activation_memory_budget=2
                ),
            )(leaf(2)),
            "OptionError",
            "between 0 and 1",
        ),
        (
            lambda r: aot_autograd.aot_function(lambda x: x.resize_(9), r)(randn(2)),
            "UnsupportedOperator",
            "what memory a tensor stands for",
        ),
    ],
)
def test_bad_input_is_named(call, error, message, graph_runner):
    with pytest.raises(getattr(aot_autograd, error), match=message):
        call(graph_runner)


def test_another_wire_version_is_refused(graph_runner):
    gm = fx.symbolic_trace(lambda x: (x,))
    gm.meta["wire"] = 2
    with pytest.raises(aot_autograd.WireError, match="wire version 2"):
        aot_autograd.aot_module_simplified(gm, [randn(2)], fw_compiler=graph_runner)


def test_no_warnings_on_the_ordinary_road(graph_runner):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = aot_autograd.aot_function(lambda x, w: (x @ w).tanh(), graph_runner)
        compiled(leaf(2, 2), leaf(2, 2)).sum().backward()


def test_threads_share_a_compiled_function(graph_runner):
    from concurrent.futures import ThreadPoolExecutor

    compiled = aot_autograd.aot_function(lambda x: (x @ x).tanh(), graph_runner)

    def step(seed):
        x = torch.full((4, 4), seed / 10).requires_grad_()
        compiled(x).sum().backward()
        return x.grad

    with ThreadPoolExecutor(4) as pool:
        ours = list(pool.map(step, range(16)))
    for seed, gradient in enumerate(ours):
        x = torch.full((4, 4), seed / 10).requires_grad_()
        (x @ x).tanh().sum().backward()
        torch.testing.assert_close(gradient, x.grad)


def test_optimizer_steps_equal_eager(graph_runner):
    def train(step_of):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        parameters = list(module.parameters())
        moments = [torch.zeros_like(p) for p in parameters]

        def step(parameters, gradients, moments):
            with torch.no_grad():
                torch._foreach_mul_(moments, 0.9)
                torch._foreach_add_(moments, gradients)
                torch._foreach_add_(parameters, moments, alpha=-0.1)

        run = step_of(step)
        for _ in range(5):
            module.zero_grad()
            module(torch.ones(2, 4)).pow(2).sum().backward()
            run(parameters, [p.grad for p in parameters], moments)
        return parameters

    for want, got in zip(
        train(lambda s: s), train(lambda s: aot_autograd.aot_function(s, graph_runner)), strict=True
    ):
        torch.testing.assert_close(got, want)
