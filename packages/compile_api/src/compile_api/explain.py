"""What became of one call: every stage from bytecode to call program, as text.

In: a function and the arguments of one call. Out: an `Explanation`: graphs, graph breaks with the
user's source, guards, recompiles, kernels, and one readable file per stage (docs/interfaces.md lists
them). Invariant: the call is compiled anew under a watch of its own; what the program compiled before
stays as it is, and no `.grad` is touched.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from compile_api import api
from compile_api.errors import NotCallable
from compile_api.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.fx import GraphModule

    from compile_api.timeline import Span

__all__ = ["Explanation", "Kernel", "Stage", "collect", "explain", "explain_call"]

_KERNEL = re.compile(
    r"^kernel (?P<name>\S+?)\((?P<buffers>.*)\)(?:  # (?P<nodes>.*))?$", re.MULTILINE
)  # a head line of inductor's schedule text
_TRAFFIC = re.compile(r"^  (?P<name>\S+): (?P<moved>(?:reads|writes) .* bytes)$", re.MULTILINE)
_MEMORY = re.compile(r"^memory: arena (.+) bytes$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one graph: the name of its file, its text, the seconds that were waited for it."""

    name: str
    text: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a call program: which schedule has it, what it reads and writes, for which nodes.

    `decisions` is how its loops are run, `traffic` what it moves at the least.
    """

    schedule: str
    name: str
    buffers: str
    nodes: tuple[str, ...]
    decisions: str = ""
    traffic: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What `explain` found; printing it gives the summary."""

    what: str
    graphs: tuple[GraphModule, ...]
    graph_breaks: tuple[str, ...]
    guards: tuple[str, ...]
    recompiles: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    stages: dict[str, Stage]
    seconds: float
    cache: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    memory: Mapping[str, str] = field(default_factory=dict)

    def write(self, directory: str | Path) -> list[Path]:
        """Writes one file per stage; returns their paths, in the order of the stages."""
        folder = Path(directory)
        paths = []
        for name, stage in sorted(self.stages.items()):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(stage.text.rstrip("\n") + "\n")
            paths.append(path)
        return paths

    def to_html(self, path: str | Path) -> Path:
        """Writes one self-contained page; returns its path."""
        from compile_api.report import page  # the page's markup is not needed to explain

        target = Path(path)
        target.write_text(page(self))
        return target

    def to_trace(self, path: str | Path) -> Path:
        """Writes what compiling took as a Chrome trace; returns its path."""
        from compile_api.timeline import Timeline

        timeline = Timeline()
        timeline.spans.extend(self.spans)
        return timeline.write(Path(path))

    def __str__(self) -> str:
        counts = ", ".join(
            _count(len(things), name)
            for name, things in (
                ("graph", self.graphs),
                ("graph break", self.graph_breaks),
                ("guard", self.guards),
                ("kernel", self.kernels),
            )
        )
        lines = [f"{self.what}: {counts}, compiled and run in {self.seconds:.2f} s"]
        for title, texts in (
            ("graph break", self.graph_breaks),
            ("recompile", self.recompiles),
            ("artifact", self.cache),
        ):
            for text in texts:
                lines += ["", f"{title}:", *(f"  {line}" for line in text.splitlines())]
        if self.stages:
            lines += ["", "stages:"]
            lines += [
                f"  {name:<24} {stage.text.count(chr(10)) + 1:>5} lines  {1e3 * stage.seconds:8.1f} ms"
                for name, stage in sorted(self.stages.items())
            ]
        return "\n".join(lines)


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Compiles and runs `function(*args, **kwargs)` once and tells what became of it.

    When the result needs gradients, the backward is compiled and run too, for the stages it has; the
    gradients are thrown away.

    Raises:
        NotCallable: `function` is neither a function nor a module.
        Whatever the function itself raises.
    """
    return explain_call(function, args, kwargs)


def explain_call(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    **arguments: Any,
) -> Explanation:
    """As `explain`, with arguments for `compile` (`backend=`, `mode=`, `dynamic=` and so on)."""
    if not callable(function):
        raise NotCallable(function)
    watch = Watch(record=True)
    start = time.perf_counter()
    compiled = api.compile_watched(function, watch, api.Arguments(**arguments))
    result = compiled(*args, **kwargs)
    _run_backward(function, args, kwargs, result)
    return collect(function, watch, time.perf_counter() - start)


def _run_backward(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], result: object
) -> None:
    """Pulls gradients through the result, so that the backward is compiled; keeps none of them."""
    outputs = [leaf for leaf in pytree.tree_leaves(result) if _differentiable(leaf)]
    outputs = [leaf for leaf in outputs if leaf.grad_fn is not None]
    if not outputs:
        return
    inputs: list[Tensor] = [
        leaf for leaf in pytree.tree_leaves((list(args), dict(kwargs))) if _differentiable(leaf)
    ]
    owner = (
        function if isinstance(function, torch.nn.Module) else getattr(function, "__self__", None)
    )
    if isinstance(owner, torch.nn.Module):
        inputs += [parameter for parameter in owner.parameters() if parameter.requires_grad]
    if inputs:
        ones = [torch.ones_like(leaf) for leaf in outputs]
        torch.autograd.grad(outputs, inputs, ones, allow_unused=True)


def _differentiable(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _kernels_of(schedule: str, text: str) -> list[Kernel]:
    """Reads the kernels of one schedule's text: head, the line below about its loops, the traffic at the end."""
    traffic = {found["name"]: found["moved"] for found in _TRAFFIC.finditer(text)}
    kernels = []
    for found in _KERNEL.finditer(text):
        below = text[found.end() :].splitlines()
        decisions = next(
            (line.strip() for line in below if not line.startswith("  local ") and line), ""
        )
        nodes = tuple((found["nodes"] or "").split(", "))
        name = found["name"]
        kernels.append(
            Kernel(schedule, name, found["buffers"], nodes, decisions, traffic.get(name, ""))
        )
    return kernels


def _memory_of(stages: Mapping[str, Stage]) -> dict[str, str]:
    """Reads how much memory each call program takes at once for what never leaves it."""
    return {
        name: found[1]
        for name, stage in sorted(stages.items())
        if name.rpartition("/")[2].startswith("07_")
        for found in [_MEMORY.search(stage.text)]
        if found is not None
    }


def collect(function: Callable[..., Any], watch: Watch, seconds: float) -> Explanation:
    """Makes the explanation out of what a recording watch saw."""
    stages: dict[str, Stage] = {}
    several = len(watch.records) > 1
    for record in watch.records:
        folder = f"graph_{record.index}/" if several else ""
        for name, text in record.stages.items():
            stages[f"{folder}{name}"] = Stage(f"{folder}{name}", text, record.seconds[name])
    guards = [
        line
        for name, stage in sorted(stages.items())
        if name.rpartition("/")[2].startswith("02_")
        for line in stage.text.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    kernels = [
        kernel
        for name, stage in sorted(stages.items())
        if name.rpartition("/")[2].startswith("07_")
        for kernel in _kernels_of(name, stage.text)
    ]
    return Explanation(
        what=getattr(function, "__qualname__", type(function).__qualname__),
        graphs=tuple(record.graph for record in watch.records if record.graph is not None),
        graph_breaks=tuple(watch.breaks),
        guards=tuple(guards),
        recompiles=tuple(watch.recompiles),
        kernels=tuple(kernels),
        stages=stages,
        seconds=seconds,
        cache=tuple(dict.fromkeys(watch.cache)),
        memory=_memory_of(stages),
        spans=tuple(sorted(watch.timeline.spans, key=lambda span: span.start)),
    )
