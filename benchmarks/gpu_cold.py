"""What a first training step of a model of images on a GPU waits for: our compile, kernels' builds, cuDNN's plans.

    python -m benchmarks.gpu_cold --out cold.jsonl --limit 150

Each way is a process of its own with an empty cache, and one line: `ours`: the first step with the time in each part of
the compile; `images last`: the first step of eager with images channels last, whose convolutions are those that we
call, then ours; `planned by threads`: each distinct convolution once, forward and backward, by eight threads, then
ours; `ours again` is the first once more, on a machine that has read all files. What the first two steps differ by is
what cuDNN prepares; processor seconds beside the others say whether a part computed or waited.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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


def _ours(model: nn.Module, images: Tensor) -> dict[str, Any]:
    """Our first steps, and the seconds within planning and building."""
    import compile_api
    from inductor import pipeline
    from inductor.devices import gpu

    spent = {"plan_s": 0.0, "plan_cpu_s": 0.0, "build_s": 0.0, "build_cpu_s": 0.0}
    kernels: list[int] = []
    plan, build = pipeline.plan, gpu.CudaDevice.build

    def timed_plan(*args: Any, **kwargs: Any) -> Any:
        started, worked = time.perf_counter(), time.process_time()
        try:
            return plan(*args, **kwargs)
        finally:
            spent["plan_s"] += time.perf_counter() - started
            spent["plan_cpu_s"] += time.process_time() - worked

    def timed_build(self: Any, made: Any, settings: Any) -> Any:
        started, worked = time.perf_counter(), time.process_time()
        kernels.append(len(made))
        try:
            return build(self, made, settings)
        finally:
            spent["build_s"] += time.perf_counter() - started
            spent["build_cpu_s"] += time.process_time() - worked

    pipeline.plan, gpu.CudaDevice.build = timed_plan, timed_build  # type: ignore[method-assign]
    compiled = compile_api.compile(model)
    found = {"first_s": _step(compiled, images), "second_s": _step(compiled, images)}
    return found | spent | {"kernels": kernels}


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
