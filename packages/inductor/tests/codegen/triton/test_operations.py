"""Every scalar operation as Triton: present, and the same number as the reference gives."""

import inspect

import pytest
import torch
import triton

from inductor.codegen.triton.operations import TritonOps
from inductor.ir import OPERATIONS, Recorder, ScalarOps, run_body

F32, F64 = torch.float32, torch.float64
NO_TYPE = {"real", "imag", "make_complex"}  # complex numbers: such kernels run otherwise
UNARY_FLOAT = sorted(
    name
    for name, signature in OPERATIONS.items()
    if signature.family == "unary" and name not in NO_TYPE | {"bitwise_not", "logical_not"}
)
BINARY_FLOAT = sorted(
    name
    for name, signature in OPERATIONS.items()
    if signature.family == "binary"
    and not name.startswith(("bitwise", "shift", "logical", "trunc_div", "make_complex"))
)
BINARY_INTEGER = [
    "add", "sub", "mul", "floor_div", "trunc_div", "remainder", "fmod", "maximum", "minimum", "bitwise_and",
    "bitwise_or", "bitwise_xor", "shift_left", "shift_right", "eq", "lt", "ge", "logical_and",
]  # fmt: skip
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.5,
    -3.5,
    1e-8,
    -1e-8,
    30.0,
    -30.0,
    float("inf"),
    float("-inf"),
    float("nan"),
]


def test_every_operation_has_a_method():
    protocol = {
        name
        for name, _ in inspect.getmembers(ScalarOps, inspect.isfunction)
        if not name.startswith("_")
    }
    ours = {
        name
        for name, _ in inspect.getmembers(TritonOps, inspect.isfunction)
        if not name.startswith("_")
    }
    assert {"protocol": sorted(protocol - ours), "operations": sorted(set(OPERATIONS) - ours)} == {
        "protocol": [],
        "operations": [],
    }


UNFUSED = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)


def _samples(name, dtype):
    values = torch.cat([torch.randn(60, dtype=dtype) * 2, torch.tensor(SPECIAL, dtype=dtype)])
    if name in ("asin", "acos", "atanh", "erfinv"):
        values = values.clamp(-1, 1)
    return values


def _compare(run_kernel, make_kernel, body, inputs, result, tolerance):
    storages = {**inputs, "out": torch.zeros(len(next(iter(inputs.values()))), dtype=result)}
    expected = {name: tensor.clone() for name, tensor in storages.items()}
    run_body(body, expected)
    kernel = make_kernel(body, {name: tensor.dtype for name, tensor in storages.items()})
    run_kernel(kernel, storages)
    torch.testing.assert_close(
        storages["out"], expected["out"], rtol=tolerance, atol=tolerance, equal_nan=True
    )
    if result.is_floating_point:
        zero = expected["out"] == 0
        assert torch.equal(
            torch.signbit(storages["out"])[zero], torch.signbit(expected["out"])[zero]
        )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", UNARY_FLOAT)
def test_unary(run_kernel, make_kernel, name, dtype):
    x = _samples(name, dtype)
    recorder = Recorder((len(x),))
    (i,) = recorder.outer
    value = recorder.op(name, recorder.load("x", i, dtype))
    recorder.store("out", i, value, value.dtype)
    tolerance = 1e-5 if dtype is F32 else 1e-9
    _compare(run_kernel, make_kernel, recorder.finish(), {"x": x}, value.dtype, tolerance)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("name", BINARY_FLOAT)
def test_binary(run_kernel, make_kernel, name, dtype):
    if UNFUSED and dtype is F64 and name in ("floor_div", "fmod", "remainder"):
        pytest.skip(
            "Triton before 3.7 interprets a fused multiply-add in float64 with two roundings"
        )
    grid = torch.tensor(SPECIAL, dtype=dtype)
    x = torch.cat([grid.repeat_interleave(len(grid)), torch.randn(40, dtype=dtype) * 3])
    y = torch.cat([grid.repeat(len(grid)), torch.randn(40, dtype=dtype)])
    recorder = Recorder((len(x),))
    (i,) = recorder.outer
    value = recorder.op(name, recorder.load("x", i, dtype), recorder.load("y", i, dtype))
    recorder.store("out", i, value, value.dtype)
    tolerance = 1e-5 if dtype is F32 else 1e-9
    _compare(run_kernel, make_kernel, recorder.finish(), {"x": x, "y": y}, value.dtype, tolerance)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("name", BINARY_INTEGER)
def test_integers_wrap_and_never_trap(run_kernel, make_kernel, name, dtype):
    low, high = (0, 255) if dtype is torch.uint8 else (-128, 127)
    x = torch.randint(low, high + 1, (200,)).to(dtype)
    y = torch.randint(max(low, -5), 6, (200,)).to(dtype)
    if name in ("floor_div", "trunc_div", "remainder", "fmod"):
        y[y == 0] = 1  # the reference runs eager's operators, which trap
    if name.startswith("shift"):
        y = y.clamp(0, 7)
    recorder = Recorder((len(x),))
    (i,) = recorder.outer
    value = recorder.op(name, recorder.load("x", i, dtype), recorder.load("y", i, dtype))
    recorder.store("out", i, value, value.dtype)
    _compare(run_kernel, make_kernel, recorder.finish(), {"x": x, "y": y}, value.dtype, 0)


def test_integer_division_by_zero_gives_zero(run_kernel, make_kernel):
    for name in ("floor_div", "trunc_div", "remainder", "fmod"):
        recorder = Recorder((4,))
        (i,) = recorder.outer
        value = recorder.op(
            name, recorder.load("x", i, torch.int32), recorder.load("y", i, torch.int32)
        )
        recorder.store("out", i, value, torch.int32)
        storages = {
            "x": torch.tensor([7, -7, 7, 0], dtype=torch.int32),
            "y": torch.tensor([0, 0, 2, 0], dtype=torch.int32),
        }
        storages["out"] = torch.full((4,), 9, dtype=torch.int32)
        run_kernel(make_kernel(recorder.finish(), dict.fromkeys(storages, torch.int32)), storages)
        assert storages["out"][[0, 1, 3]].tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", ["philox_uniform", "philox_normal"])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_random_numbers_are_the_primitive_ones(run_kernel, make_kernel, name, dtype):
    seed = torch.tensor([0x1234_5678_9ABC_DEF0])
    recorder = Recorder((50,))
    (i,) = recorder.outer
    drawn = recorder.op(
        name,
        recorder.load("seed", 0, torch.int64),
        recorder.constant(7, torch.int64),
        recorder.index_expression(i, torch.int64),
        dtype=dtype,
    )
    recorder.store("out", i, drawn, dtype)
    storages = {"seed": seed, "out": torch.zeros(50, dtype=dtype)}
    run_kernel(make_kernel(recorder.finish(), {"seed": torch.int64, "out": dtype}), storages)
    expected = getattr(torch.ops.primtorch, name)(seed, 7, [50], dtype=dtype)
    exact = name == "philox_uniform"
    torch.testing.assert_close(
        storages["out"], expected, rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6
    )
