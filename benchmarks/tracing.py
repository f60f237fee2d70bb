"""The tracing of a joint graph (forward and backward) by aot_autograd and by torch's make_fx, in one process.

Both trace the same program: the graph that dynamo captures of the model in training, parameters as inputs, to its
outputs and the gradients of all parameters; nothing is partitioned, compiled or run. Static against
`tracing_mode="fake"`, symbolic batch and sequence against `tracing_mode="symbolic"`. Figures are the processor's
seconds, medians of paired rounds after one that warms up. `ours_inductor` decomposes on the way, as a compile does;
make_fx and `ours` keep the operators that autograd calls.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd import aot_module_simplified
from benchmarks.steady import sizes_of
from compile_api.demo.subjects import build_subject
from dynamo import mark_dynamic, optimize
from primtorch import decomposition_table
from primtorch.symbolic import hint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.steady import Request


class _TracedError(Exception):
    """Raised with the joint graph as soon as it is there, so that nothing after tracing runs."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes


class _CapturedError(Exception):
    """Raised with what dynamo hands over."""


def captured(subject: Any, symbolic: bool) -> tuple[torch.fx.GraphModule, list[Any]]:
    """The graph of a training step's forward and its inputs, as the backend gets them."""
    inputs = dict(subject.training_inputs)
    if symbolic:
        for tensor in inputs.values():
            mark_dynamic(tensor, 0)
            mark_dynamic(tensor, 1)
    found: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        found.append((gm, list(example_inputs)))
        raise _CapturedError

    backend.symbolic = True  # type: ignore[attr-defined]
    try:
        optimize(backend, dynamic=None if symbolic else False, fullgraph=True)(subject.module)(
            **inputs
        )
    except Exception:
        if not found:
            raise
    return found[0]


def _ours(
    gm: torch.fx.GraphModule, inputs: list[Any], table: Mapping[Any, Any] | None
) -> Callable[[], int]:
    def stop(joint: torch.fx.GraphModule, **_: Any) -> Any:
        raise _TracedError(len(joint.graph.nodes))

    def never(*_: Any) -> Any:
        raise AssertionError("nothing is compiled here")

    def work() -> int:
        try:
            aot_module_simplified(
                gm, inputs, fw_compiler=never, partition_fn=stop, decompositions=table
            )
        except _TracedError as traced:
            return traced.nodes
        raise AssertionError("the joint graph was not partitioned")

    return work


def _theirs(gm: torch.fx.GraphModule, inputs: list[Any], symbolic: bool) -> Callable[[], int]:
    from torch.fx.experimental.proxy_tensor import make_fx

    plain = [hint_of(value) if isinstance(value, torch.SymInt) else value for value in inputs]

    def joint(*arguments: Any) -> Any:
        outputs = gm(*arguments)
        wanted = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
        leaves = [a for a in arguments if isinstance(a, torch.Tensor) and a.requires_grad]
        tangents = [torch.ones_like(o) for o in wanted]
        return outputs, torch.autograd.grad(wanted, leaves, tangents, allow_unused=True)

    def work() -> int:
        traced = make_fx(joint, tracing_mode="symbolic" if symbolic else "fake")(*plain)
        return len(traced.graph.nodes)

    return work


def _seconds(work: Callable[[], int]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return time.process_time() - start


def run(request: Request) -> Iterator[dict[str, Any]]:
    """Yields a row for static and one for symbolic sizes: seconds of each, and the ratios."""
    rounds = 1 if request.small else min(request.rounds, 7)
    for symbolic in (False, True):
        name = "bert joint graph, " + ("symbolic batch and sequence" if symbolic else "static")
        if request.only not in name:
            continue
        sizes = dataclasses.replace(sizes_of("bert", request), batch=2)  # a batch of 1 is no symbol
        subject = build_subject("bert", sizes)
        subject.module.train()
        gm, inputs = captured(subject, symbolic)
        systems = {
            "torch": _theirs(gm, inputs, symbolic),
            "ours": _ours(gm, inputs, None),
            "ours_inductor": _ours(gm, inputs, decomposition_table("inductor")),
        }
        nodes = {system: work() for system, work in systems.items()}
        samples: dict[str, list[float]] = {system: [] for system in systems}
        for _ in range(rounds):
            for system, work in systems.items():
                samples[system].append(_seconds(work))
        row: dict[str, Any] = {"name": name, "rounds": rounds}
        for system, values in samples.items():
            row[f"{system}_nodes"] = nodes[system]
            row[f"{system}_trace_s"] = round(statistics.median(values), 4)
        for system in ("ours", "ours_inductor"):
            ratios = [a / b for a, b in zip(samples["torch"], samples[system], strict=True)]
            row[f"torch_by_{system}"] = round(statistics.median(ratios), 2)
        yield row
