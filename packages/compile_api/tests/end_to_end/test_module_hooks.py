"""Backward hooks of modules through the whole compiler."""

import sys
from pathlib import Path

import pytest
import torch

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests"))

from module_hook_programs import PROGRAMS, Net

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_hooks_see_what_eager_shows_them(program):
    found = program(lambda module: compile_api.compile(module, fullgraph=True))
    assert found == program(lambda module: module)


def test_a_module_is_looked_up_by_its_compiled_twin():
    net = Net()
    compiled = compile_api.compile(net)
    assert {net: 1}[compiled] == 1
    assert {compiled: 1}[net] == 1
    assert compiled == net
    assert compiled != Net()
    assert compiled == compile_api.compile(net)
    torch.testing.assert_close(compiled(torch.ones(2, 4)), net(torch.ones(2, 4)))
