"""Many threads, many processes, and some of them killed: nothing wrong, nothing damaged.

    python -m benchmarks.stress threads --seconds 60      # 8 threads compile and call the same and other functions
    python -m benchmarks.stress processes --seconds 60    # 8 processes share one cache, one is killed every second

Every result is compared with eager's. Exit code 1: a wrong result, an exception, or a file in the cache that is no
whole artifact. Processes are forked from one that has imported everything, so that they work rather than import.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import click
import torch

import compile_api
from compile_api.artifacts.store import Damaged, unsealed


class Small(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, 2 * width)
        self.second = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.nn.functional.gelu(self.first(x))) + x


def softmax_of_squares(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * x - 1, dim=-1)


def normalised(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:]) * 2


def with_a_break(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    if y.detach().sum() > 0:
        return y.cos()
    return y.exp()


def many_results(x: torch.Tensor) -> torch.Tensor:
    low, high = x.min(-1, keepdim=True).values, x.max(-1, keepdim=True).values
    return (x - low) / (high - low + 1) + x.mean(0)


MODULES = [Small(8), Small(16)]
FUNCTIONS: list[Any] = [softmax_of_squares, normalised, with_a_break, many_results, *MODULES]
_SHARED: list[Any] = []


def step(draw: random.Random, compiled: Any, original: Any) -> None:
    """One call, sometimes with a backward, compared with eager's."""
    width = original.first.in_features if isinstance(original, Small) else draw.choice((8, 16))
    x = torch.randn(draw.choice((2, 3, 5)), width)
    train = draw.random() < 0.5
    ours, theirs = x.clone().requires_grad_(train), x.clone().requires_grad_(train)
    got, want = compiled(ours), original(theirs)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    if train:
        (grad,) = torch.autograd.grad(got.square().sum(), ours)
        (expected,) = torch.autograd.grad(want.square().sum(), theirs)
        torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-4)


def work(seed: int, until: float, counts: Counter[str], *, resets: bool) -> None:
    """Calls until the time is over: shared compiled functions, and new ones of the same functions."""
    draw = random.Random(seed)
    own: dict[int, Any] = {}
    while time.monotonic() < until:
        number = draw.randrange(len(FUNCTIONS))
        original = FUNCTIONS[number]
        if draw.random() < 0.1:
            own[number] = compile_api.compile(original)
            counts["compiled anew"] += 1
        compiled = own.get(number) if draw.random() < 0.5 else None
        step(draw, _SHARED[number] if compiled is None else compiled, original)
        counts["calls"] += 1
        if resets and draw.random() < 0.01:
            compile_api.reset()
            counts["resets"] += 1


def run_threads(count: int, seconds: float) -> list[str]:
    """Gives the faults."""
    faults: list[str] = []
    counts: list[Counter[str]] = [Counter() for _ in range(count)]
    until = time.monotonic() + seconds

    def target(seed: int) -> None:
        try:
            work(seed, until, counts[seed], resets=seed == 0)
        except BaseException as fault:  # noqa: BLE001 - each is what this looks for
            faults.append(f"thread {seed}: {fault!r:.500}")

    threads = [threading.Thread(target=target, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 300)
        if thread.is_alive():
            faults.append("a thread hangs")
    print("threads:", dict(sum(counts, Counter())))
    return faults


def _child(seed: int, report: int) -> None:
    """A process that compiles and calls until it is killed or the time is over; tells its calls by a pipe."""
    until = float(os.environ["STRESS_UNTIL"])
    counts: Counter[str] = Counter()
    try:
        while time.monotonic() < until:
            compile_api.reset()
            work(seed, min(until, time.monotonic() + 1.0), counts, resets=False)
            os.write(report, f"{counts['calls']} calls\n".encode())
            counts.clear()
    except BaseException as fault:  # noqa: BLE001 - each is what this looks for
        os.write(report, f"fault {fault!r:.400}\n".replace("\n", " ").encode() + b"\n")
        os._exit(1)
    os._exit(0)


def _start(seed: int, report: int) -> int:
    pid = os.fork()
    if pid == 0:
        torch.manual_seed(seed)
        _child(seed, report)
    return pid


def run_processes(count: int, seconds: float) -> list[str]:
    """Gives the faults: wrong results, unexpected ends, and files that are not whole."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    draw = random.Random(0)
    until = time.monotonic() + seconds
    os.environ["STRESS_UNTIL"] = str(until)
    alive = {_start(seed, write_end) for seed in range(count)}
    faults: list[str] = []
    killed: set[int] = set()
    seed = count
    while time.monotonic() < until:
        time.sleep(1)
        victim = draw.choice(sorted(alive))
        os.kill(victim, signal.SIGKILL)
        killed.add(victim)
        seed += 1
        alive.add(_start(seed, write_end))
        for pid in list(alive):
            done, status = os.waitpid(pid, os.WNOHANG if pid not in killed else 0)
            if done:
                alive.discard(pid)
                if pid not in killed and os.waitstatus_to_exitcode(status):
                    faults.append(f"a process ended with {os.waitstatus_to_exitcode(status)}")
    for pid in alive:
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status):
            faults.append(f"a process ended with {os.waitstatus_to_exitcode(status)}")
    told = b""
    while True:
        try:
            piece = os.read(read_end, 1 << 16)
        except BlockingIOError:
            break
        told += piece
        if not piece:
            break
    lines = told.decode().splitlines()
    faults += [line for line in lines if line.startswith("fault")]
    calls = sum(int(line.split()[0]) for line in lines if line.endswith("calls"))
    folder = Path(os.environ["COMPILE_API_CACHE_DIR"]) / "artifacts-1"
    files = [path for path in folder.glob("*/*") if not path.name.startswith("write-")]
    for path in files:
        try:
            unsealed(path.read_bytes())
        except Damaged as damage:
            faults.append(f"{path}: {damage}")
    scraps = len(list(folder.glob("*/write-*")))
    print(
        f"processes: {calls} calls, {len(killed)} killed, {len(files)} artifacts whole, {scraps} scraps"
    )
    return faults


@click.command()
@click.argument("what", type=click.Choice(["threads", "processes"]))
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--count", default=8, show_default=True)
def main(what: str, seconds: float, count: int) -> None:
    """Run one of the two."""
    torch.set_num_threads(1)
    os.environ["COMPILE_API_STRICT"] = "1"
    with tempfile.TemporaryDirectory() as cache:
        os.environ["COMPILE_API_CACHE_DIR"] = cache
        _SHARED.extend(compile_api.compile(function) for function in FUNCTIONS)
        faults = (run_threads if what == "threads" else run_processes)(count, seconds)
    for fault in faults:
        print(fault)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
