"""Tensor hooks registered by compiled code on arguments, leaves and results: eager's values and order, no breaks."""

import sys
from functools import partial
from pathlib import Path

import pytest

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests"))

from late_hook_programs import BROKEN, WHOLE, assert_alike, in_autocast, left_by

# Results of one graph are results of one node: hooks of theirs that its user registers run in their order.
left = partial(left_by, several=False)
whole = partial(compile_api.compile, fullgraph=True, options={"strict": True})


@pytest.mark.parametrize("function", WHOLE)
def test_whole(function):
    compiled = whole(function)
    for seed in range(2):
        narrow = {"rtol": 0.02, "atol": 0.1} if function is in_autocast else {}
        assert_alike(left(compiled, seed), left(function, seed), **narrow)


@pytest.mark.parametrize(("function", "reason"), BROKEN)
def test_broken(function, reason):
    with pytest.raises(Exception, match=reason):
        left_by(whole(function), 0)
    compiled = compile_api.compile(function, options={"strict": True})
    for seed in range(2):
        assert_alike(left(compiled, seed), left(function, seed))
