"""What training costs beside the kernels: tracing and cutting the joint graph, a call with gradients, memory.

`joint and partition`: BERT's captured graph traced and cut by aot_autograd, against `functorch.compile.aot_function`
with its own partitioner and compilers that do nothing, in turns in one process. `call`: a function of three operators
that needs gradients, forward, against `torch.compile(backend="aot_eager")`. `memory`: bytes saved for the backward
beyond parameters, eager's (each storage once) and ours at two budgets as the saved-tensor hooks of the same call see
them; the peak of a step as PyTorch's own allocator tells the profiler, and what the partition predicted.
The suite `large_training` is memory and time of 8 texts of 512 words.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd import (
    Partition,
    aot_module_simplified,
    min_cut_rematerialization_partition,
    predicted_memory,
)
from benchmarks.steady import sizes_of
from benchmarks.tracing import captured
from compile_api.demo.subjects import Sizes, build_subject
from dynamo import optimize
from inductor import compile_fx
from primtorch import decomposition_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.steady import Request

BUDGETS = (1.0, 0.5)


def _joint_row(request: Request) -> dict[str, Any]:
    from functorch.compile import aot_function, min_cut_rematerialization_partition, nop

    subject = build_subject("bert", sizes_of("bert", request))
    subject.module.train()
    graph, inputs = captured(subject, symbolic=False)

    def ours() -> object:
        try:
            return aot_module_simplified(graph, inputs, fw_compiler=_stop)
        except _CutError:
            return None

    def theirs() -> object:
        compiled = aot_function(
            graph.forward, _stop, nop, partition_fn=min_cut_rematerialization_partition
        )
        try:
            return compiled(*inputs)
        except _CutError:
            return None

    rounds = 1 if request.small else min(request.rounds, 5)
    samples: dict[str, list[float]] = {"torch": [], "ours": []}
    for number in range(rounds + 1):
        for system, work in (("torch", theirs), ("ours", ours)):
            gc.collect()
            start = time.process_time()
            work()
            if number or rounds == 1:  # the first round warms up
                samples[system].append(time.process_time() - start)
    seconds = {system: statistics.median(values) for system, values in samples.items()}
    return {
        "torch_s": round(seconds["torch"], 3),
        "ours_s": round(seconds["ours"], 3),
        "torch_by_ours": round(seconds["torch"] / seconds["ours"], 2),
    }


class _CutError(Exception):
    """Both graphs are there: what follows is not timed."""


def _stop(_graph: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Any:
    raise _CutError


def _call_row(request: Request) -> dict[str, Any]:
    import compile_api

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y + 1).relu()

    x, y = torch.randn(16, requires_grad=True), torch.randn(16)
    row: dict[str, Any] = {}
    systems: dict[str, Callable[..., Any]] = {
        "eager": function,
        "ours": compile_api.compile(function),
        "torch": torch.compile(function, backend="aot_eager"),
    }
    for system, call in systems.items():
        for _ in range(5):
            call(x, y).sum().backward()
        row[f"{system}_us"] = round(_least(lambda call=call: call(x, y), request), 2)
        both = _least(lambda call=call: call(x, y).sum().backward(), request)
        row[f"{system}_both_us"] = round(both, 2)
    row["torch_by_ours"] = round(row["torch_us"] / row["ours_us"], 2)
    return row


def _least(work: Callable[[], object], request: Request) -> float:
    """Microseconds a call: the least of many short samples, which other work seldom hits."""
    best = float("inf")
    for _ in range(40 if request.small else 400):
        start = time.perf_counter_ns()
        for _ in range(60):
            work()
        best = min(best, (time.perf_counter_ns() - start) / 60)
    return best / 1e3


def saved_bytes(step: Callable[[], Any], module: torch.nn.Module) -> int:
    """Bytes that autograd keeps between forward and backward, parameters and buffers not counted."""
    own = {one.untyped_storage()._cdata for one in (*module.parameters(), *module.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            seen[storage._cdata] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = step()
    total = sum(seen.values())
    del kept
    return total


def peak_bytes(step: Callable[[], Any]) -> int:
    """The most bytes that PyTorch's allocator had given out at once during `step`, above the start."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    now = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def _memory_rows(request: Request, sizes: Sizes, what: str) -> Iterator[dict[str, Any]]:
    """Bytes saved and peaks, eager's and at each budget."""
    subject = build_subject("bert", sizes)
    subject.module.train()
    inputs = subject.training_inputs or {}

    def forward(target: Any) -> torch.Tensor:
        return target(**inputs).loss

    def step(target: Any) -> None:
        forward(target).backward()
        subject.module.zero_grad(set_to_none=True)

    row: dict[str, Any] = {"name": f"{what}, eager"}
    step(subject.module)
    eager = saved_bytes(lambda: forward(subject.module), subject.module)
    row["saved_mb"] = round(eager / 1e6, 2)
    row["peak_mb"] = round(peak_bytes(lambda: step(subject.module)) / 1e6, 2)
    yield row
    for budget in BUDGETS:
        cuts: list[Partition] = []
        target = _with_budget(subject.module, budget, cuts)
        step(target)
        saved = saved_bytes(lambda target=target: forward(target), subject.module)
        predicted = predicted_memory(cuts[0])
        yield {
            "name": f"{what}, budget {budget}",
            "saved_mb": round(saved / 1e6, 2),
            "saved_by_eager": round(saved / eager, 3),
            "predicted_saved_mb": round(predicted.saved / 1e6, 2),
            "peak_mb": round(peak_bytes(lambda target=target: step(target)) / 1e6, 2),
            "predicted_peak_mb": round(predicted.peak / 1e6, 2),
        }


def _with_budget(module: torch.nn.Module, budget: float, cuts: list[Partition]) -> Any:
    """The full stack with a memory budget, put together by hand so that the cut can be looked at."""

    def partition(joint: torch.fx.GraphModule, **arguments: Any) -> Partition:
        cuts.append(min_cut_rematerialization_partition(joint, **arguments))
        return cuts[-1]

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return aot_module_simplified(
            graph,
            inputs,
            fw_compiler=compile_fx,
            partition_fn=partition,
            decompositions=decomposition_table("inductor"),
            options={"activation_memory_budget": budget},
        )

    backend.symbolic = True  # type: ignore[attr-defined]
    return optimize(backend, fullgraph=True)(module)


def run(request: Request) -> Iterator[dict[str, Any]]:
    """Yields the rows."""
    rows = {
        "joint and partition of bert": _joint_row,
        "call of three operators with gradients": _call_row,
    }
    for name, measure in rows.items():
        if request.only in name:
            yield {"name": name, **measure(request)}
    if request.only in "memory of bert":
        yield from _memory_rows(request, sizes_of("bert", request), "memory of bert")


def run_large(request: Request) -> Iterator[dict[str, Any]]:
    """BERT-base of 8 texts of 512 words (`--small`: 2 layers, 4 of 256), 8 GB and a minute a step: memory, time."""
    sizes = Sizes(batch=8, length=512)
    if request.small:
        sizes = Sizes(batch=4, length=256, layers=2, hidden=256)
    yield from _memory_rows(request, sizes, f"bert {sizes.batch} x {sizes.length}")
    yield _time_row(request, sizes)


def _time_row(request: Request, sizes: Sizes) -> dict[str, Any]:
    """Seconds of a step in turns, the median of each: eager, ours at budget 1.0, torch.compile where asked for."""
    import compile_api

    subject = build_subject("bert", sizes)
    subject.module.train()
    inputs = subject.training_inputs or {}
    systems: dict[str, Any] = {"eager": subject.module, "ours": compile_api.compile(subject.module)}
    if request.compare == "torch":
        systems["torch"] = torch.compile(subject.module)

    def step(target: Any) -> float:
        subject.module.zero_grad(set_to_none=True)
        start = time.perf_counter()
        target(**inputs).loss.backward()
        return time.perf_counter() - start

    for target in systems.values():
        step(target)
        step(target)
    rounds = 3 if request.small else min(request.rounds, 7)
    samples: dict[str, list[float]] = {system: [] for system in systems}
    for _ in range(rounds):
        for system, target in systems.items():
            samples[system].append(step(target))
    row: dict[str, Any] = {"name": f"bert {sizes.batch} x {sizes.length}, time of a step"}
    for system, values in samples.items():
        row[f"{system}_s"] = round(statistics.median(values), 4)
    return row
