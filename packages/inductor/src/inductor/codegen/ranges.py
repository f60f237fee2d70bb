"""Names of kernels in a profile: what one computes, and where in the user's program.

Comes in: the kernels of a call program and its graph. Goes out: a name for each. The launcher gives them to a profiler
that is at work and looks at none of them otherwise. Invariant: a name is for people alone; nothing is found by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from inductor.codegen.triton.naming import telling_words
from inductor.devices.built import LoadedKernel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.fx import GraphModule

    from inductor.devices.built import BuiltKernel
    from inductor.ir import Graph
    from inductor.ir.nodes import Origin

__all__ = ["range_names"]

_TORCH = str(Path(torch.__file__).parent)


def range_names(
    started: Sequence[BuiltKernel | LoadedKernel], graph: Graph, module: GraphModule
) -> tuple[bytes, ...]:
    """`loops_mul_exp_sum, encoder.layers.0, model.py:42` for each kernel."""
    modules = {node.name: node.meta.get("module_path") for node in module.graph.nodes}
    origins = {node.name: node.origins for node in graph.nodes}
    found = []
    for made in started:
        known = [origin for name in made.kernel.nodes for origin in origins.get(name, ())]
        name = ", ".join((_computed(made), *_place(known, modules)))
        found.append(name.replace("\0", "").encode())
    return tuple(found)


def _computed(made: BuiltKernel | LoadedKernel) -> str:
    if isinstance(made, LoadedKernel):
        return made.binary.name
    operations = (operation for _, operation, _ in made.kernel.body.operations())
    return "_".join(("loops", *telling_words(operations)))


def _place(origins: Sequence[Origin], modules: Mapping[str, str | None]) -> list[str]:
    """The module and the line of the last operator that has one; the user's own files come before torch's."""
    known = [origin for origin in origins if origin.source_line is not None]
    own = [
        o for o in known if o.source_line is not None and not o.source_line[0].startswith(_TORCH)
    ]
    for origin in reversed(own or known):
        assert origin.source_line is not None
        path = modules.get(origin.node)
        file, line, *_ = origin.source_line
        return [*([path] if path else []), f"{Path(file).name}:{line}"]
    return []
