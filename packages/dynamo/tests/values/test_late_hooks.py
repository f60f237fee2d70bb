"""Tensor hooks that are registered on the tensors themselves when the graph has run: eager's values and order."""

import sys
from pathlib import Path

import pytest

import dynamo

sys.path.append(str(Path(__file__).parents[1]))

from late_hook_drawn import drawn
from late_hook_programs import BROKEN, WHOLE, assert_alike, left_by, of_parts_without_gradient


@pytest.mark.parametrize("function", [*WHOLE, of_parts_without_gradient])
def test_whole(function):
    compiled = dynamo.optimize("eager", fullgraph=True)(function)
    for seed in range(2):
        assert_alike(left_by(compiled, seed), left_by(function, seed))


@pytest.mark.parametrize(("function", "reason"), BROKEN)
def test_broken(function, reason):
    with pytest.raises(dynamo.CaptureError, match=reason):
        left_by(dynamo.optimize("eager", fullgraph=True)(function), 0)
    compiled = dynamo.optimize("eager")(function)
    for seed in range(2):
        assert_alike(left_by(compiled, seed), left_by(function, seed))


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_drawn_programs(first):
    for seed in range(first, first + 20):
        program = drawn(seed)
        try:
            want = left_by(program, seed)
        except RuntimeError:  # it changed what its own backward needs
            continue
        assert_alike(left_by(dynamo.optimize("eager")(program), seed), want)
