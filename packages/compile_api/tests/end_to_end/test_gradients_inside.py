"""Gradients computed inside of compiled functions, through the whole compiler."""

import sys
from pathlib import Path

import pytest
import torch

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests"))

from gradient_programs import BREAKING, PROGRAMS


def equal(found, expected):
    if isinstance(expected, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            equal(one, other)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
        assert found.requires_grad is expected.requires_grad
    else:
        assert found == expected


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph_gives_what_eager_gives(program):
    found = program(lambda function: compile_api.compile(function, fullgraph=True))
    equal(found, program(lambda function: function))


@pytest.mark.parametrize("program", BREAKING)
def test_a_break_gives_what_eager_gives(program):
    equal(program(compile_api.compile), program(lambda function: function))
