"""The mathematics of `prelude.h` against double precision: at most 2 ulp, special values as IEEE 754 has them."""

import ctypes
from dataclasses import replace

import pytest
import torch

from inductor.runtime.cpp_build import KernelLibrary, KernelSource
from inductor.runtime.settings import BuildSettings

pytestmark = pytest.mark.cxx

FUNCTIONS = [
    *[
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "log2",
        "log10",
        "sin",
        "cos",
        "tan",
        "tanh",
        "erf",
        "erf_series",
        "erfc",
        "sqrt",
    ],
    *[
        "rsqrt",
        "sigmoid",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "asinh",
        "acosh",
        "atanh",
        "lgamma",
        "floor",
        "round",
    ],
]
SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    float("-inf"),
    float("nan"),
    1.0,
    -1.0,
    1e-45,
    -1e-45,
    1.1754944e-38,
    88.72,
    88.73,
]
SPECIAL += [
    -87.3,
    -103.9,
    -104.0,
    3.4e38,
    0.5,
    -0.5,
    1e-8,
    1e-4,
    0.31,
    0.625,
    3.95,
    10.0,
    -10.0,
    1e5,
    127.5,
    128.0,
]


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    library = KernelLibrary(
        replace(
            BuildSettings.from_environment(),
            cache_directory=tmp_path_factory.mktemp("cache"),
            kernels_per_unit=100,
        )
    )
    head = 'extern "C" int KERNEL(char *const *p, const i64 *s, i64 threads) {'
    loop = "\n#pragma omp simd\nfor (i64 i = 0; i < s[0]; i++) "
    sources = {}
    for name in FUNCTIONS:
        for kind in ("f32", "f64"):
            if (name, kind) == ("erf_series", "f64"):
                continue
            statement = f"(({kind} *)p[1])[i] = ci_{name}((({kind} *)p[0])[i]);"
            sources[name, kind] = KernelSource(f"{head}{loop}{statement} return 0; }}")
    for name in ("f16", "bf16"):
        narrow = f"((u16 *)p[1])[i] = ci_to_{name}(((f32 *)p[0])[i]);"
        widen = f"((f32 *)p[1])[i] = ci_from_{name}(((u16 *)p[0])[i]);"
        sources[name, "narrow"] = KernelSource(f"{head}{loop}{narrow} return 0; }}")
        sources[name, "widen"] = KernelSource(f"{head}{loop}{widen} return 0; }}")
    power = "((f32 *)p[2])[i] = ci_pow(((f32 *)p[0])[i], ((f32 *)p[1])[i]);"
    sources["pow", "f32"] = KernelSource(f"{head}{loop}{power} return 0; }}")
    addresses = library.addresses(list(sources.values()))
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return {key: signature(address) for key, address in zip(sources, addresses, strict=True)}


def call(function, *tensors):
    pointers = (ctypes.c_void_p * len(tensors))(*[tensor.data_ptr() for tensor in tensors])
    count = (ctypes.c_int64 * 1)(tensors[0].numel())
    assert function(ctypes.addressof(pointers), ctypes.addressof(count), 1) == 0
    return tensors[-1]


def samples(dtype):
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.float32:
        anything = (
            torch.randint(-(2**31), 2**31, (200_000,), generator=generator)
            .to(torch.int32)
            .view(torch.float32)
        )
    else:
        anything = torch.exp(
            torch.empty(50_000, dtype=dtype).uniform_(-700, 700, generator=generator)
        )
    near = [
        torch.empty(100_000, dtype=dtype).uniform_(-r, r, generator=generator)
        for r in (0.01, 2.0, 20.0, 110.0)
    ]
    return torch.cat([torch.tensor(SPECIAL, dtype=dtype), anything, *near])


def ulps(ours, exact):
    """Errors in units of the last place of the result; 0 where both are the same infinity or NaN."""
    rounded = exact.to(ours.dtype)
    step = (
        torch.nextafter(rounded.abs(), torch.full_like(rounded, float("inf"))) - rounded.abs()
    ).double()
    error = (ours.double() - exact.double()).abs() / step
    return torch.where((ours == rounded) | (ours.isnan() & rounded.isnan()), 0.0, error)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float_functions_are_within_two_ulp(functions, name):
    x = samples(torch.float32)
    if name == "sigmoid":
        x = x[
            ~(x < -87.0)
        ]  # 1 / (1 + exp(-x)) as eager computes it: below, the denominator overflows
    ours = call(functions[name, "f32"], x, torch.empty_like(x))
    exact = getattr(torch, name.removesuffix("_series"))(x.double())
    error = ulps(ours, exact)
    worst = error.argmax()
    limit = 2.5 if name == "sigmoid" else 2.0  # three roundings, exp among them, as in eager
    assert error[worst] <= limit, (x[worst].item(), ours[worst].item(), exact[worst].item())
    signs = (torch.signbit(ours) != torch.signbit(exact)) & ~exact.isnan()
    assert not signs.any(), x[signs][:5]


@pytest.mark.parametrize(
    "name", ["exp", "log", "sigmoid", "tanh", "erf", "log1p", "expm1", "sin", "cos", "rsqrt"]
)
def test_double_functions_agree_with_torch(functions, name):
    x = samples(torch.float64)
    ours = call(functions[name, "f64"], x, torch.empty_like(x))
    torch.testing.assert_close(ours, getattr(torch, name)(x), rtol=1e-15, atol=0.0, equal_nan=True)


def test_power_has_every_special_case(functions):
    special = torch.tensor([*SPECIAL, 2.0, 3.0, -2.0, -3.0, 2.5, -2.5, 1e10, -1e10])
    bases, exponents = (
        grid.reshape(-1).contiguous() for grid in torch.meshgrid(special, special, indexing="ij")
    )
    ours = call(functions["pow", "f32"], bases, exponents, torch.empty_like(bases))
    exact = torch.pow(bases.double(), exponents.double())
    assert ulps(ours, exact).max() <= 1.0
    assert torch.equal(torch.signbit(ours)[~exact.isnan()], torch.signbit(exact)[~exact.isnan()])


@pytest.mark.parametrize(("name", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_conversions_are_exact(functions, name, dtype):
    patterns = torch.arange(2**16).to(torch.int16)
    wide = call(functions[name, "widen"], patterns, torch.empty(2**16))
    expected = patterns.view(dtype).float()
    assert torch.equal(wide.isnan(), expected.isnan())
    assert torch.equal(
        wide.nan_to_num(nan=0.0).view(torch.int32), expected.nan_to_num(nan=0.0).view(torch.int32)
    )
    between = torch.cat(
        [expected, torch.nextafter(expected, torch.tensor(float("inf"))), samples(torch.float32)]
    )
    between = torch.cat([between, (expected[:-1] + expected[1:]) / 2])
    narrow = call(
        functions[name, "narrow"], between, torch.empty(between.numel(), dtype=torch.int16)
    ).view(dtype)
    rounded = between.to(dtype)
    assert torch.equal(narrow.isnan(), rounded.isnan())
    known = ~rounded.isnan()
    assert torch.equal(narrow.view(torch.int16)[known], rounded.view(torch.int16)[known])


def test_loops_of_any_length_find_the_vector_functions(tmp_path):
    """The compiler picks a vector function by a loop's length: sixteen, eight or four lanes, or one."""
    settings = replace(
        BuildSettings.from_environment(), cache_directory=tmp_path, kernels_per_unit=100
    )
    text = 'extern "C" int KERNEL(char *const *p, const i64 *s, i64 threads) {'
    lengths = [*range(1, 18), 32]
    sources = [
        KernelSource(
            f"{text}\nfor (i64 k = 0; k < s[0]; k += {n}) {{\n#pragma omp simd\nfor (i64 i = k; i < k + {n}; i++)"
            " ((f32 *)p[1])[i] = ci_erf(((f32 *)p[0])[i]); } return 0; }"
        )
        for n in lengths
    ]
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    for n, address in zip(lengths, KernelLibrary(settings).addresses(sources), strict=True):
        x = torch.linspace(-3, 3, 4 * n)
        ours = call(signature(address), x, torch.empty_like(x))
        assert ulps(ours, torch.erf(x.double())).max() <= 2.0


@pytest.mark.parametrize(
    ("name", "beyond", "limit"),
    [("erf", 3.93, 1.0), ("erf_series", 3.97, 1.0), ("tanh", 9.1, 1.0), ("expm1", 18.0, None)],
)
def test_limits_are_exact(functions, name, beyond, limit):
    """An ulp short of 1 is right enough for the function, and wrong in `x * (1 + erf(x))`, which must be 0."""
    x = torch.cat(
        [torch.linspace(beyond, 100, 4096), torch.logspace(2, 38, 256), torch.tensor([torch.inf])]
    )
    assert torch.equal(
        call(functions[name, "f32"], -x, torch.empty_like(x)), torch.full_like(x, -1.0)
    )
    if limit is not None:
        ours = call(functions[name, "f32"], x.clone(), torch.empty_like(x))
        assert torch.equal(ours, torch.full_like(x, limit))
