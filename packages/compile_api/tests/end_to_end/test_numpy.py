"""Programs on numpy arrays through the whole compiler: numpy's values, types and memory, in one graph."""

import copy

import numpy as np
import pytest
import torch

import compile_api


def standardize(table, floor):
    """Columns without their mean, divided by their spread, clipped."""
    centred = table - table.mean(axis=0)
    scale = np.maximum(table.std(axis=0), floor)
    return np.clip(centred / scale, -1.5, 1.5).astype(np.float32)


def softmax(scores):
    shifted = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def image(pixels):
    grey = (pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], dtype=np.float32)) / 255
    mirrored = grey[:, ::-1]
    edges = np.abs(np.diff(grey, axis=1))
    return mirrored, edges, pixels.sum(axis=(0, 1)), np.where(grey > 0.5, pixels[..., 0], 0)


def moving(values, state):
    state["count"] += 1
    values *= 0.5
    values[1:] += values[:-1]
    return np.cumsum(values), state["count"]


def into_torch(weights, x):
    w = torch.from_numpy(weights)
    y = (x @ w).relu()
    return y, y.detach().numpy().argmax(axis=1), np.asarray(x.detach())[0]


def integers(n):
    return n // 3, n % 3, n * n, n / 2, n.sum(), (n > 2).sum(), n.astype(np.uint8).sum()


RANDOM = np.random.default_rng(0)
CALLS = {
    standardize: (RANDOM.standard_normal((16, 5)), 0.1),
    softmax: (RANDOM.standard_normal((4, 7)),),
    image: (RANDOM.integers(0, 255, (6, 8, 3)).astype(np.uint8),),
    moving: (RANDOM.standard_normal(9), {"count": 1}),
    into_torch: (RANDOM.standard_normal((4, 3)).astype(np.float32), torch.randn(5, 4)),
    integers: (np.arange(-4, 8),),
}


def equal(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            equal(one, other)
    elif isinstance(expected, np.ndarray | np.generic):
        assert found.dtype == expected.dtype
        assert found.strides == expected.strides
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("function", CALLS)
def test_as_numpy_computes_it(function):
    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True})
    for _ in range(2):
        mine, theirs = copy.deepcopy(CALLS[function]), copy.deepcopy(CALLS[function])
        equal(compiled(*mine), function(*theirs))
        equal(mine, theirs) if function is not moving else equal(mine[0], theirs[0])


def test_many_lengths_take_two_graphs():
    compiled = compile_api.compile(softmax, fullgraph=True, options={"strict": True})
    for rows in (3, 5, 6, 7):
        scores = RANDOM.standard_normal((rows, 7))
        equal(compiled(scores), softmax(scores))
