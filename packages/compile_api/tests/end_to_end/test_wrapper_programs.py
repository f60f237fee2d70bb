"""Random programs on tensors made of tensors: values, gradients, classes, versions are those of eager."""

import random
import sys
import warnings
from pathlib import Path

import pytest
import torch

import compile_api

sys.path.append(str(Path(__file__).parents[3] / "dynamo" / "tests"))
sys.path.append(str(Path(__file__).parents[3] / "aot_autograd" / "tests"))

from wrapper_programs import outcome
from wrapper_tensors import Two, assert_same, nested, two

UNARY = ("sin", "exp", "abs", "neg", "relu", "t", "clone", "detach")
BINARY = ("add", "mul", "sub", "maximum", "matmul")
VIEWS = (
    "[0:2]",
    ".t()",
    ".view(9)",
    ".view(3, 3)",
    "[None][0]",
    ".unsqueeze(0).squeeze(0)",
    ".diagonal()",
)
WRITES = (".mul_(2)", ".add_({plain})", ".zero_()", "[0] = 1", ".copy_({other})")


def program(seed, *, writes):
    """The text of a program of `a` and `b`, wrappers of 3x3, and `p`, a plain tensor, and of what it returns."""
    choose = random.Random(seed)
    lines = []
    square, any_shape = ["a", "b"], ["a", "b"]
    for number in range(choose.randint(2, 7)):
        name = f"v{number}"
        kind = choose.choice(("unary", "binary", "view", "part", "made", "plain", "write"))
        value, other = choose.choice(square), choose.choice(square)
        match kind:
            case "unary":
                lines.append(f"{name} = torch.{choose.choice(UNARY)}({value})")
                square.append(name)
            case "binary":
                lines.append(f"{name} = torch.{choose.choice(BINARY)}({value}, {other})")
                square.append(name)
            case "view":
                view = choose.choice(VIEWS)
                lines.append(f"{name} = ({value}.reshape(3, 3)){view}")
                any_shape.append(name)
            case "part":
                lines.append(f"{name} = {value}.both() if len({value}) == 3 else {value}.left")
                any_shape.append(name)
            case "made":
                lines.append(f"{name} = Two({value}.left, {other}.right)")
                square.append(name)
            case "plain":
                lines.append(f"{name} = {value} * p")
                square.append(name)
            case "write" if writes:
                write = choose.choice(WRITES).format(plain="p", other=other)
                lines.append(f"{value}{write}")
            case _:
                continue
        if name in square and name not in any_shape:
            any_shape.append(name)
    returned = choose.sample(any_shape, min(len(any_shape), choose.randint(1, 3)))
    body = "\n    ".join([*lines, f"return {', '.join(returned)},"])
    return f"def run(a, b, p):\n    {body}\n"


def check(seed, backend):
    """Whether eager accepts a program; what it leaves compiled is compared."""
    make = nested if seed % 5 == 4 else two
    grad = seed % 2 == 0
    text = program(seed, writes=True)
    scope = {"torch": torch, "Two": Two}
    exec(compile(text, f"<program {seed}>", "exec"), scope)
    run = scope["run"]

    def inputs(make):
        leaves = [make(3, 3).requires_grad_(grad) for _ in "ab"]
        first, second = (leaf * 1 for leaf in leaves)
        return leaves, [first, first if seed % 7 == 3 else second, torch.randn(3, 3)]

    # Some end in an alias of a part with a history of its own: those graphs run eagerly, by name.
    compiled = compile_api.compile(run, backend=backend, options={"strict": False})
    try:
        want, facts = outcome(run, inputs, make)
        for _ in range(2):
            got, found = outcome(compiled, inputs, make)
            assert found == facts
            for pair in zip(want, got, strict=True):
                assert_same(*pair)
    except Exception as error:
        raise AssertionError(f"program {seed}:\n{text}") from error
    return bool(want)


@pytest.mark.property
def test_programs_through_the_graph_of_operators():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert sum(check(seed, "aot_eager") for seed in range(40)) > 20
