"""What a first training step of a model of images on a GPU waits for: our compile, kernels' builds, cuDNN's plans.

    python -m benchmarks.gpu_cold --out cold.jsonl --limit 150

Each way is a process of its own with an empty cache, and one line: `ours`: the first step, the steps of its compile
(`spans`: what, about what, begun, seconds) and what the workers did; `images last`: the first step of eager with images
channels last, whose convolutions are those that we call, then ours; `planned by threads`: each distinct convolution
once, forward and backward, by eight threads, then ours; `ours again` is the first once more, on a machine that has read
all files. What the first two steps differ by is what cuDNN prepares; processor seconds beside the others say whether a
part computed or waited.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("ours", "images last", "planned by threads", "ours again")
BATCH, SIDE = 256, 224
SHORTEST = 30.0  # seconds that a way takes at least


def _model() -> nn.Module:
    import torchvision.models as vision

    return vision.mobilenet_v3_large(weights=None, dropout=0.0).cuda().train()


def _step(call: Callable[[Tensor], Tensor], images: Tensor) -> float:
    """Seconds of a forward and a backward."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    with torch.autocast("cuda", torch.bfloat16):
        result = call(images).float().square().mean()
    result.backward()
    torch.cuda.synchronize()
    return time.perf_counter() - started


@dataclass(slots=True)
class _Build:
    """One kernel's way through the workers: seconds since the process began to compile, and what it took."""

    name: str
    asked: float
    begun: float
    answered: float
    worker: int


def _listening(builds: list[_Build], loads: list[float]) -> None:
    """Note when each kernel is asked for, taken by a worker and answered, and what loading it takes."""
    from inductor.runtime import gpu_driver, triton_build

    ask, submit = triton_build._Worker.ask, triton_build.TritonBuilder.submit
    asked: dict[str, float] = {}

    def timed_submit(self: Any, source: Any, aligned: Any) -> Any:
        asked.setdefault(source.text, time.perf_counter())
        return submit(self, source, aligned)

    def timed_ask(self: Any, request: dict[str, Any]) -> dict[str, Any]:
        begun = time.perf_counter()
        answer = ask(self, request)
        since, now = asked.get(request["text"], begun), time.perf_counter()
        builds.append(_Build(str(answer.get("name")), since, begun, now, self.process.pid))
        return answer

    triton_build._Worker.ask = timed_ask  # type: ignore[method-assign]
    triton_build.TritonBuilder.submit = timed_submit  # type: ignore[method-assign]
    load = gpu_driver.GpuDriver.load

    def timed_load(self: Any, *args: Any) -> Any:
        begun = time.perf_counter()
        try:
            return load(self, *args)
        finally:
            loads.append(time.perf_counter() - begun)

    gpu_driver.GpuDriver.load = timed_load  # type: ignore[method-assign]


def _process(pid: int) -> dict[str, float]:
    """Processor seconds of a worker, how often it waited for a disk, and what it read from one."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    read = next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), 0)
    return {
        "cpu_s": (int(fields[11]) + int(fields[12])) / ticks,
        "major_faults": int(fields[9]),
        "read_mb": read / 1e6,
    }


def _built(builds: list[_Build], loads: list[float]) -> dict[str, Any]:
    """What the workers did, in figures."""
    if not builds:
        return {}
    workers: dict[int, list[_Build]] = {}
    for build in builds:
        workers.setdefault(build.worker, []).append(build)
    firsts = [min(mine, key=lambda build: build.begun) for mine in workers.values()]
    later = [b for b in builds if all(b is not first for first in firsts)]
    slowest = sorted(builds, key=lambda build: build.begun - build.answered)[:8]
    resources = [_process(pid) for pid in workers]
    return {
        "compiled": len(builds),
        "workers": len(workers),
        "first_answers_s": [round(b.answered - b.begun, 2) for b in firsts],
        "later_s": sum(b.answered - b.begun for b in later),
        "later_median_s": statistics.median(b.answered - b.begun for b in later or builds),
        "queued_most_s": max(b.begun - b.asked for b in builds),
        "from_first_to_last_s": max(b.answered for b in builds) - min(b.asked for b in builds),
        "slowest": [(b.name, round(b.answered - b.begun, 2)) for b in slowest],
        "workers_cpu_s": sum(found["cpu_s"] for found in resources),
        "workers_major_faults": sum(found["major_faults"] for found in resources),
        "workers_read_mb": sum(found["read_mb"] for found in resources),
        "loads": len(loads),
        "loads_s": sum(loads),
        "slowest_load_s": max(loads, default=0.0),
    }


def _spans(trace: Path) -> list[tuple[str, str, float, float]]:
    """Steps of the compile: what, about what, when they began and how long they took, in seconds."""
    events = json.loads(trace.read_text())["traceEvents"]
    begin = min(event["ts"] for event in events)
    return [
        (e["name"], e["args"]["about"], round((e["ts"] - begin) / 1e6, 3), round(e["dur"] / 1e6, 3))
        for e in events
        if e["dur"] > 2e4
    ]


def _ours(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """Our first steps, and the seconds within each part of the compile."""
    import compile_api

    builds: list[_Build] = []
    loads: list[float] = []
    _listening(builds, loads)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        compiled = compile_api.compile(model, options={"trace": str(trace)})
        worked = time.process_time()
        found: dict[str, Any] = {"first_s": _step(compiled, images)}
        found["first_cpu_s"] = time.process_time() - worked
        found["second_s"] = _step(compiled, images)
        found["spans"] = _spans(trace)
    return found | _built(builds, loads)


def _convolutions(model: nn.Module, images: Tensor) -> list[tuple[nn.Conv2d, tuple[int, ...]]]:
    """One convolution of each kind, with the shape that it gets."""
    seen: dict[Any, tuple[nn.Conv2d, tuple[int, ...]]] = {}

    def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Conv2d)
        shape = tuple(inputs[0].shape)
        seen[shape, module.weight.shape, module.stride, module.padding] = (module, shape)

    handles = [
        module.register_forward_pre_hook(note)
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
    ]
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        model(images)
    for handle in handles:
        handle.remove()
    return list(seen.values())


def _plan_one(found: tuple[nn.Conv2d, tuple[int, ...]]) -> None:
    module, shape = found
    last = torch.channels_last
    x = torch.zeros(shape, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=last)
    x.requires_grad_()
    weight = module.weight.detach().bfloat16().contiguous(memory_format=last).requires_grad_()
    made = nn.functional.conv2d(
        x, weight, None, module.stride, module.padding, module.dilation, module.groups
    )
    made.backward(torch.zeros_like(made))
    torch.cuda.synchronize()


def measure(way: str) -> dict[str, Any]:
    """One way, in this process."""
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, SIDE, SIDE, device="cuda")
    model = _model()
    found: dict[str, Any] = {"way": way, "load": os.getloadavg()[0]}
    if way == "images last":
        last = _model().to(memory_format=torch.channels_last)
        laid = images.contiguous(memory_format=torch.channels_last)
        found["eager_first_s"] = _step(last, laid)
        found["eager_second_s"] = _step(last, laid)
        del last
    elif way == "planned by threads":
        kinds = _convolutions(_model(), images)
        started = time.perf_counter()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(_plan_one, kinds))
        found |= {"kinds": len(kinds), "threads_s": time.perf_counter() - started}
        torch.cuda.empty_cache()
    return found | _ours(model, images)


def run_all(out: Path, seconds: float) -> None:
    """Each way in a process of its own, as long as there is time for one."""
    until = time.perf_counter() + seconds
    for way in WAYS:
        limit = until - time.perf_counter()
        if limit < SHORTEST:
            break
        with tempfile.TemporaryDirectory() as cache:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "benchmarks.gpu_cold", "--way", way],
                    env={**os.environ, "COMPILE_API_CACHE_DIR": cache},
                    capture_output=True,
                    text=True,
                    timeout=limit,
                    check=False,
                )
                lines = done.stdout.strip().splitlines()
                line = lines[-1] if lines and not done.returncode else None
                found = json.loads(line) if line else {"way": way, "failed": done.stderr[-600:]}
            except subprocess.TimeoutExpired:
                found = {"way": way, "failed": f"over {limit:.0f} s"}
        text = json.dumps(found)
        print(text, flush=True)
        with out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")


@click.command()
@click.option("--out", type=click.Path(path_type=Path))
@click.option("--limit", default=150.0, help="Seconds for all ways.")
@click.option("--way", default="", help="One way in this process; empty means all.")
def main(out: Path | None, limit: float, way: str) -> None:
    """Time the first training step of MobileNetV3."""
    if way:
        print(json.dumps(measure(way)))
    else:
        assert out is not None
        run_all(out, limit)


if __name__ == "__main__":
    main()
