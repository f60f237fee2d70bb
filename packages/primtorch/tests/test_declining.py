"""A decomposition that declines a call leaves the operator to whoever asked."""

import pytest
import torch

from primtorch import decomposition_table
from primtorch.fake import infer

aten = torch.ops.aten
TABLE = decomposition_table("prims")


def test_an_explicit_generator_is_declined():
    generator = torch.Generator()
    x = torch.ones(3)
    assert TABLE[aten.bernoulli.p](x, 0.5, generator=generator) is NotImplemented
    assert TABLE[aten.bernoulli.p](x, 0.5) is not NotImplemented


def test_dropout_inside_an_attention_kernel_is_declined():
    q = torch.ones(1, 1, 2, 4)
    operator = aten._scaled_dot_product_flash_attention_for_cpu.default
    assert TABLE[operator](q, q, q, 0.5) is NotImplemented


def test_shapes_of_a_declined_call_are_inferred_otherwise():
    def declines(*args, **kwargs):
        return NotImplemented

    x = torch.ones(2, 3)
    table = TABLE.extended({aten.special_chebyshev_polynomial_t.default: declines})
    meta = infer(aten.special_chebyshev_polynomial_t.default, (x, x), {}, decompositions=table)
    assert meta.shape == (2, 3)
    assert meta.dtype is torch.float32


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_keeps_its_share_and_its_scale(p):
    torch.manual_seed(0)
    out, mask = TABLE[aten.native_dropout.default](torch.ones(200, 100), p, True)
    assert mask.dtype is torch.bool
    assert abs(float(mask.float().mean()) - (1 - p)) < 0.02
    kept = out[mask]
    assert kept.numel() == 0 or torch.equal(kept, torch.full_like(kept, 1 / (1 - p)))
    assert not out[~mask].any()
    torch.manual_seed(0)
    again, _ = TABLE[aten.native_dropout.default](torch.ones(200, 100), p, True)
    assert torch.equal(out, again)


def test_a_negative_length_is_refused_as_eager_refuses_it():
    narrow_copy = decomposition_table("prims")[torch.ops.aten.narrow_copy.default]
    for start, length in ((0, -1), (9, 5), (-3, 5)):
        for function in (narrow_copy, torch.narrow_copy):
            with pytest.raises(RuntimeError, match="exceeds dimension size"):
                function(torch.arange(10.0), 0, start, length)
