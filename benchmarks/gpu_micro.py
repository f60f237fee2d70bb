"""Single kernels on one GPU: eager, ours and torch.compile's default mode, interleaved, beside the card's own copy.

    python -m benchmarks.gpu_micro --out micro.jsonl --budget 240 --systems eager,ours,torch
    TRITON_INTERPRET=1 python -m benchmarks.gpu_micro --rehearse --out /tmp/m.jsonl --systems eager,ours

A row: results against float64 first (beside eager's error), then rounds in rotating order. A sample is some calls, each
between two events on a cold second-level cache, all queued behind a sleeping kernel, so that the time of the host isn't
in it. `floor_us` is what a copy of as many bytes takes, measured in the same way; `fraction` is the bytes that must be
moved by time, over the highest copy rate seen. A row is written as soon as it is measured. `--rehearse` runs tiny sizes
on the CPU, our kernels in Triton's interpreter: it checks this script and the kernels, its times say nothing.
"""

from __future__ import annotations

import json
import statistics
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
from torch import Tensor

import compile_api
from benchmarks.gpu_micro_rows import DROPPED, Row, rows
from benchmarks.provenance import provenance
from compile_api.demo.timing import Paired

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 9
CALLS = 4
FLUSHED_BYTES = 256 << 20
COPIES = (32 << 20, 256 << 20, 1 << 30)  # bytes read
SLEEP_CYCLES_PER_SECOND = 2.0e9


class CardClock:
    """Times calls by the card's events."""

    def __init__(self) -> None:
        self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")
        self._floors: dict[int, float] = {}

    def seconds(self, call: Callable[[], Any], host: float) -> float:
        """The median of some calls; `host` is the time that the host needs to begin one."""
        events = [
            [torch.cuda.Event(enable_timing=True) for _ in range(CALLS)] for _ in ("start", "end")
        ]
        torch.cuda._sleep(int((1.5 * host + 1e-4) * CALLS * SLEEP_CYCLES_PER_SECOND))
        for start, end in zip(*events, strict=True):
            self._flushed.zero_()
            start.record()
            call()
            end.record()
        torch.cuda.synchronize()
        pairs = zip(*events, strict=True)
        return statistics.median(1e-3 * start.elapsed_time(end) for start, end in pairs)

    def host(self, call: Callable[[], Any]) -> float:
        """Seconds until a call returns."""
        found = []
        for _ in range(3):
            torch.cuda.synchronize()
            started = time.perf_counter()
            call()
            found.append(time.perf_counter() - started)
        torch.cuda.synchronize()
        return min(found)

    def floor(self, moved: int) -> float:
        """Seconds of a copy that reads and writes `moved` bytes in all."""
        moved = max(moved, 32)
        if moved not in self._floors:
            source = torch.empty(moved // 2, dtype=torch.int8, device="cuda")
            target = torch.empty_like(source)

            def copy() -> None:
                target.copy_(source)

            copy()
            host = self.host(copy)
            self._floors[moved] = statistics.median(self.seconds(copy, host) for _ in range(3))
        return self._floors[moved]

    def best_rate(self) -> float:
        """The highest copy rate seen, bytes a second."""
        for size in COPIES:
            self.floor(2 * size)
        return max(moved / taken for moved, taken in self._floors.items())


class RehearsalClock:
    """Stands in where there is no card."""

    def seconds(self, call: Callable[[], Any], host: float) -> float:
        """One call."""
        del host
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    def host(self, call: Callable[[], Any]) -> float:
        """Nothing is timed."""
        del call
        return 0.0

    def floor(self, moved: int) -> float:
        """Nothing is known of it."""
        return moved / self.best_rate()

    def best_rate(self) -> float:
        """Some rate."""
        return 1e9


def work(function: Callable[..., Any], inputs: tuple[Any, ...], mode: str) -> Callable[[], Any]:
    """What is timed: a call, or the backward of one call."""
    if mode == "forward":

        def forward() -> Any:
            with torch.no_grad():
                return function(*inputs)

        return forward
    leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    result = function(*inputs)
    random = torch.Generator(result.device).manual_seed(1)
    tangent = torch.randn(
        result.shape, generator=random, device=result.device, dtype=torch.float32
    ).to(torch.bfloat16)
    tangent = torch.empty_like(result, dtype=torch.bfloat16).copy_(tangent).to(result.dtype)
    return lambda: torch.autograd.grad(result, leaves, tangent, retain_graph=True)


def exact(row: Row, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
    wide = tuple(
        x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        for x in inputs
    )
    if row.check == "dropout":
        return (torch.nn.functional.gelu(wide[0] + wide[1]) / (1 - DROPPED),)
    return results(work(row.function, wide, row.mode))


def results(call: Callable[[], Any]) -> tuple[Tensor, ...]:
    made = call()
    return made if isinstance(made, tuple) else (made,)


def errors(row: Row, found: tuple[Tensor, ...], truth: tuple[Tensor, ...]) -> list[float]:
    """Relative Frobenius errors; of dropout, of what was kept, where as much was kept as should be."""
    if row.check == "dropout":
        kept = found[0] != 0
        share = kept.double().mean().item()
        deviation = (DROPPED * (1 - DROPPED) / kept.numel()) ** 0.5
        if abs(share - (1 - DROPPED)) > 6 * deviation + 0.002:
            raise AssertionError(f"{share:.4f} of the elements were kept")
        truth = (truth[0] * kept,)
    return [
        ((mine.double() - true).norm() / true.norm().clamp_min(1e-30)).item()
        for mine, true in zip(found, truth, strict=True)
    ]


def judge(mine: list[float], eager: list[float]) -> None:
    """Raises where a result is further from float64 than eager's, but for a few roundings."""
    for ours, theirs in zip(mine, eager, strict=True):
        if not ours <= 2 * theirs + 1e-2:
            raise AssertionError(f"errs by {ours:.2g}, eager by {theirs:.2g}")


def measure(
    row: Row, systems: dict[str, Callable[[Any], Any]], clock: CardClock | RehearsalClock
) -> dict[str, Any]:
    """One row: correctness, cold compile, rounds."""
    torch.manual_seed(0)
    inputs = row.inputs()
    truth = exact(row, inputs)
    found: dict[str, Any] = {
        "name": row.name, "size": row.size, "mode": row.mode, "must_move": row.must_move,
    }  # fmt: skip
    calls: dict[str, Callable[[], Any]] = {}
    seen: dict[str, list[float]] = {}
    for name, make in systems.items():
        try:
            started = time.perf_counter()
            call = work(make(row.function), inputs, row.mode)
            made = results(call)
            seen[name] = errors(row, made, truth)  # waits for the card
            found[f"{name}_cold_s"] = time.perf_counter() - started
            found[f"{name}_error"] = max(seen[name])
            judge(seen[name], seen["eager"])
            calls[name] = call
        except Exception as fault:  # noqa: BLE001 - a row of a system that fails is a result
            found[f"{name}_failed"] = f"{type(fault).__name__}: {fault}"[:300]
            traceback.print_exc()
    del truth
    hosts = {name: clock.host(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for number in range(ROUNDS if isinstance(clock, CardClock) else 1):
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            samples[name].append(clock.seconds(calls[name], hosts[name]))
    paired = Paired({name: tuple(values) for name, values in samples.items()})
    found["floor_us"] = 1e6 * clock.floor(row.must_move)
    for name in calls:
        seconds = paired.median(name)
        found[f"{name}_us"] = 1e6 * seconds
        found[f"{name}_host_us"] = 1e6 * hosts[name]
        found[f"{name}_gb_s"] = row.must_move / seconds / 1e9
        found[f"{name}_fraction"] = row.must_move / seconds / clock.best_rate()
        if name != "ours" and "ours" in calls:
            found[f"{name} / ours"] = paired.ratio("ours", name)
            found[f"{name} / ours, 95%"] = paired.interval("ours", name)
    return found


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _makers(names: str, *, rehearse: bool) -> dict[str, Callable[[Any], Any]]:
    options = {"executor": "triton_interpreter"} if rehearse else {}

    def ours(function: Any) -> Any:
        return compile_api.compile(function, dynamic=False, options=options)

    def theirs(function: Any) -> Any:
        import torch._functorch.config

        # the backward of one forward is run many times
        torch._functorch.config.donated_buffer = False
        return torch.compile(function, dynamic=False)

    makers = {"eager": lambda function: function, "ours": ours, "torch": theirs}
    return {name: makers[name] for name in ["eager", *names.split(",")]}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--budget", default=240.0, help="Seconds after which no row is begun.")
@click.option("--systems", "names", default="eager,ours,torch")
@click.option("--only", default="", help="Rows whose name contains this; several by comma.")
@click.option("--rehearse", is_flag=True, help="Tiny sizes on the CPU; wants TRITON_INTERPRET=1.")
def main(out: Path, budget: float, names: str, only: str, rehearse: bool) -> None:
    """Measure the rows and append them to a file of JSON lines."""
    started = time.perf_counter()
    systems = _makers(names, rehearse=rehearse)
    clock = RehearsalClock() if rehearse else CardClock()
    chosen = rows("cpu", 20) if rehearse else rows("cuda")
    head: dict[str, Any] = {**provenance(), "copy_gb_s": clock.best_rate() / 1e9}
    if not rehearse:
        properties = torch.cuda.get_device_properties(0)
        head |= {"card": properties.name, "l2_bytes": properties.L2_cache_size}
    with out.open("a", encoding="utf-8") as file:

        def tell(found: dict[str, Any]) -> None:
            line = json.dumps({name: _rounded(value) for name, value in found.items()})
            file.write(line + "\n")
            file.flush()
            print(line, flush=True)

        tell(head)
        for row in chosen:
            if only and not any(part in row.name for part in only.split(",")):
                continue
            if time.perf_counter() - started > budget:
                tell({"name": row.name, "size": row.size, "left_out": True})
                continue
            try:
                found = measure(row, systems, clock)
            except Exception as fault:  # noqa: BLE001 - the other rows go on
                traceback.print_exc()
                found = {"name": row.name, "size": row.size, "failed": f"{fault}"[:300]}
            tell(found)
            compile_api.reset()
            if "torch" in systems:
                torch._dynamo.reset()
            if not rehearse:
                torch.cuda.empty_cache()
        tell({"seconds": time.perf_counter() - started})


if __name__ == "__main__":
    main()
