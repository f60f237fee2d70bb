"""Shape rules equal eager: a shard of the operator database in five memory orders."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import primtorch
from primtorch.errors import RegistrationError
from primtorch.fake import RULES, infer, meta_of, shape_rule

_SPEC = importlib.util.spec_from_file_location(
    "operator_database", Path(__file__).with_name("operator_database.py")
)
database = importlib.util.module_from_spec(_SPEC)
sys.modules["operator_database"] = database
_SPEC.loader.exec_module(database)

# Overloads whose inferred metadata is known to differ somewhere; the list only shrinks.
KNOWN_WRONG = {
    "aten.sum.default": "eager has no kernel for complex32 on the CPU",
    "aten.as_strided_scatter.default": "eager asserts on non-contiguous inputs under autograd",
    "aten.native_group_norm.default": "eager refuses non-contiguous inputs",
    "aten.convolution.default": "transposed bfloat16 volumes with output padding",
    "aten.stack.default": "ambiguous channels-last strides",
}
NAMES = sorted({info.name for info in op_db})


LAYOUTS = ["plain", "reversed", "channels_last", "sliced", "swapped"]


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_shard_of_the_operator_database(layout: str, half: int) -> None:
    comparison = database.Comparison()
    names = NAMES[LAYOUTS.index(layout) :: 25][half::2]
    database.sweep(comparison, names, 2, backward=True, layout=layout)
    wrong = {name: found for name, found in comparison.wrong.items() if name not in KNOWN_WRONG}
    assert wrong == {}
    assert sum(comparison.right.values()) > 100


@pytest.mark.parametrize("layout", ["plain", "channels_last"])
def test_symbolic_rules_give_the_static_result(layout: str) -> None:
    comparison = database.Comparison(symbols=True)
    start = 7 if layout == "plain" else 13
    database.sweep(comparison, NAMES[start::40], 1, backward=True, layout=layout)
    wrong = {name: found for name, found in comparison.wrong.items() if name not in KNOWN_WRONG}
    assert wrong == {}
    assert sum(comparison.right.values()) > 100


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4)[:, 1:3],
        lambda: torch.randn(3, 4)[:0, 1:3],
        lambda: torch.randn(3, 4).t()[:, :0],
        lambda: torch.randn(4).expand(3, 4),
        lambda: torch.randn(2, 3, 4, 5).permute(1, 0, 3, 2)[:, :, :0],
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d),
    ],
)
def test_softmax_is_row_major_with_or_without_elements(make) -> None:
    x, aten = make(), torch.ops.aten
    calls = {
        aten._softmax.default: (x, 0, False),
        aten._log_softmax.default: (x, -1, False),
        aten._safe_softmax.default: (x, 0),
        aten._softmax_backward_data.default: (x, x, 0, torch.float32),
        aten._log_softmax_backward_data.default: (x, x, 0, torch.float32),
    }
    for operator, arguments in calls.items():
        expected = operator(*arguments)
        assert infer(operator, arguments, {}).stride == expected.stride(), operator
        taken_apart = primtorch.decomposition_table("inductor")[operator](*arguments)
        assert taken_apart.stride() == expected.stride(), operator


def test_two_rules_for_one_operator_are_refused() -> None:
    assert len(RULES) > 300
    with pytest.raises(RegistrationError, match="already"):
        shape_rule("add.Tensor")(lambda sizes, x, y: x)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: torch.conv2d(x, w, padding=1),
        lambda x, w: torch.nn.functional.conv_transpose2d(x, w.transpose(0, 1)),
        lambda x, w: torch.nn.functional.max_pool2d(torch.relu(x), 3, 2, 1),
        lambda x, w: torch.nn.functional.batch_norm(x, None, None, training=True),
        lambda x, w: torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x, w: torch.cat([x, x * 2], 1).mean((2, 3)),
        lambda x, w: (x + x.mean(1, keepdim=True)).permute(0, 2, 3, 1).reshape(-1, 4),
        lambda x, w: torch.nn.functional.pixel_shuffle(x, 2),
    ],
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_images_forward_and_backward(program, memory_format, dtype) -> None:
    x = torch.randn(2, 4, 8, 6, dtype=dtype).contiguous(memory_format=memory_format)
    w = torch.randn(4, 4, 3, 3, dtype=dtype)
    comparison = database.Comparison()
    x.requires_grad_()
    w.requires_grad_()
    with comparison:
        program(x, w).sum().backward()
    assert comparison.wrong == {}


def test_wrong_arguments_raise_what_eager_raises() -> None:
    meta = meta_of(torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        infer(torch.ops.aten.mm.default, (meta, meta))
    with pytest.raises(IndexError, match="Dimension out of range"):
        infer(torch.ops.aten.sum.dim_IntList, (meta, [5]))
    with pytest.raises(RuntimeError, match="must match the size"):
        infer(torch.ops.aten.add.Tensor, (meta, meta_of(torch.randn(3, 5))))


def _heads(*shape):
    return torch.randn(shape)


def _tokens(batch, heads, tokens, width):
    return torch.randn(batch, tokens, heads, width).transpose(1, 2)


def _widths_first(batch, heads, tokens, width):
    return torch.randn(width, batch, heads, tokens).permute(1, 2, 3, 0)


@pytest.mark.parametrize("make", [_heads, _tokens, _widths_first])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu_in_every_order_of_dimensions(make, dtype, causal):
    comparison = database.Comparison()
    for length, span in ((3, 3), (3, 6), (6, 3)):
        q, k, v = (make(2, 4, n, 8).to(dtype).requires_grad_() for n in (length, span, span))
        with comparison:
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
            out.backward(torch.ones_like(out))
    if make is not _widths_first:  # that order is left to the operators that attention is made of
        assert any("flash_attention_for_cpu" in name for name in comparison.right)
    assert not comparison.wrong


def test_a_rule_gives_as_many_results_as_its_operator():
    wrong = {}
    for op, rule in RULES.items():
        promised = str(inspect.signature(rule).return_annotation)
        if promised == "TensorMeta" or promised.startswith("tuple[TensorMeta"):
            given = [str(result.type) for result in op._schema.returns]
            if given != ["Tensor"] * promised.count("TensorMeta") and "..." not in promised:
                wrong[str(op)] = (promised, given)
    assert not wrong
    assert len(RULES) > 500
