"""Small programs as people write them: one graph, eager's results, twice."""

import sys
from pathlib import Path

import pytest
import torch

import dynamo
from dynamo.testing import same

sys.path.append(str(Path(__file__).parent))

import everyday_library_programs as library
import everyday_programs as language


@pytest.mark.parametrize("program", [*language.PROGRAMS, *library.PROGRAMS])
def test_one_graph_gives_what_eager_gives(program):
    options = dynamo.DynamoOptions(strict=True)
    compiled = dynamo.optimize("eager", fullgraph=True, options=options)(program)
    x = torch.linspace(-1, 1, 3)
    expected = program(x)
    assert same(compiled(x), expected)
    assert same(compiled(x), expected)
