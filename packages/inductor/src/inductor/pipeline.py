"""The table of contents of the compiler: from an FX graph to a callable, stage by stage.

Each stage takes what the one before made. `verify` is run when the options ask for it, `text` only
when somebody watches; a stage never prints itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from inductor import ir, lowering, schedule
from inductor.execute import execute
from inductor.graph import check_wire
from inductor.ir.machine import H200, KNOWN
from inductor.runtime.processor import this_processor
from primtorch import deterministic

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from inductor.ir import Graph, Program
    from inductor.ir.machine import DeviceProperties
    from inductor.options import InductorOptions

Observer = Callable[[str, str], None]
Span = Callable[[str, str], AbstractContextManager[None]]


class BoxedCallable(Protocol):
    """A compiled graph: takes and empties a list, returns a tuple."""

    boxed: bool
    output_layouts: tuple[tuple[ir.Size, ...] | None, ...]

    def __call__(self, inputs: list[Any], /) -> tuple[Any, ...]:
        """Run the graph."""
        ...


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the road: what it does, how its result is checked and shown, under which name."""

    name: str
    run: Callable[[Any, GraphModule, InductorOptions], Any]
    verify: Callable[[Any], None] | None = None
    text: Callable[[Any], str] | None = None
    file: str = ""


def _check(gm: GraphModule, _: GraphModule, __: InductorOptions) -> GraphModule:
    check_wire(gm)
    return gm


def _programs_everywhere(options: InductorOptions) -> bool:
    """Whether tensors of the CPU get kernels of the shape that a GPU's get."""
    if options.executor == "triton_interpreter":
        return True
    if not options.device:
        return False
    import torch

    from inductor.devices import device_for  # code generators are loaded when they are needed

    return device_for(torch.device("cpu"), options.device).loops == "programs"


def _processor(options: InductorOptions) -> DeviceProperties:
    """This machine's processor, with the library of products that the options name."""
    found = this_processor()
    if options.products == "auto":
        return found
    return replace(found, products="onednn" if options.products == "onednn" else "blas")


def _lower(gm: GraphModule, _: GraphModule, options: InductorOptions) -> Graph:
    return lowering.lower(
        gm,
        round_halves=options.round_halves,
        for_gpu=_programs_everywhere(options),
        processor=_processor(options),
        ordered=deterministic(),
    )


def _card(graph: Graph, options: InductorOptions) -> DeviceProperties:
    """What a GPU's kernels are chosen for: the card that the graph's tensors are on, or one that is named."""
    if options.executor == "triton_interpreter":
        return KNOWN.get(options.gpu_target, H200)
    import torch

    from inductor.devices import device_for  # code generators are loaded when they are needed

    devices = (buffer.device for buffer in graph.buffers.values())
    device = next((device for device in devices if device.type != "cpu"), None)
    if device is None:
        if not _programs_everywhere(options):
            return H200
        device = torch.device("cpu")
    made = device_for(device, options.device)
    if made.loops != "programs" or not made.available():
        return H200
    return made.properties(max(made.launcher_index(device), 0))


def _schedule(graph: Graph, _: GraphModule, options: InductorOptions) -> Program:
    everywhere, card = _programs_everywhere(options), _card(graph, options)
    return schedule.build(graph, fusing=options.fuse, for_gpu=everywhere, card=card)


STAGES: tuple[Stage, ...] = (
    Stage("check the wire", _check),
    Stage("lower to loops", _lower, ir.verify_graph, ir.graph_text, "06_loops.txt"),
    Stage("choose kernels", _schedule, schedule.verify_program, ir.program_text, "07_schedule.txt"),
)
"""What happens before code generation, in order."""


def _no_span(step: str, about: str) -> AbstractContextManager[None]:
    """Nobody measures."""
    del step, about
    return nullcontext()


def plan(
    gm: GraphModule,
    options: InductorOptions,
    observer: Observer | None = None,
    span: Span = _no_span,
) -> Program:
    """Run the stages."""
    value: Any = gm
    for stage in STAGES:
        with span(stage.name, ""):
            value = stage.run(value, gm, options)
        if options.verify and stage.verify is not None:
            stage.verify(value)
        if observer is not None and stage.text is not None:
            observer(stage.file, stage.text(value))
    return value


def _begin_early(gm: GraphModule, options: InductorOptions) -> None:
    """Let the device that the graph is for begin what takes a while, such as starting compilers."""
    if options.executor != "native":
        return
    values = (node.meta.get("val") for node in gm.graph.nodes if node.op == "placeholder")
    devices = (getattr(value, "device", None) for value in values)
    device = next((found for found in devices if found is not None and found.type != "cpu"), None)
    if device is None:
        return
    from inductor.devices import device_for  # code generators are loaded when they are needed

    made = device_for(device, options.device)
    prepare = getattr(made, "prepare", None)  # one that comes from outside need not have it
    if prepare is not None and made.available():
        prepare(made.launcher_index(device))


def compile_graph(
    gm: GraphModule,
    options: InductorOptions,
    observer: Observer | None = None,
    span: Span | None = None,
) -> BoxedCallable:
    """All stages, then code generation and the executor."""
    span = _no_span if span is None else span
    _begin_early(gm, options)
    program = plan(gm, options, observer, span)
    with span("generate and compile kernels", ""):
        return execute(program, gm, options, observer)
