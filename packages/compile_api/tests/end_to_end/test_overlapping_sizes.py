"""Arguments that share memory, of which one is written, where sizes have varied: values and versions as in eager."""

import pytest
import torch

import compile_api

PLACES = ((4, 0, 1, 3), (5, 2, 0, 3), (6, 1, 3, 3), (8, 4, 0, 4), (3, 0, 1, 2))


def written(first, second):
    first.mul_(2)
    return second + 1


@pytest.mark.parametrize("tracked", [False, True])
def test_views_of_one_tensor_after_other_sizes(tracked):
    compiled = compile_api.compile(written, options={"strict": True})
    for length in (3, 5, 7):  # by now sizes are symbols
        compiled(torch.ones(length), torch.ones(length))
    for length, first, second, count in PLACES:
        seen = []
        for function in (written, compiled):
            leaf = torch.arange(1.0, length + 1).requires_grad_(tracked)
            base = leaf * 1
            result = function(base[first : first + count], base[second : second + count])
            if tracked:
                (base.sum() + result.square().sum()).backward()
            seen.append([base.detach(), result.detach(), leaf.grad, base._version])
        for want, got in zip(*seen, strict=True):
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want)
            else:
                assert got == want
