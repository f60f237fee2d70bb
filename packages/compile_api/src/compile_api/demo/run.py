"""Runs the demo: compiles a subject for inference and for a training step, checks and times both.

In: a `Request`. Out: a `Report` of rows, one for inference and one for training. Invariant: results
are checked against float64 eager before anything is timed, and eager, ours and the peer run the same
weights on the same inputs in the same rounds.
"""

from __future__ import annotations

import copy
import pkgutil
import platform
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from compile_api.api import compile, reset  # noqa: A004 - the facade's own name
from compile_api.demo.accuracy import Error, largest_error
from compile_api.demo.subjects import Sizes, Subject, build_subject
from compile_api.demo.timing import Paired, seconds_of, time_paired
from compile_api.errors import InvalidArgument
from compile_api.explain import explain_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from compile_api.explain import Explanation

__all__ = ["Report", "Request", "Row", "errors_of", "results_of", "run_demo", "truth_of"]


@dataclass(frozen=True, slots=True)
class Request:
    """What to run."""

    model: str = "bert"
    device: str = "cpu"
    sizes: Sizes = field(default_factory=Sizes)
    training: bool = True
    compare: str | None = None
    rounds: int = 9
    backend: str = "inductor"


@dataclass(frozen=True, slots=True)
class Measured:
    """One system on one row: cold compile, median time of a call, errors against float64."""

    cold_seconds: float
    milliseconds: float
    output_error: Error
    gradient_error: Error | None


@dataclass(frozen=True, slots=True)
class Row:
    """One mode of one subject."""

    subject: str
    size: str
    mode: str
    graphs: int
    breaks: int
    kernels: int
    eager: Measured
    ours: Measured
    peer: Measured | None
    speedup: float
    interval: tuple[float, float]
    over_peer: float | None = None
    """The peer's time over ours, in pairs."""
    over_peer_interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All rows, and where they were measured."""

    rows: tuple[Row, ...]
    machine: str
    threads: int
    torch: str


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def results_of(
    subject: Subject, call: Callable[..., Any], *, training: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Runs one call; returns outputs and gradients by name."""
    if not training:
        with torch.no_grad():
            outputs = subject.outputs(call(**subject.inputs))
        return {name: value.detach() for name, value in outputs.items()}, {}
    subject.module.zero_grad(set_to_none=True)
    loss = subject.loss(call(**subject.training_inputs))
    loss.backward()
    gradients = {
        name: parameter.grad.clone()
        for name, parameter in subject.module.named_parameters()
        if parameter.grad is not None
    }
    return {"loss": loss.detach()}, gradients


def _thunk(subject: Subject, call: Callable[..., Any], *, training: bool) -> Callable[[], object]:
    """Gives one whole call: an inference, or forward, backward and fresh gradients."""
    if not training:

        def infer() -> object:
            with torch.no_grad():
                return call(**subject.inputs)

        return infer

    def step() -> None:
        subject.module.zero_grad(set_to_none=True)
        subject.loss(call(**subject.training_inputs)).backward()

    return step


def truth_of(subject: Subject, *, training: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Runs one call eagerly in float64 on the CPU; returns outputs and gradients by name."""
    wide = copy.deepcopy(subject).to(torch.device("cpu"), torch.float64)
    return results_of(wide, wide.module, training=training)


def errors_of(
    actual: tuple[dict[str, Tensor], dict[str, Tensor]],
    truth: tuple[dict[str, Tensor], dict[str, Tensor]],
) -> tuple[Error, Error | None]:
    """The largest errors of outputs and of gradients."""
    outputs = largest_error(actual[0], truth[0])
    return outputs, largest_error(actual[1], truth[1]) if truth[1] else None


def _peer(name: str) -> Callable[[nn.Module], Callable[..., Any]]:
    """Finds the other compiler: the function `compile` of the module that the user named.

    Its imports and one-time set-up (a precompiled header, say) are paid before any clock starts.
    """
    try:
        function = pkgutil.resolve_name(f"{name}:compile")
    except (ImportError, AttributeError, ValueError) as fault:
        raise InvalidArgument(
            f"--compare {name}: there is no function {name}.compile ({fault})\n  try: --compare torch"
        ) from fault
    with torch.no_grad():
        function(lambda x: x.sin() + 1)(torch.zeros(64))
    return function


def _explain(subject: Subject, *, training: bool, backend: str) -> Explanation:
    inputs = subject.training_inputs if training else subject.inputs
    with nullcontext() if training else torch.no_grad():
        found = explain_call(subject.module, (), inputs, backend=backend)
    subject.module.zero_grad(set_to_none=True)
    return found


def _row(request: Request, subject: Subject, *, training: bool, tell: Callable[[str], None]) -> Row:
    mode = "training step" if training else "inference"
    subject.module.train(training)
    tell(f"{subject.name}, {mode}: the truth in float64")
    outputs, gradients = truth_of(subject, training=training)
    truth = (
        {name: value.to(request.device) for name, value in outputs.items()},
        {name: value.to(request.device) for name, value in gradients.items()},
    )

    systems: dict[str, Callable[..., Any]] = {"eager": subject.module}
    cold = {"eager": 0.0}
    errors = {}
    errors["eager"] = errors_of(results_of(subject, subject.module, training=training), truth)
    reset()
    makers: dict[str, Callable[[Any], Callable[..., Any]]] = {
        "ours": lambda module: compile(module, backend=request.backend)
    }
    if request.compare is not None:
        makers["peer"] = _peer(request.compare)
    for name, make in makers.items():
        tell(
            f"{subject.name}, {mode}: {'compile_api' if name == 'ours' else request.compare}, cold"
        )
        systems[name] = make(subject.module)
        cold[name] = seconds_of(_thunk(subject, systems[name], training=training))
        errors[name] = errors_of(results_of(subject, systems[name], training=training), truth)

    tell(f"{subject.name}, {mode}: {request.rounds} paired rounds")
    thunks = {name: _thunk(subject, call, training=training) for name, call in systems.items()}
    paired: Paired = time_paired(thunks, rounds=request.rounds)
    measured = {
        name: Measured(cold[name], 1e3 * paired.median(name), *errors[name]) for name in systems
    }
    tell(f"{subject.name}, {mode}: counting graphs, breaks and kernels")
    found = _explain(subject, training=training, backend=request.backend)
    return Row(
        subject=subject.name,
        size=subject.size,
        mode=mode,
        graphs=len(found.graphs),
        breaks=len(found.graph_breaks),
        kernels=len(found.kernels),
        eager=measured["eager"],
        ours=measured["ours"],
        peer=measured.get("peer"),
        speedup=paired.ratio("ours", "eager"),
        interval=paired.interval("ours", "eager"),
        over_peer=paired.ratio("ours", "peer") if "peer" in systems else None,
        over_peer_interval=paired.interval("ours", "peer") if "peer" in systems else None,
    )


def run_demo(request: Request, tell: Callable[[str], None] = lambda _text: None) -> Report:
    """Runs what was asked; `tell` gets a line when a new part begins.

    Raises:
        InvalidArgument: no such model, device or peer.
    """
    try:
        device = torch.device(request.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as fault:
        reason = str(fault).partition("\n")[0]
        raise InvalidArgument(f"device {request.device!r} can't be used: {reason}") from fault
    tell(f"building {request.model}")
    subject = build_subject(request.model, request.sizes).to(device, torch.float32)
    modes = (False, True) if request.training else (False,)
    rows = [_row(request, subject, training=training, tell=tell) for training in modes]
    return Report(tuple(rows), _machine(device), torch.get_num_threads(), str(torch.__version__))
