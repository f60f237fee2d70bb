"""Rules for symbolic sizes alone: at the sizes of a real call they say what eager returned."""

import importlib.util
from pathlib import Path

import pytest
import torch

from primtorch import PRIMS
from primtorch.errors import DataDependentError, UnsupportedOperatorError
from primtorch.fake import RULES, ShapeContext, fakeify, infer
from primtorch.fake.registry import SYMBOLIC_RULES
from primtorch.symbolic import SizeEnvironment

_SPEC = importlib.util.spec_from_file_location(
    "operator_database", Path(__file__).with_name("operator_database.py")
)
database = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(database)

aten = torch.ops.aten


def _calls():
    torch.manual_seed(0)
    square, tall, wide = torch.randn(2, 4, 4), torch.randn(2, 5, 3), torch.randn(2, 3, 5)
    positive = square @ square.mT + 4 * torch.eye(4)
    right, vector = torch.randn(2, 4, 3), torch.randn(2, 4)
    for matrix in (positive, positive.mT):
        lower = torch.linalg.cholesky(matrix)
        factors, pivots, _ = aten.linalg_lu_factor_ex(matrix)
        yield aten._linalg_eigh.default, (matrix,), {}
        yield aten._linalg_eigh.default, (matrix, "U", False), {}
        for b in (right, vector, torch.randn(4, 3)):
            yield aten._linalg_solve_ex.default, (matrix, b), {}
        yield aten._linalg_solve_ex.default, (matrix, right.mT), {"left": False}
        yield aten.linalg_lu_solve.default, (factors, pivots, right), {}
        yield aten.linalg_lu_solve.default, (factors, pivots, right.mT), {"left": False}
        yield aten.linalg_cholesky_ex.default, (matrix,), {"upper": True}
        yield aten.linalg_inv_ex.default, (matrix,), {}
        yield aten.cholesky_inverse.default, (lower,), {}
        yield aten.cholesky_solve.default, (torch.randn(4, 3), lower), {}
        yield aten.linalg_matrix_exp.default, (matrix,), {}
        yield aten.triangular_solve.default, (right, lower), {}
        for b in (right, torch.randn(4, 3)):
            yield aten.linalg_solve_triangular.default, (lower, b), {"upper": False}
        ldl, exchanges, _ = aten.linalg_ldl_factor_ex(matrix)
        yield aten.linalg_ldl_factor_ex.default, (matrix,), {}
        yield aten.linalg_ldl_solve.default, (ldl, exchanges, right), {}
    for matrix in (tall, wide, wide.mT):
        yield aten.linalg_lu_factor_ex.default, (matrix,), {}
        for asked in ((True, True), (True, False), (False, True)):
            yield aten.lu_unpack.default, (*aten.linalg_lu_factor_ex(matrix)[:2], *asked), {}
        for mode in ("reduced", "complete", "r"):
            yield aten.linalg_qr.default, (matrix, mode), {}
        yield aten.geqrf.default, (matrix,), {}
        yield aten.linalg_lstsq.default, (matrix, torch.randn(*matrix.shape[:-1], 2)), {}
        yield aten.linalg_lstsq.default, (matrix, torch.randn(matrix.shape[:-1])), {}
    reflectors = aten.geqrf(tall)
    yield aten.linalg_householder_product.default, reflectors, {}
    yield aten.ormqr.default, (*reflectors, torch.randn(2, 5, 2)), {}
    yield aten.ormqr.default, (*reflectors, torch.randn(2, 2, 5), False), {}
    real, complex_ = torch.randn(3, 4, 5), torch.randn(3, 4, 5, dtype=torch.complex64)
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        for axes in ([2], [0], [0, 1], [0, 2], [1, 0]):
            turned = complex_.permute(order)
            yield aten._fft_c2c.default, (turned, axes, 0, True), {}
            for half in (True, False):
                yield aten._fft_r2c.default, (real.permute(order), axes, 0, half), {}
            last = 2 * (turned.shape[axes[-1]] - 1)
            yield aten._fft_c2r.default, (turned, axes, 0, last), {}
    image, share = torch.randn(2, 3, 9, 9), torch.rand(2, 3, 2)
    pooled = aten.fractional_max_pool2d(image, [2, 2], [4, 4], share)
    yield aten.fractional_max_pool2d.default, (image, [2, 2], [4, 4], share), {}
    last = image.to(memory_format=torch.channels_last)
    rest = (pooled[0], last, [2, 2], [4, 4], pooled[1])
    yield aten.fractional_max_pool2d_backward.default, rest, {}
    for dtype, other in ((torch.float32, torch.int64), (torch.float64, torch.float32)):
        yield aten.ldexp.Tensor, (real.to(dtype), torch.ones(5, dtype=other)), {}


@pytest.mark.parametrize(
    ("operator", "args", "kwargs"), list(_calls()), ids=lambda value: str(value)[:40]
)
def test_it_is_what_eager_returned(operator, args, kwargs):
    comparison = database.Comparison(symbols=True)
    environment = SizeEnvironment()
    metas = tuple(database.symbolic(arg, environment) for arg in args)
    expected = database.describe(operator(*args, **kwargs))
    found = infer(operator, metas, kwargs, environment)
    assert database.describe(database.at_hints(found, environment)) == expected
    with comparison:  # with plain sizes the meta kernel is asked, and agrees
        operator(*args, **kwargs)
    assert not comparison.wrong


def test_every_prim_has_a_rule():
    """A shape rule, a rule for symbolic sizes, or nothing but the data to ask."""
    without = {op for op in PRIMS if op not in RULES and op not in SYMBOLIC_RULES}
    assert without == {aten.equal.default}


def test_plain_sizes_keep_the_checks_of_the_meta_kernel():
    with pytest.raises(RuntimeError, match="square"):
        infer(aten.linalg_cholesky_ex.default, (torch.ones(2, 3),))
    environment = SizeEnvironment()
    rows = environment.create_size("rows", 4)
    fake = fakeify(torch.ones(4, 3), ShapeContext(environment), shape=[rows, 3])
    with pytest.raises(UnsupportedOperatorError, match="driver"):
        infer(aten.linalg_lstsq.default, (fake, fake), {"driver": "gelsd"}, environment)


@pytest.mark.parametrize("operator", [aten.bincount.default, aten.unique_consecutive.default])
def test_lengths_known_only_at_run_time(operator):
    x = torch.tensor([1, 1, 3, 0])
    with pytest.raises(DataDependentError, match="known only at run time"):
        infer(operator, (x,))
    environment = SizeEnvironment()
    environment.allow_unbacked = True
    found = infer(operator, (x,), {}, environment)
    first = found if operator is aten.bincount.default else found[0]
    assert first.dtype is torch.int64
    assert not isinstance(first.shape[0], int)


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.int32, torch.float64])
@pytest.mark.parametrize(
    ("start", "step"), [(0, 0.5), (0.25, 2), (-3.5, 1.0), (0, 0.3), (0.1, 0.7), (2.0, 1)]
)
def test_ranges_are_as_long_as_eagers(start, step, dtype):
    if dtype is torch.int64 and int(step) == 0:
        with pytest.raises(
            RuntimeError, match="step must be nonzero"
        ):  # eager of torch 2.11 ends the process
            infer(aten.arange.start_step, (start, 4, step), {"dtype": dtype})
        return
    for end in (4, 9, 21):
        environment = SizeEnvironment()
        size = environment.create_size("n", end)
        operator = aten.arange.start_step
        expected = torch.arange(start, end, step, dtype=dtype).shape
        made = infer(operator, (start, size, step), {"dtype": dtype}, environment)
        assert tuple(map(environment.hint, made.shape)) == tuple(expected)
        assert infer(operator, (start, end, step), {"dtype": dtype}).shape == tuple(expected)


def test_integers_are_counted_as_eager_counts_them():
    expected = torch.arange(0.1, 3.9, 1, dtype=torch.int64).shape
    made = infer(aten.arange.start_step, (0.1, 3.9, 1), {"dtype": torch.int64})
    assert made.shape == tuple(expected) == (3,)


def test_an_operator_of_the_users_tells_its_sizes_by_its_fake():
    with torch.library._scoped_library("ci_sizes", "FRAGMENT") as library:
        library.define("halved(Tensor x, int dim) -> (Tensor, Tensor)")
        halves = lambda x, dim: tuple(half.clone() for half in x.chunk(2, dim))
        library.impl("halved", halves, "CompositeExplicitAutograd")
        torch.library.register_fake(
            "ci_sizes::halved",
            lambda x, dim: (x.new_empty((x.shape[0] // 2, 3)), x.new_empty(x.shape[0] - 1)),
            lib=library,
        )
        environment = SizeEnvironment()
        size = environment.create_size("n", 8)
        context = ShapeContext(environment)
        x = fakeify(torch.randn(8, 3), context, shape=(size, 3))
        first, second = torch.ops.ci_sizes.halved(x, 0)
        assert [tuple(map(str, found.shape)) for found in (first, second)] == [
            ("(n // 2)", "3"),
            ("n - 1",),
        ]
