"""Attention of fewer heads of keys and values: the library reads them as they are."""

import pytest
import torch

from inductor.ir import OperatorCall

aten = torch.ops.aten


def repeated(x, times):
    batch, heads, tokens, width = x.shape
    wide = x[:, :, None].expand(batch, heads, times, tokens, width)
    return wide.reshape(batch, heads * times, tokens, width)


def attend(query, key, value, **options):
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, **options)[0]


def grouped(query, key, value):
    return attend(query, repeated(key * 2, 3), repeated(value + 1, 3))


def causal(query, key, value):
    return attend(query, repeated(key, 3), repeated(value, 3), is_causal=True)


def turned(query, key, value):
    key, value = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (key, value))
    return attend(query, repeated(key, 3), repeated(value, 3), scale=0.5)


def _heads(program):
    (call,) = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    return [view.shape[1] for view in call.args[:3]]


@pytest.mark.parametrize("function", [grouped, causal, turned])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_that_are_repeated_for_it_alone_are_not_written_out(compare, function, dtype):
    query = torch.randn(2, 6, 5, 16, dtype=dtype)
    key, value = torch.randn(2, 2, 9, 16, dtype=dtype), torch.randn(2, 2, 9, 16, dtype=dtype)
    program = compare(
        function, query, key, value, tolerance=2e-2 if dtype is torch.bfloat16 else 1e-5
    )
    assert _heads(program) == [6, 2, 2]


def seen_elsewhere(query, key, value):
    wide = repeated(key * 2, 3)
    return attend(query, wide, repeated(value, 3)), wide


def repeated_by_turns(query, key, value):
    wide = [x[:, None].expand(2, 3, 2, 9, 16).reshape(2, 6, 9, 16) for x in (key, value)]
    return attend(query, *wide)


def one_of_them(query, key, value):
    return attend(query, repeated(key, 3), torch.cat([value, value, value], 1))


@pytest.mark.parametrize("function", [seen_elsewhere, repeated_by_turns, one_of_them])
def test_other_heads_are_written_out(compare, function):
    query, key, value = torch.randn(2, 6, 5, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    assert _heads(compare(function, query, key, value, tolerance=1e-5)) == [6, 6, 6]
