"""The walkthrough's table of functions: each is called when its example is compiled, in the order of the table."""

import re
import sys
from pathlib import Path

import torch
from torch.nn import functional

import compile_api

PAGE = Path(__file__).parents[4] / "docs" / "walkthrough.md"


def loss(x):
    return functional.gelu(x).sum()


def names_of_table():
    table = PAGE.read_text().partition("| stage | what | function |")[2].partition("\n\n")[0]
    return [name for row in table.splitlines() for name in re.findall(r"`(\w+(?:\.\w+)+)`", row)]


def test_the_functions_named_are_called_in_the_order_said():
    met = {}

    def note(frame, event, _argument):
        if event == "call":
            name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
            met.setdefault(name, len(met))

    x = torch.linspace(-2, 2, 8, requires_grad=True)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        compile_api.explain(loss, x)
    finally:
        sys.setprofile(before)
    names = names_of_table()
    assert len(names) > 12
    assert [name for name in names if name not in met] == []
    assert names == sorted(names, key=met.__getitem__)
