"""Capture alone, without any compiler behind it: its time, and what a call costs on top of the graph.

Both systems get a backend that returns the graph's own forward. `capture` rows: the processor time of
a first call less that of a later one, the systems in turn, the least and the median of the rounds
(the first of torch's, which imports, left out). `call` rows: a call less the call of the bare graph
module, least of many samples. `guards` rows: one evaluation of a captured program, without a call.
"""

from __future__ import annotations

import gc
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

import dynamo
from benchmarks.calls import ManyParameters, three_operators
from benchmarks.steady import sizes_of
from compile_api.demo.subjects import build_subject
from dynamo.dispatch import Compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.steady import Request


def _forward(graph_module: Any, _example_inputs: Any) -> Any:
    """The backend of both."""
    return graph_module.forward


def _systems(compare: str) -> dict[str, Callable[[Any], Callable[..., Any]]]:
    found: dict[str, Callable[[Any], Callable[..., Any]]] = {"ours": dynamo.optimize(_forward)}
    if compare == "torch":
        found["torch"] = lambda target: torch.compile(target, backend=_forward)
    return found


def _forget() -> None:
    dynamo.reset()
    torch._dynamo.reset()
    gc.collect()


def _processor_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def _capture_seconds(
    make: Callable[[Any], Callable[..., Any]], target: Any, call: Callable[[Any], object]
) -> float:
    _forget()
    compiled = make(target)
    first = _processor_seconds(lambda: call(compiled))
    later = min(_processor_seconds(lambda: call(compiled)) for _ in range(3))
    return first - later


def _captures(request: Request) -> Iterator[dict[str, Any]]:
    for name, training in (("bert", False), ("bert", True), ("gpt2", False), ("resnet50", False)):
        label = f"{name}, {'training' if training else 'inference'}"
        if request.only not in label:
            continue
        subject = build_subject(name, sizes_of(name, request))
        subject.module.train(training)
        inputs = subject.training_inputs if training else subject.inputs

        def call(target: Any, inputs: Any = inputs, training: bool = training) -> None:
            with torch.set_grad_enabled(training):
                target(**inputs)

        taken: dict[str, list[float]] = {}
        rounds = 2 if request.small else max(4, request.rounds // 3)
        for _ in range(rounds):
            for system, make in _systems(request.compare).items():
                seconds = _capture_seconds(make, subject.module, call)
                taken.setdefault(system, []).append(1e3 * seconds)
        row: dict[str, Any] = {"name": label}
        for system, values in taken.items():
            row[f"{system}_ms"] = round(min(values[1:]), 1)
            row[f"{system}_median_ms"] = round(statistics.median(values[1:]), 1)
        if "torch_ms" in row:
            row["share"] = round(row["ours_ms"] / row["torch_ms"], 3)
        yield row


def _least_microseconds(work: Callable[[], object], repeats: int, calls: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time_ns()
        for _ in range(calls):
            work()
        best = min(best, (time.process_time_ns() - start) / calls)
    return best / 1e3


def _calls(request: Request) -> Iterator[dict[str, Any]]:
    """What guards and dispatch add to the call of the graph module alone."""
    x, y = torch.randn(16), torch.randn(16)
    cases: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "three operators": (three_operators, (x, y)),
        "200 parameters": (ManyParameters(), (torch.ones(1),)),
    }
    repeats, calls = (5, 200) if request.small else (25, 1000)
    for name, (target, args) in cases.items():
        if request.only not in name:
            continue
        row: dict[str, Any] = {"name": f"call of {name}"}
        for system in _systems(request.compare):
            _forget()
            make = (
                dynamo.optimize
                if system == "ours"
                else lambda back: partial(torch.compile, backend=back)
            )
            compiled = make(_nothing)(target)
            with torch.no_grad():
                for _ in range(5):
                    compiled(*args)
                cost = _least_microseconds(partial(compiled, *args), repeats, calls)
            row[f"{system}_us"] = round(cost, 3)
        if "torch_us" in row:
            row["share"] = round(row["ours_us"] / row["torch_us"], 3)
        yield row


def _nothing(graph_module: Any, _example_inputs: Any) -> Callable[..., Any]:
    """A backend whose callable gives tensors made before: so a call costs guards and dispatch."""
    outputs = next(node for node in graph_module.graph.nodes if node.op == "output").args[0]
    result = tuple(torch.zeros(16) for _ in outputs)
    return lambda *_: result


def _guards(request: Request) -> Iterator[dict[str, Any]]:
    """One evaluation of the guards of a whole model, and how long making the program took."""
    for name in ("bert", "resnet50"):
        if request.only not in f"guards of {name}":
            continue
        subject = build_subject(name, sizes_of(name, request))
        program, function, slots = _program(subject.module.eval(), subject.inputs)
        with torch.no_grad():
            program.match(slots, function)
            nanoseconds = min(program.native.time(slots, function, 1000) for _ in range(9))
        made = []
        for _ in range(7):
            start = time.process_time()
            again = dynamo.guards.compile_program(
                program.guards, program.size_sources, code=program.code, inputs=program.inputs
            )
            assert again.native is not None
            made.append(time.process_time() - start)
        yield {
            "name": f"guards of {name}",
            "guards": len(program.guards),
            "check_us": round(nanoseconds / 1e3, 2),
            "made_ms": round(1e3 * min(made), 2),
        }


def _program(module: Any, inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """The guard program of a module's one graph, and the function and slots of its call."""
    seen: list[tuple[Any, Any, Any]] = []
    original = Compiler._capture

    def watch(self: Any, cache: Any, function: Any, slots: Any) -> Any:
        captured = original(self, cache, function, slots)
        assert captured is not None
        seen.append((captured.entry.program, function, slots))
        return captured

    Compiler._capture = watch  # type: ignore[method-assign]
    try:
        with torch.no_grad():
            dynamo.optimize(_forward)(module)(**inputs)
    finally:
        Compiler._capture = original  # type: ignore[method-assign]
    return seen[0]


def run(request: Request) -> Iterator[dict[str, Any]]:
    """Yields the rows of capture, of calls and of guards."""
    yield from _captures(request)
    yield from _calls(request)
    yield from _guards(request)
