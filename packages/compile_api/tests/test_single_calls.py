"""Single operators at the edges of their dtypes, compiled strictly against eager; more: `single_calls/run.py`."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import compile_api

FOLDER = Path(__file__).parent / "single_calls"
HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32, torch.float64)


def results(function, *tensors):
    compiled = compile_api.compile(function, dynamic=False, options={"strict": True})
    return function(*tensors), compiled(*tensors)


def test_random_calls_agree_with_eager(tmp_path):
    report = tmp_path / "report.json"
    command = [sys.executable, str(FOLDER / "run.py"), "--first", "24", "--count", "24"]
    subprocess.run([*command, "--json", str(report)], capture_output=True, timeout=600, check=False)
    found = json.loads(report.read_text())
    assert (found["calls"], found["differ"]) == (24, [])


def test_two_thousand_calls_did():
    report = json.loads((FOLDER / "complete_run.json").read_text())
    known = json.loads((FOLDER / "known_differences.json").read_text())
    assert report["calls"] >= 2000
    assert {text.partition(":")[0] for text in report["differ"]} == known.keys()
    assert len(known) <= 4  # only ever fewer
    assert all(len(cause) > 10 for cause in known.values())


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_zero_at_a_limit_keeps_its_sign(dtype):
    def program(x):
        limited = [torch.relu(x), functional.relu6(x), x.clamp(min=0), x.clamp(0, 1)]
        return torch.stack([*limited, (-x).clamp(max=-0.0), functional.hardtanh(x, 0.0, 1.0)])

    for count in (1, 17, 64):
        expected, found = results(program, torch.full((count,), -0.0, dtype=dtype))
        assert torch.equal(found.signbit(), expected.signbit())


@pytest.mark.parametrize("dtype", HALVES)
def test_integers_beside_a_half_type_are_rounded_to_it(dtype):
    def program(x, y):
        chosen = [x * y, x / y, torch.fmod(x, y), torch.maximum(x, y), x.clone().div_(y)]
        return torch.stack(chosen), x < y, torch.atan2(x, y), torch.logaddexp(x, y)

    x = torch.tensor([1.0, 2048, 3, -700], dtype=dtype)
    expected, found = results(program, x, torch.tensor([2049, 2049, 70000, -33333]))
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", HALVES)
def test_the_neighbour_of_a_half_number(dtype):
    x = torch.tensor([1.0, -0.0, 300, torch.inf], dtype=dtype)
    expected, found = results(torch.nextafter, x, x - 2)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["sum", "nansum", "prod", "cumsum", "cumprod"])
def test_elements_are_rounded_to_a_half_type_that_is_asked_for(name):
    def program(x):
        return getattr(torch, name)(x, 0, dtype=torch.float16)

    expected, found = results(program, torch.tensor([2.0**20, -(2.0**20), 1, 3.3]))
    assert torch.equal(found.isnan(), expected.isnan())
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", FLOATS)
def test_repeated_elements_decide_the_order_of_strides_in_all_dtypes(dtype):
    x = torch.randn(3, 4).to(dtype).expand(2, 3, 4)
    y, z = torch.randn(4, 3, 2).to(dtype).permute(2, 1, 0), torch.randn(4, 3).to(dtype).t()
    expected, found = results(lambda x, y, z: torch.addcmul(x, y, z, value=2), x, y, z)
    assert found.stride() == expected.stride()


def test_a_division_into_another_dtype():
    def program(x):
        return torch.floor_divide(x, 2, out=torch.zeros(4, dtype=torch.float16))

    expected, found = results(program, torch.tensor([5, -5, 7, 0]))
    assert torch.equal(found, expected)
    assert found.dtype is expected.dtype


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "name", ["eq", "lt", "ge", "remainder", "fmod", "floor_divide", "mul", "div", "maximum"]
)
def test_numbers_beside_a_half_type_are_what_eager_makes_of_them(name, dtype):
    function = getattr(torch, name)

    def program(x, number):
        found = [function(x, number), function(x, number.double())]
        return torch.stack(found if name == "maximum" else [*found, function(x, 0.1)])

    x = torch.tensor([0.1, 0.3, 2.7, 3.0, 300.7], dtype=dtype)
    expected, found = results(program, x, torch.tensor(0.1))
    torch.testing.assert_close(found, expected, rtol=0.01, atol=0)
