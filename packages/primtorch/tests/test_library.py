"""The operators of the primtorch namespace: known answers, ranges, moments, repeatability."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from primtorch.fake import infer, meta_of
from primtorch.library import philox_words

prim = torch.ops.primtorch
CPU = torch.device("cpu")


def philox_reference(counter, key):
    """Philox 4x32-10 in Python's integers."""
    counter, key = list(counter), list(key)
    for _ in range(10):
        left, right = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (right >> 32) ^ counter[1] ^ key[0],
            right & 0xFFFFFFFF,
            (left >> 32) ^ counter[3] ^ key[1],
            left & 0xFFFFFFFF,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter


def test_known_answers_of_the_published_generator():
    assert philox_reference((0, 0, 0, 0), (0, 0)) == [
        0x6627E8D5,
        0xE169C58D,
        0xBC57AC4C,
        0x9B00DBD8,
    ]
    ones = (0xFFFFFFFF,) * 4
    assert philox_reference(ones, ones[:2]) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@settings(max_examples=30, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**40), st.integers(1, 20))
def test_words_are_philox(seed, offset, count):
    words = philox_words(torch.tensor([seed]), offset, count)
    index = count - 1
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    expected = philox_reference((index, 0, offset & 0xFFFFFFFF, offset >> 32), key)
    assert [int(word[index]) for word in words] == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_uniform_is_uniform_and_below_one(dtype):
    drawn = prim.philox_uniform(torch.tensor([7]), 0, [200, 500], dtype=dtype)
    assert drawn.dtype is dtype
    assert drawn.shape == (200, 500)
    assert drawn.is_contiguous()
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    wide = drawn.double()
    assert abs(float(wide.mean()) - 0.5) < 0.005
    assert abs(float(wide.var()) - 1 / 12) < 0.002


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_four_neighbours_take_the_words_of_one_counter(dtype):
    words = torch.stack(philox_words(torch.tensor([7]), 3, 4), dim=1).flatten()[:13]
    bits = {torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)
    drawn = prim.philox_uniform(torch.tensor([7]), 3, [13], dtype=dtype)
    assert (drawn.double() * 2**bits).tolist() == (words >> (32 - bits)).tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_normal_is_normal(dtype):
    drawn = prim.philox_normal(torch.tensor([-3]), 5, [100000], dtype=dtype).double()
    assert torch.isfinite(drawn).all()
    assert abs(float(drawn.mean())) < 0.015
    assert abs(float(drawn.std()) - 1) < 0.01
    within = float((drawn.abs() < 1).double().mean())
    assert abs(within - math.erf(math.sqrt(0.5))) < 0.01


@settings(max_examples=40, deadline=None)
@given(st.integers(-(2**62), 2**62 - 1), st.integers(1, 2**62), st.integers(0, 2**62))
def test_randint_follows_its_definition(low, width, seed):
    high = min(low + width, 2**63 - 1)
    width = high - low
    drawn = prim.philox_randint(torch.tensor([seed]), 0, [8], low, high, dtype=torch.int64)
    for index, value in enumerate(drawn.tolist()):
        word_0, word_1, *_ = philox_reference((index, 0, 0, 0), (seed & 0xFFFFFFFF, seed >> 32))
        number = word_0 * width >> 32 if width <= 2**32 else ((word_1 << 32) | word_0) % width
        assert value == low + number


def test_randint_refuses_an_empty_range():
    with pytest.raises(RuntimeError, match="from=3 >= to=3"):
        prim.philox_randint(torch.tensor([1]), 0, [2], 3, 3, dtype=torch.int64)


def test_seeds_follow_the_generator():
    torch.manual_seed(4)
    first = prim.draw_seed(CPU)
    second = prim.draw_seed(CPU)
    torch.manual_seed(4)
    assert torch.equal(prim.draw_seed(CPU), first)
    assert not torch.equal(first, second)
    assert first.shape == (1,)
    assert first.dtype is torch.int64


def test_offsets_and_seeds_give_other_numbers():
    streams = [
        prim.philox_uniform(torch.tensor([seed]), offset, [1000], dtype=torch.float64).numpy()
        for seed, offset in ((1, 0), (1, 1), (2, 0))
    ]
    assert np.abs(np.corrcoef(streams) - np.eye(3)).max() < 0.1


def test_shape_rules_say_what_comes_out():
    seed = prim.draw_seed(CPU)
    assert infer(prim.draw_seed.default, (CPU,)) == meta_of(seed)
    for operator in (prim.philox_uniform.default, prim.philox_normal.default):
        real = operator(seed, 0, [2, 3], dtype=torch.float16)
        assert infer(operator, (seed, 0, [2, 3]), {"dtype": torch.float16}) == meta_of(real)
    real = prim.philox_randint(seed, 0, [4], 0, 9, dtype=torch.int32)
    arguments = (seed, 0, [4], 0, 9)
    assert infer(prim.philox_randint.default, arguments, {"dtype": torch.int32}) == meta_of(real)


def test_a_checked_value_is_a_copy_or_an_error():
    value = torch.arange(6).view(2, 3).t()
    found = prim.checked(value, value >= 0, "negative")
    assert torch.equal(found, value)
    assert infer(prim.checked.default, (value, value >= 0, "negative")) == meta_of(found)
    with pytest.raises(RuntimeError, match="negative"):
        prim.checked(value, value > 0, "negative")
