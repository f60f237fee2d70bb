"""Questions about tensors made of constants: answered while capturing, with the number that eager gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamo import DynamoOptions, optimize
from dynamo.testing import CompileCounter

LOWEST = torch.finfo(torch.float32).min


def compiled(function, **arguments):
    counter = CompileCounter()
    return optimize(counter, options=DynamoOptions(strict=True), **arguments)(function), counter


def mask_of_ones(x):
    mask = torch.ones(x.shape[:2])
    return x * 2 if mask.all() else x


def padded_mask(x):
    mask = torch.nn.functional.pad(torch.ones(x.shape[:2], device=x.device), (0, 3), value=0)
    return x + 1 if (mask == 2).any() else x - 1


def extended_mask(x):
    mask = torch.clamp(torch.ones(x.shape[0], x.shape[1] + 1), min=0, max=1)
    seen = torch.arange(x.shape[1] + 1) >= 1
    shown = torch.where(seen & mask.to(torch.bool), torch.zeros(()), LOWEST)[:, 1:]
    shown[mask[:, 1:] == 2] = torch.finfo(torch.float32).max
    above = (shown > 0).flatten().any().item()
    return x * 3 if above else x + shown[..., None]


def written_mask(x):
    mask = torch.zeros_like(x[..., 0], dtype=torch.bool)
    mask[:, 0] = True
    return x.masked_fill(mask[..., None], 0.0) if mask.any() else x


def joined(x):
    mask = torch.cat([x.new_ones(x.shape[0], 2), x.new_zeros(x.shape[0], 1)], -1)
    return x * 2 if torch.max(mask) > 1 else x * 5


def summed(x):
    extra = torch.full((x.shape[0],), 0)
    return x * 2 if extra.sum() == 0 else x * 5


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [mask_of_ones, padded_mask, extended_mask, summed])
def test_a_mask_that_no_input_decides_is_no_break(program, dynamic):
    x = torch.randn(3, 4, 5)
    function, counter = compiled(program, fullgraph=True, dynamic=dynamic)
    torch.testing.assert_close(function(x), program(x))
    assert counter.frame_count == 1


@pytest.mark.parametrize("program", [written_mask, joined])
def test_two_possible_numbers_decide_nothing(program):
    x = torch.randn(3, 4, 5)
    function, _ = compiled(program)
    torch.testing.assert_close(function(x), program(x))


def test_nothing_is_said_of_tensors_that_may_be_empty():
    def nonempty(x):
        return x + 1 if torch.ones(x.shape[0]).any() else x - 1

    function, _ = compiled(nonempty, dynamic=True)
    for rows in (3, 2, 0, 1):
        x = torch.randn(rows)
        torch.testing.assert_close(function(x), nonempty(x))


def test_a_librarys_operator_is_not_taken_for_torchs():
    @torch.library.custom_op("contents_test::ones", mutates_args=())
    def ones(x: torch.Tensor) -> torch.Tensor:
        return x * 0 + 7

    @ones.register_fake
    def _(x):
        return torch.empty_like(x)

    @torch.library.custom_op("contents_test::clamp", mutates_args=("x",))
    def clamp(x: torch.Tensor) -> None:
        x.fill_(9)

    def program(x):
        made = torch.ops.contents_test.ones(x)
        written = torch.zeros(3)
        torch.ops.contents_test.clamp(written)
        return x * made.max().item(), x * written.max().item()

    x = torch.ones(3)
    function, _ = compiled(program)
    torch.testing.assert_close(function(x), program(x))


def test_a_running_mean_is_written_without_a_word():
    def program(x):
        mean, variance = torch.zeros(5), torch.ones(5)
        y = torch.nn.functional.batch_norm(x, mean, variance, training=True)
        return y * 2 if mean.any() else y

    x = torch.randn(4, 5)
    function, _ = compiled(program)
    torch.testing.assert_close(function(x), program(x))


def test_a_gradient_is_added_to_zeros():
    def program(x):
        leaf = x.detach().clone().requires_grad_()
        leaf.grad = torch.zeros_like(leaf)
        (leaf * 3).sum().backward()
        return leaf.grad * 2 if leaf.grad.any() else x

    x = torch.randn(4)
    function, _ = compiled(program)
    torch.testing.assert_close(function(x), program(x))


STEPS = {
    "view": lambda m, x: m[None].transpose(0, 1).flatten(0, 1),
    "cut": lambda m, x: m[:, 1:] if m.shape[1] > 1 else m,
    "turned": lambda m, x: m.t().contiguous(),
    "negative": lambda m, x: -m,
    "more": lambda m, x: m + 1,
    "less": lambda m, x: m - True,
    "compared": lambda m, x: (m > 0).to(m.dtype),
    "whole": lambda m, x: m.long(),
    "half": lambda m, x: m.half(),
    "padded": lambda m, x: torch.nn.functional.pad(m, (1, 0), value=2),
    "lower": lambda m, x: torch.tril(m),
    "infinite": lambda m, x: torch.where(m != 0, m, float("-inf")),
    "data": lambda m, x: torch.where(x[0, 0] > 0, m, 3),
    "filled": lambda m, x: m.masked_fill(m == 1, 0),
    "filled in place": lambda m, x: m.masked_fill_(m == 1, 0),
    "set": lambda m, x: (m[:1].fill_(1), m)[1],
    "set by data": lambda m, x: (m.__setitem__(slice(0, 1), x[0, 0].to(m.dtype)), m)[1],
    "doubled in place": lambda m, x: (m.t()[1:].mul_(2), m)[1],
    "added in place": lambda m, x: m.__iadd__(1),
    "copied": lambda m, x: (torch.zeros_like(m).copy_(m), m)[1],
    "joined": lambda m, x: torch.cat([m, torch.ones_like(m)], 1),
    "whether": lambda m, x: m.any(1, keepdim=True).to(m.dtype),
    "least": lambda m, x: m.amin(1, keepdim=True),
}
QUESTIONS = {
    "any": lambda m: m.any().item(),
    "all": lambda m: bool(m.all()),
    "max": lambda m: float(m.max()),
    "sum": lambda m: m.sum().item(),
    "first": lambda m: m.flatten()[:1].item(),
}


@settings(max_examples=40, deadline=None)
@given(
    start=st.sampled_from([0, 1, 2]),
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=5),
    question=st.sampled_from(sorted(QUESTIONS)),
    dynamic=st.booleans(),
)
def test_answers_are_eagers(start, steps, question, dynamic):
    def program(x):
        mask = torch.full(x.shape, float(start))
        for step in steps:
            mask = STEPS[step](mask, x)
        return x * 2, QUESTIONS[question](mask), mask

    x = torch.randn(2, 3)
    try:
        wanted = program(x)
    except RuntimeError:  # a step that doesn't fit the one before it
        return
    function, _ = compiled(program, dynamic=dynamic)
    torch.testing.assert_close(function(x), wanted, equal_nan=True)
