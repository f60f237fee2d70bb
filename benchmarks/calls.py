"""The overhead of a call: functions so small that what surrounds the kernels is what is measured.

Each figure is the least of 15 samples of many calls (a machine only ever adds time), in microseconds a
call; `cold_us` has 2 MB touched between the calls, as real programs leave the caches.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks.systems import reset, systems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.steady import Request


def identity(x: Tensor) -> Tensor:
    return x + 0


def three_operators(x: Tensor, y: Tensor) -> Tensor:
    return (x * y + 1).relu()


class Linears(nn.Module):
    """12 linear layers: 24 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class ManyParameters(nn.Module):
    """200 parameters of which each call reads one element."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(1) for _ in range(200))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + weight
        return x


def _cases() -> dict[str, tuple[Callable[[], Any], tuple[Tensor, ...], str]]:
    x, y = torch.randn(16), torch.randn(16)
    leaf = torch.randn(16, requires_grad=True)
    return {
        "identity": (lambda: identity, (x,), "infer"),
        "three operators": (lambda: three_operators, (x, y), "infer"),
        "three operators, grad, forward": (lambda: three_operators, (leaf, y), "forward"),
        "three operators, grad, both": (lambda: three_operators, (leaf, y), "both"),
        "24 parameters": (Linears, (torch.randn(2, 8),), "infer"),
        "200 parameters": (ManyParameters, (torch.ones(1),), "infer"),
    }


def _call(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], mode: str
) -> Callable[[], object]:
    if mode == "both":
        return lambda: function(*inputs).sum().backward()
    return lambda: function(*inputs)


def _least(work: Callable[[], object], repeats: int, calls: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter_ns()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter_ns() - start) / calls)
    return best / 1e3


def _least_cold(work: Callable[[], object], repeats: int, evicted: bytearray) -> float:
    best = float("inf")
    for _ in range(repeats):
        evicted[:] = bytes(len(evicted))
        start = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - start)
    return best / 1e3


def run(request: Request) -> Iterator[dict[str, Any]]:
    """Yields one row a case."""
    evicted = bytearray(2 << 20)
    for name, (make, inputs, mode) in _cases().items():
        if request.only not in name:
            continue
        target = make()
        row: dict[str, Any] = {"name": name, "mode": mode}
        for system, compile_with in systems(request.compare).items():
            reset(request.compare)
            work = _call(compile_with(target), inputs, mode)
            with torch.set_grad_enabled(mode != "infer"):
                for _ in range(5):
                    work()
                row[f"{system}_us"] = _least(work, 15, 200 if request.small else 2000)
                row[f"{system}_cold_us"] = _least_cold(work, 200, evicted)
        yield row
