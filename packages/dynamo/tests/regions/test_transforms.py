# ruff: noqa: PLW0108 - the transform is made inside the captured function: that is the point
"""`torch.func` transforms inside captured code, and made outside of it."""

from __future__ import annotations

import pytest
import torch

from dynamo.testing import same


def model(x, t):
    return torch.exp(-((x - 3 * t) ** 2) / (t + 1)) + x.sin()


def loss(weights, x):
    return ((x @ weights["w"] + weights["b"]) ** 2).mean()


scale = torch.tensor(2.0)


def _weights(x):
    return {"w": x[:, None] * 1.0, "b": x.sum() * scale}


PROGRAMS = {
    "vmap": lambda x: torch.vmap(lambda row: row * scale + x.sum())(x.outer(x)),
    "vmap_two": lambda x: torch.vmap(torch.dot, in_dims=(0, 1), out_dims=0)(x.outer(x), x.outer(x)),
    "vmap_none": lambda x: torch.vmap(model, in_dims=(0, None))(x, x[0]),
    "vmap_structure": lambda x: torch.vmap(lambda p: {"a": p[0] + 1, "b": (p[1],)})((x, x * 2)),
    "grad": lambda x: torch.func.grad(lambda z: (z.sin() * scale * x).sum())(x),
    "grad_argnums": lambda x: torch.func.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(x, x + 1),
    "grad_aux": lambda x: torch.func.grad(lambda a: ((a * a).sum(), {"k": a + 1}), has_aux=True)(x),
    "grad_dict": lambda x: torch.func.grad(loss)(_weights(x), x.outer(x)),
    "grad_and_value": lambda x: torch.func.grad_and_value(lambda z: (z**3).sum())(x),
    "vmap_grad": lambda x: torch.vmap(torch.func.grad(model), in_dims=(0, None))(x, x[0]),
    "grad_grad": lambda x: torch.vmap(torch.func.grad(torch.func.grad(torch.sin)))(x),
    "jacrev": lambda x: torch.func.jacrev(lambda z: z**2 * x)(x),
    "jacrev_two": lambda x: torch.func.jacrev(lambda z: (z.sin(), z.sum()))(x),
    "jacfwd": lambda x: torch.func.jacfwd(lambda z: 2 * z**2)(x),
    "hessian": lambda x: torch.func.hessian(lambda z: (z**3).sum())(x) + 0,
    "no_grad_outside": lambda x: torch.func.grad(lambda z: z.sin().sum())(x.detach()) + x,
}
row_sum = torch.vmap(lambda row: row.sum() * 2)
slope = torch.func.grad(lambda z: z.cos().sum())
PROGRAMS["made_outside"] = lambda x: row_sum(x.outer(x)) + slope(x)


def test_mapped_tensors_in_containers_from_outside(compiled):
    """As `stack_module_state` gives them: dicts of parameters, an empty one of buffers."""
    models = [torch.nn.Linear(4, 2) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = torch.nn.Linear(4, 2, device="meta")

    def one(parameters, buffers, x):
        return torch.func.functional_call(base, (parameters, buffers), (x,))

    def ensemble(x):
        return torch.vmap(one, (0, 0, None))(parameters, buffers, x)

    def nested(x, weights):
        dims = (None, 0)
        return torch.vmap(lambda w, row: w[0]["w"] * row.sum() + w[1][1][0]["b"], dims)(weights, x)

    x = torch.randn(5, 4)
    fast, _ = compiled(ensemble)
    assert same(fast(x), ensemble(x))
    weights = [{"w": torch.randn(2)}, ({"c": 1}, [{"b": torch.randn(2)}])]
    fast, _ = compiled(nested)
    assert same(fast(x, weights), nested(x, weights))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", ["eager", "aot"])
def test_transform(compiled, name, backend):
    program = PROGRAMS[name]
    fast, counter = compiled(program, backend)
    x = torch.rand(4, requires_grad=True)
    for _ in range(2):
        got, expected = fast(x), program(x)
        assert same(got, expected)
    assert counter.frame_count == 1
    flat, want = torch.utils._pytree.tree_leaves(got), torch.utils._pytree.tree_leaves(expected)
    if any(t.requires_grad for t in want):
        total = sum(t.sum() for t in flat if t.requires_grad)
        reference = sum(t.sum() for t in want if t.requires_grad)
        (a,) = torch.autograd.grad(total, x)
        (b,) = torch.autograd.grad(reference, x)
        torch.testing.assert_close(a, b)


def test_what_a_mapped_function_keeps_is_not_captured(compiled):
    kept = []

    def leak(row):
        kept.append(row)
        return row * 2

    fast, _ = compiled(lambda x: torch.vmap(leak)(x) + 1, fullgraph=False)
    x = torch.randn(3, 2)
    torch.testing.assert_close(fast(x), x * 2 + 1)
    assert len(kept) == 1


@pytest.mark.parametrize("randomness", ["different", "same"])
@pytest.mark.parametrize("backend", ["eager", "aot"])
def test_mapped_random_numbers(compiled, randomness, backend):
    def program(x):
        return torch.vmap(lambda row: row * 0 + torch.rand(3), randomness=randomness)(x)

    fast, counter = compiled(program, backend)
    x = torch.zeros(4, 3)
    torch.manual_seed(7)
    got = fast(x)
    torch.manual_seed(7)
    assert got.shape == program(x).shape
    assert (got[0] == got[1]).all() == (randomness == "same")
    assert counter.frame_count == 1
    if backend == "eager":
        torch.manual_seed(7)
        again = fast(x)
        torch.manual_seed(7)
        assert same(again, program(x))


def test_mapped_random_numbers_are_refused_by_default(compiled):
    fast, _ = compiled(lambda x: torch.vmap(lambda row: row + torch.rand(3))(x), fullgraph=False)
    with pytest.raises(RuntimeError, match="randomness"):
        fast(torch.zeros(4, 3))
