"""What eager refuses for its dtypes and numbers alone is refused on fake tensors, by the same exception."""

import dataclasses
import math
import sys
from pathlib import Path

import pytest
import torch

from primtorch.fake import FactoryMode, FakeTensor, ShapeContext, fakeify
from primtorch.symbolic import SizeEnvironment

sys.path.insert(0, str(Path(__file__).parent))
from number_programs import PROGRAMS, WITHOUT_NUMBERS

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (*INTEGERS, *FLOATS, torch.bool, torch.complex64)
SMALL = (True, 2, -1, 300, -300, 40000, 70000, 1.5, -0.5, 300.5, -1e5, 1j)
LARGE = (2**31, -(2**31) - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 1e10, 1e39)
LARGE = (*LARGE, 1e300, math.inf, -math.inf, math.nan, 1e39j)


def outcome(call):
    """What a call raised, as text; empty if it returned."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  any error of either side is the datum
        return f"{type(error).__name__}: {error}"
    return ""


def outcomes(program, dtype, number):
    """Eager's and ours, of two elements other than zero."""
    x = torch.tensor([1, 2]).to(dtype)
    context = ShapeContext()

    def on_fakes():
        with FactoryMode(context):
            program(fakeify(x, context), number, lambda v: fakeify(torch.tensor(v), context))

    expected = outcome(lambda: program(x, number, torch.tensor))
    return expected.partition("\n")[0], outcome(on_fakes).partition("\n")[0]


@pytest.mark.filterwarnings("ignore:to - 1 is out of bounds")
@pytest.mark.parametrize("name", PROGRAMS | WITHOUT_NUMBERS)
def test_numbers_and_dtypes_that_eager_refuses(name):
    different = []
    for dtype in DTYPES:
        for number in (1,) if name in WITHOUT_NUMBERS else (*SMALL, *LARGE):
            expected, found = outcomes((PROGRAMS | WITHOUT_NUMBERS)[name], dtype, number)
            if expected.partition(":")[0] != found.partition(":")[0]:
                different.append((dtype, number, expected, found))
    assert not different


def test_random_operators_that_are_asked_about_draw_nothing():
    context = ShapeContext()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    fakeify(torch.ones(5), context).exponential_(2.5)
    fakeify(torch.ones(5), context).bernoulli_(0.125)
    with FactoryMode(context):  # these take no generator
        torch.randint(3, 17, (5,))
        torch.randint_like(fakeify(torch.ones(5), context), 17)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_a_tensor_elsewhere_is_refused_its_number_but_not_its_dtype(dtype):
    context = ShapeContext()
    meta = fakeify(torch.ones(2, dtype=dtype), context).meta
    x = FakeTensor.create(dataclasses.replace(meta, device=torch.device("cuda")), context)
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.full_like(x, 70000)
    assert torch.nn.functional.elu(x).dtype is dtype  # CUDA has a kernel for more dtypes


@pytest.mark.parametrize("hint", [2.5, 1e30, -1e30, math.inf, math.nan])
def test_a_number_that_varies_is_guarded_to_stay_within_the_dtype(hint):
    environment = SizeEnvironment()
    context = ShapeContext(environment)
    number = environment.create_float("v", hint)
    x = fakeify(torch.ones(2, dtype=torch.float16), context)
    said = outcome(lambda: torch.full_like(x, number))
    assert bool(said) == (abs(hint) == 1e30)
    assert environment.guards


def test_a_number_that_varies_needs_no_guard_where_eager_takes_all():
    environment = SizeEnvironment()
    context = ShapeContext(environment)
    number = environment.create_float("v", 2.5)
    x = fakeify(torch.ones(2), context)
    for call in (lambda: x * number, lambda: x.add_(number), lambda: x < number):
        call()
    torch.full_like(x.double(), number)
    assert not environment.guards
