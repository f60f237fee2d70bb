"""Sizes that change: one compiled model over many batch sizes and lengths.

In: a subject that can make inputs of another size. Out: how many graphs were compiled on the way, which sizes were
wrong, the reasons of the recompiles. The first size is the static one; the second, which differs in all that varies,
makes the graph that must fit all others: two compiles. Right means as near to eager as float32 allows.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from benchmarks.models.subject import Subject

__all__ = ["BATCHES", "LENGTHS", "LIMIT", "peers_sweep", "sweep"]

BATCHES = (2, 3, 4, 5, 7)
LENGTHS = (24, 16, 32, 20, 12)
IMAGES = (2, 3, 4)
LIMIT = 2


def _sizes(subject: Subject) -> list[tuple[int, int]]:
    """Every pair; the second differs from the first in both."""
    if "image" in subject.inputs:
        return [(batch, 0) for batch in IMAGES]
    pairs = [(batch, length) for batch in BATCHES for length in LENGTHS]
    second = (BATCHES[1], LENGTHS[1])
    return [pairs[0], second, *(pair for pair in pairs[1:] if pair != second)]


def sweep(subject: Subject) -> dict[str, Any]:
    """The row: `graphs` is to be at most `LIMIT`."""
    import compile_api
    from benchmarks.models.subject import tensors_of

    assert subject.resize is not None
    recompiles: list[str] = []
    row: dict[str, Any] = {"graphs": None, "wrong": [], "fault": "", "sizes": 0}
    subject.module.eval()
    compile_api.reset()
    compiled = compile_api.compile(subject.module)
    try:
        for batch, length in _sizes(subject):
            inputs = subject.resize(batch, length)
            before = compile_api.graph_count()
            with torch.no_grad():
                wanted = dict(tensors_of(subject.infer(subject.module, inputs)))
                found = dict(tensors_of(subject.infer(compiled, inputs)))
            if compile_api.graph_count() != before:
                recompiles.append(f"{batch} x {length}")
            row["sizes"] += 1
            row["wrong"] += [
                f"{batch} x {length}: {name}"
                for name, value in wanted.items()
                if name not in found or not _near(found[name], value)
            ]
    except Exception:  # noqa: BLE001 - whatever a stage raises is the row
        row["fault"] = traceback.format_exc(limit=-12)
    row["graphs"] = compile_api.graph_count()
    row["compiled_at"] = recompiles
    return row


def peers_sweep(subject: Subject) -> dict[str, Any]:
    """How many graphs torch.compile makes over the same sizes: captured and differentiated, not turned into kernels."""
    from torch._dynamo.utils import counters

    assert subject.resize is not None
    subject.module.eval()
    torch._dynamo.reset()
    before = int(counters["stats"]["unique_graphs"])
    compiled = torch.compile(subject.module, backend="aot_eager")
    with torch.no_grad():
        for batch, length in _sizes(subject):
            subject.infer(compiled, subject.resize(batch, length))
    graphs = int(counters["stats"]["unique_graphs"]) - before
    return {"graphs": graphs, "sizes": len(_sizes(subject)), "torch": torch.__version__}


def _near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    if found.shape != wanted.shape or not wanted.is_floating_point():
        return torch.equal(found, wanted)
    gap = torch.linalg.vector_norm((found - wanted).double())
    return bool(gap <= 1e-4 * torch.linalg.vector_norm(wanted.double()) + 1e-6)
