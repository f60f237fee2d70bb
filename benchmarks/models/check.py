"""Judges one model in this process; `benchmarks.models.run` starts a process for each.

For inference and for one training step: graphs and graph breaks, the first call's seconds, the errors of ours and
of eager against float64. A result is right when its error is at
most 1.5 times eager's or below the tolerance. Where a tensor misses that, eager is asked for its other results:
without oneDNN, on two threads, with channels last (`variants`), and with weights and inputs moved by half a unit in
their last place. Eager's own error is then the largest of these: an error within it is rounding that the model
amplifies, and the row says so (`unstable`) and lists what each variant's error is.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import resource
import tempfile
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from torch import Tensor

    from benchmarks.models.subject import Subject

TOLERANCE = 2e-5
FACTOR = 1.5
MOVES = 6
SMALL = 1e-2  # a tensor's error is measured against at least this share of the greatest one's norm
PHASES = ("inference", "training")


@contextmanager
def _default_double(wanted: bool) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if wanted else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _infer(subject: Subject, target: Any) -> dict[str, Tensor]:
    import torch

    from benchmarks.models.subject import tensors_of

    with torch.no_grad():
        return dict(tensors_of(subject.infer(target, subject.inputs)))


def _step(subject: Subject, target: Any) -> dict[str, Tensor]:
    """One training step: the loss and every gradient, by name."""
    subject.module.zero_grad(set_to_none=True)
    assert subject.training_inputs is not None
    loss = subject.loss(target, subject.training_inputs)
    loss.backward()
    found = {"loss": loss.detach()}
    for name, parameter in subject.module.named_parameters():
        if parameter.grad is not None:
            found[f"gradient of {name}"] = parameter.grad.detach().clone()
    for name, buffer in subject.module.named_buffers():
        if buffer.is_floating_point():
            found[f"buffer {name}"] = buffer.detach().clone()
    return found


def step_alone(subject: Subject, target: Any) -> None:
    """The training step that memory is measured of: no copies for the comparison, no gradients left from before."""
    assert subject.training_inputs is not None
    subject.loss(target, subject.training_inputs).backward()
    subject.module.zero_grad(set_to_none=True)


RUN: dict[str, Callable[[Subject, Any], dict[str, Tensor]]] = {
    "inference": _infer,
    "training": _step,
}


def errors(found: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """The relative error of each tensor in the 2-norm; infinite where something is missing or of another shape."""
    import torch

    norms = {
        name: float(torch.linalg.vector_norm(value.double())) for name, value in reference.items()
    }
    sizes = {name: max(value.numel(), 1) ** 0.5 for name, value in reference.items()}
    # gradients that are zero in exact arithmetic are noise: the scale is the greatest's
    greatest = max((norms[name] for name in norms if name.startswith("gradient")), default=0.0)
    result = {}
    for name, wanted in reference.items():
        value = found.get(name)
        if value is None or value.shape != wanted.shape:
            result[name] = float("inf")
            continue
        if not wanted.is_floating_point():
            result[name] = 0.0 if torch.equal(value, wanted) else float("inf")
            continue
        floor = SMALL * greatest if name.startswith("gradient") else 1e-6 * sizes[name]
        gap = value.double() - wanted.double()
        gap = torch.where(value.double() == wanted.double(), 0.0, gap)  # infinities that agree
        error = float(torch.linalg.vector_norm(gap)) / max(norms[name], floor, 1e-30)
        result[name] = error if error == error else float("inf")  # noqa: PLR0124 - NaN
    result.update((name, float("inf")) for name in found.keys() - reference.keys())
    return result


def judge(ours: dict[str, float], eager: dict[str, float]) -> list[str]:
    """The tensors that are wrong, the worst first."""
    wrong = [
        (error, name)
        for name, error in ours.items()
        if not error <= max(FACTOR * eager.get(name, 0.0), TOLERANCE)
    ]
    return [
        f"{name}: error {error:.1e}, eager's {eager.get(name, 0.0):.1e}"
        for error, name in sorted(wrong, reverse=True)
    ]


def _moved(subject: Subject, phase: str, reference: dict[str, Tensor]) -> dict[str, float]:
    """The greatest errors of eager over weights and inputs that differ by half a unit in their last place."""
    import torch
    from torch.utils import _pytree as pytree

    generator = torch.Generator().manual_seed(1)

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return leaf
        noise = torch.rand(leaf.shape, generator=generator, dtype=leaf.dtype) - 0.5
        return leaf.detach() * (1 + torch.finfo(leaf.dtype).eps * noise)

    found: dict[str, float] = {}
    for _ in range(MOVES):
        twin = copy.deepcopy(subject.module)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.copy_(move(parameter))
        inputs, training = pytree.tree_map(move, (subject.inputs, subject.training_inputs))
        moved = dataclasses.replace(subject, module=twin, inputs=inputs, training_inputs=training)
        for name, error in errors(RUN[phase](moved, twin), reference).items():
            found[name] = max(found.get(name, 0.0), error)
    return found


def _without_onednn(subject: Subject, phase: str) -> dict[str, Tensor]:
    import torch

    with torch.backends.mkldnn.flags(enabled=False):
        return RUN[phase](subject, subject.module)


def _on_two_threads(subject: Subject, phase: str) -> dict[str, Tensor]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return RUN[phase](subject, subject.module)
    finally:
        torch.set_num_threads(before)


def _channels_last(subject: Subject, phase: str) -> dict[str, Tensor]:
    import torch
    from torch.utils import _pytree as pytree

    def move(leaf: Any) -> Any:
        is_image = isinstance(leaf, torch.Tensor) and leaf.dim() == 4
        return leaf.contiguous(memory_format=torch.channels_last) if is_image else leaf

    twin = copy.deepcopy(subject.module).to(memory_format=torch.channels_last)
    inputs, training = pytree.tree_map(move, (subject.inputs, subject.training_inputs))
    moved = dataclasses.replace(subject, module=twin, inputs=inputs, training_inputs=training)
    return RUN[phase](moved, twin)


VARIANTS: dict[str, Callable[[Subject, str], dict[str, Tensor]]] = {
    "without oneDNN": _without_onednn,
    "two threads": _on_two_threads,
    "channels last": _channels_last,
}


def variants(
    subject: Subject, phase: str, reference: dict[str, Tensor], state: dict[str, Any]
) -> dict[str, dict[str, float]]:
    """The errors of eager's other ways to compute the same; each starts from `state` and leaves it."""
    found = {}
    for name, run in VARIANTS.items():
        subject.module.load_state_dict(state)
        found[name] = errors(run(subject, phase), reference)
    subject.module.load_state_dict(state)
    return found


def _captured(subject: Subject, phase: str) -> dict[str, Any]:
    """Captures alone, watched: graphs and the breaks with their reasons."""
    import dynamo

    breaks: list[str] = []
    graphs = 0

    def count(graph: Any, inputs: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    count.symbolic = True  # type: ignore[attr-defined]

    def see(stage: str, text: str) -> None:
        if stage == "break":
            breaks.append(re.sub(r"\S*/site-packages/", "", text))

    twin = copy.deepcopy(subject.module)
    target = dynamo.optimize(count, options=dynamo.DynamoOptions(strict=True), observer=see)(twin)
    if phase == "inference":
        _infer(subject, target)
    else:
        subject.loss(target, subject.training_inputs)
    return {"graphs": graphs, "breaks": breaks}


def reference_of(
    subject: Subject, phase: str
) -> tuple[dict[str, Tensor], dict[str, float], dict[str, Any]]:
    """The float64 results, eager's errors against them, and the state that every run starts from."""
    subject.module.train(phase == "training")
    state = copy.deepcopy(subject.module.state_dict())
    double = subject.double()
    with _default_double(wanted=True):
        reference = RUN[phase](double, double.module)
    eager_errors = errors(RUN[phase](subject, subject.module), reference)
    subject.module.load_state_dict(state)
    return reference, eager_errors, state


def verdict(
    subject: Subject,
    phase: str,
    found: dict[str, Tensor],
    reference: dict[str, Tensor],
    eager_errors: dict[str, float],
    state: dict[str, Any],
) -> dict[str, Any]:
    """Whether the results are right, and how far they and eager's are from float64."""
    ours = errors(found, reference)
    wrong = judge(ours, eager_errors)
    row: dict[str, Any] = {"unstable": []}
    if wrong and max(ours.values()) < float("inf"):
        others = variants(subject, phase, reference, state)
        row["variants"] = {
            name: {"error": max(each.values()), "past": len(judge(each, eager_errors))}
            for name, each in others.items()
        }
        row["past"] = len(wrong)
        others["moved"] = _moved(subject, phase, reference)
        bar = {
            name: max(error, *(each.get(name, 0.0) for each in others.values()))
            for name, error in eager_errors.items()
        }
        still_wrong = judge(ours, bar)
        row["unstable"] = [text for text in wrong if text.split(":")[0] not in
                           {other.split(":")[0] for other in still_wrong}][:3]  # fmt: skip
        wrong = still_wrong
    row.update(correct=not wrong, wrong=wrong[:5], wrong_count=len(wrong))
    row.update(error=max(ours.values()), eager_error=max(eager_errors.values()))
    return row


def _phase(subject: Subject, phase: str) -> dict[str, Any]:
    """One phase of one model; a fault of a part leaves the parts before it in the row."""
    import compile_api
    from benchmarks.models import measure

    run = RUN[phase]
    row: dict[str, Any] = {"graphs": None, "breaks": [], "correct": False, "fault": ""}
    try:
        reference, eager_errors, state = reference_of(subject, phase)
    except Exception:  # noqa: BLE001 - eager's own failure is a row
        row["fault"] = "eager itself fails: " + traceback.format_exc(limit=-3)
        return row
    try:
        row.update(_captured(subject, phase))
        subject.module.load_state_dict(state)
        compile_api.reset()
        compiled = compile_api.compile(subject.module)
        found, first = measure.cold(lambda: run(subject, compiled))
        row.update(measure.as_row(first), compiled_graphs=compile_api.graph_count())
        subject.module.load_state_dict(state)
        row.update(verdict(subject, phase, found, reference, eager_errors, state))
    except BaseException as error:  # noqa: BLE001 - whatever a stage raises is the row
        row["fault"] = traceback.format_exc(limit=-12)
        row["fault_type"] = type(error).__name__
    return row


def check(name: str, phases: tuple[str, ...] = PHASES) -> dict[str, Any]:
    """The row of one model; `phases` may name the sweeps over sizes, too: "dynamic", torch.compile's "peer_sizes"."""
    import torch

    from benchmarks.models.registry import REGISTRY, build
    from benchmarks.models.subject import NotInstalled
    from benchmarks.models.sweep import peers_sweep, sweep

    row: dict[str, Any] = {"name": name, "suite": REGISTRY[name].suite, "torch": torch.__version__}
    for phase in phases:
        try:
            subject = build(name)
        except NotInstalled as error:
            return {**row, "skipped": str(error)}
        row["expected_graphs"] = subject.graphs
        if phase in ("dynamic", "peer_sizes"):
            swept = sweep if phase == "dynamic" else peers_sweep
            row[phase] = None if subject.resize is None else swept(subject)
        else:
            runs = phase == "inference" or subject.training_inputs is not None
            row[phase] = _phase(subject, phase) if runs else None
    row["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return row


def serve(answers: Connection, name: str, phases: tuple[str, ...]) -> None:
    """Sends the row of one model; caches are empty."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["COMPILE_API_CACHE_DIR"] = cache  # cold: nothing of an earlier run
        answers.send(check(name, phases))
        answers.close()
