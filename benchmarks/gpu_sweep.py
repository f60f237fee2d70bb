"""Generated kernels of single rows, timed on one GPU under other configurations than the analytic one.

    python -m benchmarks.gpu_sweep --out sweep.jsonl --budget 140
    python -m benchmarks.gpu_sweep --dry --out dry.jsonl

Comes in: rows of `benchmarks.gpu_micro_rows` and the variants of `benchmarks.gpu_sweep_variants`. Goes out: a line for
each variant: microseconds on a cold second-level cache (`gpu_micro`'s clock), the fraction of a copy, registers, errors
beside the reference interpreter. A row is planned as for the card and its kernels are started through the driver
one after another, so that a variant costs a compilation and a few launches. All are compiled before the first is timed.
`--dry` compiles for sm_90 where there is no card, and writes registers and spills. Invariant: a variant whose results
are not as near to the reference's as today's kernels' is no result.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch
from torch import Tensor

from aot_autograd import AotOptions, aot_module_simplified
from benchmarks import gpu_cold
from benchmarks.gpu_micro import CardClock
from benchmarks.gpu_micro_rows import WIDE, Row, Sizes, column_sums, rows
from benchmarks.gpu_sweep_variants import MORE_COLUMNS, VARIANTS, Variant
from benchmarks.provenance import provenance
from inductor import InductorOptions
from inductor.codegen.triton import sweeps as sweeps_module
from inductor.devices.gpu import triton_source
from inductor.execute import layouts_of
from inductor.ir import Kernel
from inductor.ir.execute import Memory
from inductor.ir.interpret import run_body
from inductor.ir.machine import H200
from inductor.pipeline import plan
from inductor.runtime.gpu_driver import open_driver
from inductor.runtime.triton_build import TritonBuilder, TritonTarget
from inductor.schedule import blocks as blocks_module
from inductor.schedule import endings as endings_module
from inductor.schedule import groups as groups_module
from inductor.schedule import split as split_module
from primtorch import decomposition_table
from primtorch.fake import FakeTensor, ShapeContext

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from inductor.codegen.triton import TritonSource
    from inductor.ir import Program
    from inductor.runtime.gpu_driver import DeviceFunction, GpuDriver
    from inductor.runtime.triton_build import TritonBinary

ROUNDS = 5
DEVICE = "cuda"
OPTIONS = InductorOptions(strict=True, executor="triton_interpreter", gpu_target="sm_90")


class _Planned(Exception):
    pass


class _Hollow(Sizes):
    """Inputs without contents: what a capture wants of them is their shapes."""

    def random(self, *shape: int, grad: bool = False) -> Tensor:
        return torch.empty(shape, device=self.device, dtype=WIDE).requires_grad_(grad)

    def integers(self, below: int, *shape: int) -> Tensor:
        del below
        return torch.empty(shape, device=self.device, dtype=torch.int64)


@contextlib.contextmanager
def hollow_inputs() -> Iterator[None]:
    """Rows make inputs without contents meanwhile."""
    random, integers = Sizes.random, Sizes.integers
    Sizes.random, Sizes.integers = _Hollow.random, _Hollow.integers  # type: ignore[method-assign]
    try:
        yield
    finally:
        Sizes.random, Sizes.integers = random, integers  # type: ignore[method-assign]


def _moved(gm: torch.fx.GraphModule) -> None:
    """Let a graph that was captured on the CPU be one of a card."""
    card, context = torch.device("cuda", 0), ShapeContext()

    def place(value: Any) -> Any:
        return card if isinstance(value, torch.device) else value

    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, FakeTensor):
            meta = replace(value.meta, device=card)
            node.meta["val"] = FakeTensor.create(meta, context, requires_grad=value.requires_grad)
        elif node.op != "placeholder":
            node.args = torch.fx.node.map_aggregate(node.args, place)
            node.kwargs = torch.fx.node.map_aggregate(node.kwargs, place)
    gm.recompile()


def captured(row: Row) -> torch.fx.GraphModule:
    """The graph that is timed: a row's forward, or its backward."""
    import dynamo

    graphs: dict[str, torch.fx.GraphModule] = {}

    def keep(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        del inputs
        graphs[gm.meta["role"]] = gm
        program = plan(gm, OPTIONS)

        def never_called(arguments: list[Any]) -> tuple[Any, ...]:
            raise AssertionError(len(arguments))

        never_called.boxed = True  # type: ignore[attr-defined]
        never_called.output_layouts = layouts_of(program)  # type: ignore[attr-defined]
        return never_called

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        # gradients are recorded on the device that the inputs are on
        if row.mode == "forward" and not torch.cuda.is_available():
            _moved(gm)
        aot_module_simplified(
            gm, inputs, fw_compiler=keep, bw_compiler=keep, inference_compiler=keep,
            decompositions=decomposition_table("inductor"), options=AotOptions(lazy_backward=False),
        )  # fmt: skip
        raise _Planned

    backend.symbolic = True  # type: ignore[attr-defined]
    with hollow_inputs(), torch.set_grad_enabled(row.mode == "backward"):
        inputs = row.inputs()
        try:
            dynamo.optimize(backend)(row.function)(*inputs)
        except Exception as error:
            if "_Planned" not in repr(error):
                raise
    return graphs["backward" if row.mode == "backward" else "inference"]


@dataclass(slots=True)
class Candidate:
    """One variant of one row: its program, its sources, what is being compiled."""

    row: Row
    variant: Variant
    program: Program
    sources: dict[str, TritonSource]
    futures: dict[str, Future[TritonBinary]] = field(default_factory=dict)


def candidate(row: Row, graph: torch.fx.GraphModule, variant: Variant) -> Candidate:
    """Plan a row under a variant's rules and write its kernels."""
    measured = blocks_module._measured
    enough = (
        split_module._ENOUGH_PROGRAMS, split_module._MOST_PROGRAMS, split_module._RESIDENT_PROGRAMS
    )  # fmt: skip

    def changed(kernel: Kernel, card: Any) -> blocks_module.Blocks:
        return variant.blocks(kernel, measured(kernel, card))

    early, common = sweeps_module._early, groups_module._fit_common
    blocks_module._measured = changed
    if variant.late:
        sweeps_module._early = lambda stages: set()
    if variant.apart:
        groups_module._fit_common = lambda group, info, found: None
    ending = endings_module._MOST_BYTES, endings_module._MOST_TURNS, blocks_module.ENDING_HOLDS
    endings_module._MOST_BYTES = variant.ending_bytes
    if variant.ending_turns:
        endings_module._MOST_TURNS = variant.ending_turns
    if variant.ending_holds:
        blocks_module.ENDING_HOLDS = variant.ending_holds
    if variant.programs_a_unit:
        split_module._ENOUGH_PROGRAMS = variant.programs_a_unit
        split_module._MOST_PROGRAMS = variant.programs_a_unit
        split_module._RESIDENT_PROGRAMS = variant.programs_a_unit
    try:
        program = plan(graph, OPTIONS)
        kernels = kernels_of(program)
        sources = {}
        for number, kernel in enumerate(kernels):
            source = variant.text(number, triton_source(kernel, H200))
            if source is not None:
                sources[kernel.name] = source
    finally:
        blocks_module._measured = measured
        (
            split_module._ENOUGH_PROGRAMS, split_module._MOST_PROGRAMS, split_module._RESIDENT_PROGRAMS
        ) = enough  # fmt: skip
        sweeps_module._early, groups_module._fit_common = early, common
        endings_module._MOST_BYTES, endings_module._MOST_TURNS, blocks_module.ENDING_HOLDS = ending
    return Candidate(row, variant, program, sources)


# ---- what a compiled kernel takes
def resources(binary: bytes) -> dict[str, int]:
    """Registers and bytes of spills of a compiled kernel, by the tool that comes with Triton."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        said = subprocess.run(
            [str(tool), "-res-usage", file.name], capture_output=True, text=True, check=False
        ).stdout
    found = {
        name.lower(): int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)
    }
    return {"registers": found.get("reg", -1), "spilled": found.get("stack", -1)}


# ---- on the card
class Runner:
    """Starts a candidate's kernels on the card, one after another; buffers are made once."""

    def __init__(self, found: Candidate, storages: dict[str, Tensor]) -> None:
        self._driver = open_driver()
        self.storages = dict(storages)
        self._launches: list[tuple[DeviceFunction, int, list[ctypes.c_void_p]]] = []
        self._dependent = found.variant.dependent
        memory = Memory(found.program.graph.buffers, {}, {})
        for step in found.program.schedule.steps:
            if not isinstance(step, Kernel):
                continue
            for argument in step.arguments:
                name = argument.buffer
                if name not in self.storages:
                    buffer = found.program.graph.buffers[name]
                    length = memory._length(buffer)
                    self.storages[name] = torch.zeros(length, dtype=buffer.dtype, device=DEVICE)
        for step in found.program.schedule.steps:
            if not isinstance(step, Kernel) or step.name not in found.sources:
                continue
            source = found.sources[step.name]
            values = [
                ctypes.c_void_p(self.storages[argument.buffer].data_ptr())
                for argument in step.arguments
            ]
            function = self._driver.load(found.futures[step.name].result(), 0)
            self._launches.append((function, int(source.grid), values))  # type: ignore[arg-type]

    def __call__(self) -> None:
        """One run of all kernels, on torch's current stream."""
        stream = torch.cuda.current_stream().cuda_stream
        for number, (function, grid, values) in enumerate(self._launches):
            if number and self._dependent:
                launch_dependent(self._driver, function, grid, stream, values)
            else:
                self._driver.launch(function, grid, stream, values)


class _Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute."""

    _fields_ = (("number", ctypes.c_int), ("_", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Configuration(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        ("extents", ctypes.c_uint * 6),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    )


_BEGINS_EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


def launch_dependent(
    driver: GpuDriver,
    function: DeviceFunction,
    grid: int,
    stream: int,
    arguments: list[ctypes.c_void_p],
) -> None:
    """Start a kernel that may begin before the one before it on the stream has ended."""
    values = [*arguments, ctypes.c_void_p(0), ctypes.c_void_p(0)]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    early = _Attribute(_BEGINS_EARLY, 0, (ctypes.c_int * 16)(1))
    extents = (ctypes.c_uint * 6)(grid, 1, 1, function.threads, 1, 1)
    configuration = _Configuration(extents, function.shared, stream, ctypes.addressof(early), 1)
    handle = ctypes.c_void_p(function.handle)
    driver._call("cuLaunchKernelEx", ctypes.byref(configuration), handle, pointers, None)


def inputs_of(program: Program, row: Row) -> dict[str, Tensor]:
    """Contents of what a program is given: by its caller, and by operators between its kernels."""
    random = torch.Generator(DEVICE).manual_seed(0)
    written: set[str] = set()
    read: set[str] = set()
    counters = {step.ending.counters for step in kernels_of(program) if step.ending is not None}
    for step in program.schedule.steps:
        if isinstance(step, Kernel):
            written |= step.writes
            read |= {argument.buffer for argument in step.arguments}
    classes = int(row.size.split("x")[-1]) if row.name == "cross entropy" else 2
    memory = Memory(program.graph.buffers, {}, {})
    storages: dict[str, Tensor] = {}
    for name in sorted(read - written - counters):
        buffer = program.graph.buffers[name]
        length = memory._length(buffer)
        if buffer.dtype.is_floating_point:
            made = torch.randn(length, generator=random, device=DEVICE).to(buffer.dtype)
            # statistics of rows, running variances
            storages[name] = made.abs_() + 0.5 if buffer.dtype is torch.float32 else made
        elif length == 1:
            storages[name] = torch.full((1,), 1234567, dtype=buffer.dtype, device=DEVICE)
        else:
            storages[name] = torch.randint(
                0, classes, (length,), generator=random, device=DEVICE, dtype=buffer.dtype
            )
    return storages


def reference(program: Program, storages: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the reference interpreter leaves in the program's results, on the card."""
    memory = Memory(program.graph.buffers, {}, {})
    known = dict(storages)
    for step in program.schedule.steps:
        if not isinstance(step, Kernel):
            continue
        for argument in step.arguments:
            if argument.buffer not in known:
                buffer = program.graph.buffers[argument.buffer]
                length = memory._length(buffer)
                known[argument.buffer] = torch.zeros(length, dtype=buffer.dtype, device=DEVICE)
        used = {argument.buffer: known[argument.buffer] for argument in step.arguments}
        lengths = {local.name: memory.size(local.length) for local in step.locals}
        for local in step.locals:
            used[local.name] = torch.empty(0, dtype=local.dtype, device=DEVICE)
        with torch.no_grad():
            run_body(step.body, used, {}, {}, lengths)
            if step.ending is not None:
                run_body(step.ending.kernel.body, used, {}, {}, {})
    return {name: known[name] for name in results_of(program)}


def kernels_of(program: Program) -> list[Kernel]:
    """The kernels of a program in order."""
    return [step for step in program.schedule.steps if isinstance(step, Kernel)]


def results_of(program: Program) -> list[str]:
    """Buffers of the program's results that kernels write."""
    written = {name for step in kernels_of(program) for name in step.writes}
    outputs = (getattr(value, "buffer", None) for value in program.graph.outputs)
    return sorted({name for name in outputs if name in written})


def distance(mine: Tensor, true: Tensor) -> float:
    """Relative, by the norm of the difference."""
    wide = true.double()
    return ((mine.double() - wide).norm() / wide.norm().clamp_min(1e-30)).item()


def measured(
    found: Candidate, storages: dict[str, Tensor], truth: dict[str, Tensor], clock: CardClock
) -> dict[str, Any]:
    """Errors, then the median of some rounds."""
    runner = Runner(found, storages)
    runner()
    runner()  # counters that a variant keeps must be as they were
    torch.cuda.synchronize()
    errors = {name: distance(runner.storages[name], true) for name, true in truth.items()}
    line: dict[str, Any] = {"error": max(errors.values())}
    if not line["error"] <= 2e-2 and not found.variant.wrong_on_purpose:
        return line | {"failed": f"errs by {line['error']:.2g}"}
    host = clock.host(runner)
    seconds = statistics.median(clock.seconds(runner, host) for _ in range(ROUNDS))
    return line | {
        "us": 1e6 * seconds,
        "of_copy": clock.floor(found.row.must_move) / seconds,
        "fraction": found.row.must_move / seconds / clock.best_rate(),
    }


def _taken(found: Candidate) -> list[dict[str, Any]]:
    """What each kernel of a candidate is and takes; the exception of a compilation."""
    taken = []
    for name, source in found.sources.items():
        binary = found.futures[name].result()
        taken.append(
            {
                "kernel": binary.name,
                "grid": int(source.grid),  # type: ignore[arg-type]  # sizes are known here
                "warps": source.warps,
                "shared": binary.shared,
                **resources(binary.binary),
            }
        )
    return taken


def _head(*, dry: bool) -> dict[str, Any]:
    head: dict[str, Any] = dict(provenance())
    return head if dry else head | {"card": torch.cuda.get_device_properties(0).name}


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--budget", default=140.0, help="Seconds after which no variant is begun.")
@click.option(
    "--only", default="", help="Rows whose name and size contain this; several by semicolon."
)
@click.option("--cold/--no-cold", default=True, help="Time MobileNetV3's first step afterwards.")
@click.option("--dry", is_flag=True, help="Compile for sm_90, time nothing.")
def main(out: Path, budget: float, only: str, cold: bool, dry: bool) -> None:
    """Measure the variants and append them to a file of JSON lines."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, out.open("a", encoding="utf-8") as file:

        def tell(found: dict[str, Any]) -> None:
            line = json.dumps(
                {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found.items()}
            )
            file.write(line + "\n")
            file.flush()
            print(line, flush=True)

        processes = 1 if dry else min(os.cpu_count() or 1, 16)
        builder = TritonBuilder(Path(folder), TritonTarget.named("sm_90"), processes=processes)
        builder.prestart(processes)
        tell(_head(dry=dry))
        waiting = list(_candidates(only, builder, tell))
        tell({"planned_s": time.perf_counter() - started, "candidates": len(waiting)})
        clock = None if dry else CardClock()
        _run(waiting, clock, tell, started + budget)
        builder.close()
        tell({"seconds": time.perf_counter() - started})
    if cold and not dry:
        gpu_cold.run_all(out, started + budget - time.perf_counter())


def _candidates(
    only: str, builder: TritonBuilder, tell: Callable[[dict[str, Any]], None]
) -> Iterator[Candidate]:
    """Plan all and begin to compile them, rows in the order of their variants."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shapes = [tuple(map(int, size.split("x"))) for size in MORE_COLUMNS]
    every = [*rows(device), *column_sums(Sizes(device, None), shapes)]
    known = {f"{row.name} {row.size}": row for row in every}
    for name, variants in VARIANTS.items():
        if only and not any(part in name for part in only.split(";")):
            continue
        graph = captured(known[name])
        for variant in variants:
            try:
                found = candidate(known[name], graph, variant)
            except Exception as fault:  # noqa: BLE001 - the other variants go on
                traceback.print_exc()
                tell({"row": name, "variant": variant.name, "failed": f"{fault}"[:300]})
                continue
            for kernel, source in found.sources.items():
                found.futures[kernel] = builder.submit(source, range(len(source.signature)))
            yield found


def _run(
    waiting: list[Candidate],
    clock: CardClock | None,
    tell: Callable[[dict[str, Any]], None],
    until: float,
) -> None:
    """Time the candidates of each row in turn; its first is today's configuration."""
    row, storages, truth = None, {}, {}
    for found in waiting:
        name = f"{found.row.name} {found.row.size}"
        line: dict[str, Any] = {"row": name, "variant": found.variant.name}
        if time.perf_counter() > until:
            tell(line | {"left_out": True})
            continue
        try:
            line["kernels"] = _taken(found)
            if clock is not None:
                if row != name:
                    storages = truth = {}
                    torch.cuda.empty_cache()
                    row, storages = name, inputs_of(found.program, found.row)
                    truth = reference(found.program, storages)
                line |= measured(found, storages, truth, clock)
        except Exception as fault:  # noqa: BLE001 - the other variants go on
            traceback.print_exc()
            line["failed"] = f"{type(fault).__name__}: {fault}"[:300]
        tell(line)


if __name__ == "__main__":
    main()
