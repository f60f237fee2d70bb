"""Operators over lists and fused optimizer steps, against eager."""

import pytest
import torch

from primtorch import decomposition_table
from primtorch.registry import overload, registered

TABLE = decomposition_table("prims")
FOREACH = sorted((op for op in registered() if op._opname.startswith("_foreach_")), key=str)


def tensors(dtype, seed, *, positive=False):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator) for shape in ((3, 4), (5,), ())]
    return [(t.abs().clamp(0.1, 0.9) if positive else t).to(dtype) for t in made]


def arguments(operator, dtype):
    made, lists = [], 0
    for argument in operator._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only or (argument.has_default_value() and kind == "bool"):
            continue
        match kind:
            case "List[Tensor]":
                made.append(tensors(dtype, lists, positive=True))
                lists += 1
            case "number":
                made.append(2 if "norm" in operator._opname else 0.25)
            case "List[number]":
                made.append([0.25, 0.5, 2.0])
            case "Tensor":
                made.append(torch.tensor(0.5, dtype=dtype))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("operator", FOREACH, ids=str)
def test_lists_are_taken_apart_as_eager_computes_them(operator, dtype):
    given = arguments(operator, dtype)
    expected, found = operator(*given), TABLE[operator](*given)
    assert len(expected) == len(found) == 3
    for left, right in zip(expected, found, strict=True):
        assert left.dtype is right.dtype
        torch.testing.assert_close(
            right, left, rtol=2e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-5
        )


def test_many_list_operators_are_known():
    assert len(FOREACH) > 65


@pytest.mark.parametrize("name", ["_fused_adam", "_fused_adamw"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
def test_adam(name, amsgrad, scaled):
    operator = overload(f"aten.{name}")
    parameters, grads, first = (tensors(torch.float32, seed) for seed in range(3))
    second, largest = (tensors(torch.float32, seed, positive=True) for seed in (3, 4))
    steps = [torch.tensor(3.0) for _ in parameters]
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.05, "eps": 1e-8}
    options |= {"amsgrad": amsgrad, "maximize": scaled}
    if scaled:
        options |= {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)}
    lists = (parameters, grads, first, second, largest if amsgrad else [], steps)
    expected = operator(*lists, **options)
    found = TABLE[operator](*lists, **options)
    torch.testing.assert_close(
        [list(f) for f in found], [list(e) for e in expected], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("infinite", [0.0, 1.0])
def test_sgd(nesterov, first, infinite):
    operator = overload("aten._fused_sgd")
    lists = [tensors(torch.float32, seed) for seed in range(3)]
    options = {"weight_decay": 0.1, "momentum": 0.9, "lr": 0.1, "dampening": 0.0}
    options |= {"nesterov": nesterov, "maximize": False, "is_first_step": first}
    options |= {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(infinite)}
    expected = operator(*lists, **options)
    found = TABLE[operator](*lists, **options)
    parts = (0, 2) if infinite else (0, 1, 2)  # eager leaves the gradients of a skipped step scaled
    for part in parts:
        torch.testing.assert_close(list(found[part]), list(expected[part]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("infinite", [None, 0.0, 1.0])
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)])
def test_adagrad(infinite, rate):
    tensor_rate = isinstance(rate, torch.Tensor)
    operator = overload("aten._fused_adagrad" + (".tensor_lr" if tensor_rate else ""))
    lists = [tensors(torch.float32, seed) for seed in range(2)]
    lists += [tensors(torch.float32, 3, positive=True), [torch.tensor(3.0) for _ in lists[0]]]
    options = {"lr": rate, "lr_decay": 0.2, "weight_decay": 0.1, "eps": 1e-8, "maximize": True}
    if infinite is not None:
        options |= {"grad_scale": torch.tensor(2.0), "found_inf": torch.tensor(infinite)}
    expected = operator(*lists, **options)
    found = TABLE[operator](*lists, **options)
    assert len(found) == len(expected)
    for part in (0, 2) if infinite else range(len(found)):
        torch.testing.assert_close(list(found[part]), list(expected[part]), rtol=1e-5, atol=1e-6)
