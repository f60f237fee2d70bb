# ruff: noqa: PLW0108, C416 - the captured programs are written as users do
"""numpy arrays in captured programs: one graph, numpy's values, types, layouts and memory."""

import copy

import numpy as np
import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

STRICT = dynamo.DynamoOptions(strict=True)


def same_array(found, expected):
    """Equal in type, element type, shape, strides, writeability, elements."""
    assert type(found) is type(expected), (type(found), type(expected))
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
        assert found.shape == expected.shape
        assert found.flags.writeable == expected.flags.writeable
        dense = [s for s, n in zip(expected.strides, expected.shape, strict=True) if n > 1]
        assert [s for s, n in zip(found.strides, found.shape, strict=True) if n > 1] == dense
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    elif isinstance(expected, np.generic):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same_array(one, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        same_array(list(found.values()), list(expected.values()))
    else:
        assert found == expected


def check(function, *args, fullgraph=True):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=fullgraph, options=STRICT)(function)
    for _ in range(2):
        mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
        same_array(compiled(*mine), function(*theirs))
        same_array(mine, theirs)
    return counter


A = np.arange(12, dtype=np.float32).reshape(3, 4) / 3 - 1
B = np.arange(12).reshape(3, 4) - 5
C = np.array([[1.5, -2.0, 0.5, 3.0]])
M = np.arange(12).reshape(3, 4) % 3 == 1
U = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20

PROGRAMS = {
    "arithmetic": lambda a, b, c, m, u: (a + b, a * 2, 2.5 - b, b / 4, b // 3, b % 5, a**2, b**3, -a),
    "mixed types": lambda a, b, c, m, u: (a + c, u + u, u * 2, u - 1.5, m + m, m * b, a + np.float64(1),
                                          b + np.int8(3), u + np.float32(2)),
    "comparisons": lambda a, b, c, m, u: (a > 0, b == 3, (a > c) & m, m | (b < 0), ~m, u != 40),
    "divisions by zero": lambda a, b, c, m, u: (b // 5 * 0 // 1, 7 // b, 7 % b, b % (b * 0)),
    "elementwise": lambda a, b, c, m, u: (np.exp(a), np.sqrt(np.abs(b)), np.sin(b), np.maximum(a, b),
                                          np.floor(a), np.logical_not(b), np.sign(b), np.square(u),
                                          np.hypot(a, c), np.arctan2(a, b), np.isnan(a / a)),
    "reductions": lambda a, b, c, m, u: (a.sum(), b.sum(axis=1), u.sum(), m.sum(0), a.mean(),
                                         b.mean(axis=(0, 1)), u.mean(1, keepdims=True), a.std(),
                                         b.var(axis=0, ddof=1), a.max(), b.min(axis=1), b.argmax(),
                                         a.argmin(1), m.any(), m.all(axis=0), b.cumsum(), u.cumsum(1),
                                         b.prod(), np.count_nonzero(b, axis=0), np.ptp(a)),
    "products": lambda a, b, c, m, u: (a @ b.T, np.dot(a, c.T), np.einsum("ij,kj->ik", a, b),
                                       np.tensordot(a, b, ([0], [0])), np.outer(c, c), a.dot(a[0]),
                                       np.inner(c, c), np.vdot(c, c), np.linalg.norm(a),
                                       np.linalg.norm(b, axis=1), np.trace(b), np.kron(c, c),
                                       a[0] @ a[1]),
    "shapes": lambda a, b, c, m, u: (a.T, a.reshape(4, 3), b.reshape((2, -1)), a.ravel(), b.flatten(),
                                     a.transpose(1, 0), np.expand_dims(a, 0), a[None], c.squeeze(),
                                     np.swapaxes(a, 0, 1), np.moveaxis(b, 0, 1), np.broadcast_to(c, (3, 4)),
                                     np.atleast_3d(a), np.tile(c, (2, 2)), np.repeat(b, 2, axis=1),
                                     np.roll(b, 2, axis=1), np.diag(a[0]), np.tril(a), np.triu(b, 1)),
    "joining": lambda a, b, c, m, u: (np.concatenate([a, b]), np.stack([a, a], axis=1),
                                      np.vstack((a, c)), np.hstack([a, b]), np.split(b, 2, axis=1),
                                      np.array_split(a, 2), np.column_stack([a, b]),
                                      np.concatenate((a, u), axis=None), np.append(a, b)),
    "subscripts": lambda a, b, c, m, u: (a[0], a[1, 2], a[..., 1], a[1:, ::2], a[:, None, 1],
                                         a[[0, 2]], a[np.array([0, 2]), 1:], a[-1],
                                         a[0, ...], np.take(a, [1, 0], axis=1)),
    "choice": lambda a, b, c, m, u: (np.where(m, a, b), np.where(m, a, 0.0), np.where(b > 0, 1, -1),
                                     np.clip(a, 0, 1), a.clip(min=0.5), np.clip(b, -1, None),
                                     np.sort(a, axis=0), np.argsort(b, axis=1, kind="stable"),
                                     np.argsort(a), a.T.argsort(axis=None), b.argsort(0), np.argsort(m),
                                     np.searchsorted(c[0], 0.7), np.nan_to_num(a), np.round(a, 1),
                                     np.isclose(a, b), np.diff(b), np.pad(a, 1)),
    "making": lambda a, b, c, m, u: (np.zeros(3), np.ones((2, 2), dtype=np.int32), np.zeros_like(b),
                                     np.full((2,), 7), np.arange(5), np.linspace(0, 1, 3), np.eye(2),
                                     np.array([1, 2.5]), np.asarray(a), np.array(a), np.array([a[0, 0], 2.0]),
                                     np.full_like(a, 2), np.empty_like(a).shape, np.copy(b), a.copy()),
    "types": lambda a, b, c, m, u: (a.astype(int), b.astype(np.float16), m.astype(float), a.dtype == np.float32,
                                    a.shape, a.ndim, a.size, a.nbytes, str(b.dtype), np.result_type(a, b),
                                    isinstance(a, np.ndarray), type(a.sum()) is np.float32,
                                    np.float32(b.sum()), np.finfo(np.float32).eps, np.int64(3)),
    "numpy's own Python code": lambda a, b, c, m, u: (np.average(a), np.gradient(c[0]), np.rollaxis(a, 1),
                                                      np.rot90(a), np.flipud(b), np.cov(a), np.trapezoid(a)),
    "numbers alone": lambda a, b, c, m, u: (a * np.sqrt(2), np.log2(8), np.prod([2, 3]), a + np.pi,
                                            np.float32(1.5) * a, np.mean([1, 2])),
    "backwards": lambda a, b, c, m, u: (a[::-1], a[:, ::-1] + 1, np.flip(b), b[::-1, 1:][0], a[1::-1].sum()),
    "iteration": lambda a, b, c, m, u: ([row.sum() for row in a], list(b[0]), len(a), sum(b),
                                        [x + 1 for x in c[0]], [i for i, _ in enumerate(a)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_and_numpys_result(name):
    with np.errstate(all="ignore"):
        check(PROGRAMS[name], A, B, C, M, U)


def test_input_array_is_written_to():
    def program(a, b):
        a[0] = 7
        a += b
        a[:, 1] *= 2
        b[b > 3] = 0
        b.sort(axis=1)
        return a

    check(program, A.copy(), B.copy())
    a = A.copy()
    compiled = dynamo.optimize("eager", options=STRICT, fullgraph=True)(program)
    assert compiled(a, B.copy()) is a


def test_views_share_the_input_s_memory():
    def program(a):
        return a[1:], a.T, a.reshape(4, 3), a[::-1], a + 0, a

    a = A.copy()
    found = dynamo.optimize("eager", options=STRICT, fullgraph=True)(program)(a)
    assert [np.shares_memory(one, a) for one in found] == [True, True, True, True, False, True]


def test_tensors_and_arrays():
    def program(x, a):
        n = x.numpy()
        n[0] = 5
        t = torch.from_numpy(a)
        t.mul_(2)
        return n, t, torch.tensor(a.sum()), torch.as_tensor(a) + x, np.asarray(x), n.sum() + 1, x

    check(program, torch.arange(4.0), np.arange(4, dtype=np.float32))


def test_a_read_only_array_stays_so():
    def program(a):
        return a + 1, a[0]

    a = A.copy()
    a.flags.writeable = False
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(program)
    found = compiled(a)
    assert found[0].flags.writeable
    assert not found[1].flags.writeable

    def write(a):
        a[0] = 1

    with pytest.raises(ValueError, match="read-only"):
        dynamo.optimize("eager", options=STRICT)(write)(a)


def test_guards_see_type_layout_and_writeability():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, dynamic=False, options=STRICT)(lambda a: a * 2)
    frozen = A.copy()
    frozen.flags.writeable = False
    given = [A, A.astype(np.float64), A[:, :2], A.T, A.copy(order="F"), frozen, B, A.copy()]
    for a in given:
        same_array(compiled(a), a * 2)
    assert counter.frame_count == len(given) - 1


def test_sizes_become_symbolic():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(lambda a: (a * 2, a.shape, a.sum(0)))
    for n in (2, 3, 4, 5):
        a = np.ones((n, 4))
        same_array(compiled(a), (a * 2, a.shape, a.sum(0)))


def test_overlapping_arrays_are_told_apart():
    def program(a, b):
        a += 1
        return b * 2

    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(program)
    for overlap in (False, True, False):
        base, other = np.zeros(8), np.zeros(8)
        plain, plain_other = base.copy(), other.copy()
        found = compiled(base[:6], base[2:] if overlap else other[2:])
        expected = program(plain[:6], plain[2:] if overlap else plain_other[2:])
        same_array(found, expected)
        same_array(base, plain)


def test_the_same_array_twice():
    def program(a, b):
        a[0] = 9
        return b + 1, a is b

    def both(a):
        return program(a, a)

    check(both, A.copy())
    check(program, A.copy(), A.copy())


def test_arrays_live_across_a_break():
    def program(a):
        b = a * 2
        dynamo.graph_break()
        b[0] = a[1]
        return b, b.sum()

    check(program, A.copy(), fullgraph=False)


class Holder:
    table = np.arange(4.0)

    def __init__(self):
        self.scale = np.array([2.0, 3.0, 4.0, 5.0])


WEIGHTS = np.array([1.0, 0.5, 0.25, 0.125])


def test_arrays_of_objects_and_globals():
    holder = Holder()

    def program(a, extra):
        extra["seen"] = a * WEIGHTS
        return a * holder.scale + holder.table, extra["bias"] - a

    check(program, np.arange(4.0), {"bias": np.ones(4)})
    compiled = dynamo.optimize("eager", options=STRICT)(lambda a: a * holder.scale)
    same_array(compiled(WEIGHTS), WEIGHTS * holder.scale)
    holder.scale = np.array([1.0, 1, 1, 1])
    same_array(compiled(WEIGHTS), WEIGHTS * holder.scale)


BREAKS = {
    "random": lambda a: a + np.random.RandomState(0).rand(*a.shape),
    "text": lambda a: str(a),
    "branch": lambda a: a * 2 if a.sum() > 0 else a,
    "number": lambda a: float(a.sum()) + 1,
    "item": lambda a: a.max().item(),
    "nonzero": lambda a: np.nonzero(a),
    "mask": lambda a: a[a > 0],
    "median": lambda a: np.median(a),
    "object": lambda a: a.astype(object).shape,
    "bytes": lambda a: a.tobytes(),
    "fft": lambda a: np.fft.fft(a).real,
    "iterator": lambda a: [x for x in a.flat],
    "vectorized": lambda a: np.vectorize(lambda x: x + 1)(a),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_not_captured_breaks(name):
    check(BREAKS[name], A, fullgraph=False)


def raises(function, *args):
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - whatever numpy raises
        return type(error), str(error)
    return None


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a + b[:2],
        lambda a, b: b.__iadd__(a),
        lambda a, b: a[5],
        lambda a, b: bool(a),
        lambda a, b: a.reshape(5, 5),
        lambda a, b: np.concatenate([a, b[0]]),
        lambda a, b: b**-1,
        lambda a, b: a.nothing,
        lambda a, b: b.astype(np.uint8) + 300,
    ],
)
def test_exceptions_are_numpys(function):
    expected = raises(function, A.copy(), B.copy())
    assert expected is not None
    compiled = dynamo.optimize("eager", options=STRICT)(function)
    assert raises(compiled, A.copy(), B.copy()) == expected


def test_errors_of_arithmetic_that_the_program_asked_for():
    def program(a):
        return 1 / (a * 0)

    compiled = dynamo.optimize("eager", options=STRICT)(program)
    with np.errstate(all="ignore"):
        compiled(A)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        compiled(A)
