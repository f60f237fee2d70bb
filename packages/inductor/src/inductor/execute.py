"""Chooses who runs a program and gives it the face that wire 3 promises.

In: a `Program` and its FX graph. Out: a callable with `boxed` and `output_layouts`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.execute import run_program
from inductor.ir.nodes import View
from inductor.ir.text import calls_text
from inductor.runtime.replay import Replayed, replayable, static_inputs
from inductor.runtime.settings import BuildSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx import GraphModule

    from inductor.ir import Program, Size
    from inductor.options import InductorOptions
    from inductor.pipeline import BoxedCallable
    from inductor.runtime.triton_interpreter import InterpretedTriton

Layouts = tuple["tuple[Size, ...] | None", ...]


class CompiledGraph:
    """A program behind the boxed calling convention."""

    __slots__ = ("_run", "boxed", "output_layouts", "program")

    def __init__(
        self, run: Callable[[list[Any]], tuple[Any, ...]], program: Program, layouts: Layouts
    ) -> None:
        self._run = run
        self.boxed = True
        self.program = program
        self.output_layouts = layouts

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run the program; empties `inputs`."""
        return self._run(inputs)


class InterpretedProgram:
    """A program run by the reference interpreter."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run step by step; empties `inputs`."""
        arguments = tuple(inputs)
        inputs.clear()
        with torch.no_grad():
            return run_program(self._program, arguments)


def _face(run: Any, program: Program, layouts: Layouts) -> BoxedCallable:
    """`run` with the attributes of wire 3 on itself where it can hold them: one call less at run time."""
    try:
        run.boxed, run.program, run.output_layouts = True, program, layouts
    except AttributeError:
        return CompiledGraph(run, program, layouts)
    faced: BoxedCallable = run
    return faced


def layouts_of(program: Program) -> Layouts:
    """The strides of each output, None where the output is no tensor."""
    return tuple(
        value.stride if isinstance(value, View) else None for value in program.graph.outputs
    )


def execute(
    program: Program,
    gm: GraphModule,
    options: InductorOptions,
    observer: Callable[[str, str], None] | None,
) -> BoxedCallable:
    """The callable for a program."""
    layouts = layouts_of(program)
    if options.executor == "interpreter":
        return _face(InterpretedProgram(program), program, layouts)
    settings = BuildSettings.from_environment()
    if options.compiler:
        settings = dataclasses.replace(settings, compiler=options.compiler)
    if options.executor == "triton_interpreter":
        made = _interpreted_triton(program, options, settings, observer)
        return _face(made, program, layouts)
    try:
        from inductor.codegen.program import compile_program, kernel_texts
    except ImportError:
        return _face(InterpretedProgram(program), program, layouts)
    if observer is not None:
        observer("08_kernel.cpp", "\n".join(kernel_texts(program, options.device).values()))
        observer("09_program.txt", calls_text(program))
    run: Any = compile_program(program, gm, settings, device=options.device, strict=options.strict)
    if options.cuda_graphs and replayable(program):
        launched = _face(run, program, layouts)
        return _face(_replayed(launched, program), program, layouts)
    return _face(run, program, layouts)


def _replayed(run: Any, program: Program) -> Replayed:
    """The program behind recordings; it can be stored where the launcher below it can, recordings can't."""
    from inductor.stored import (
        store_replayed,
    )  # beside the code generators, which are loaded already

    static = static_inputs(program)
    made: Any = Replayed(run, static)
    if hasattr(run, "store_part"):
        made.store_part = lambda: store_replayed(run.store_part(), static, layouts_of(program))
    replayed: Replayed = made
    return replayed


def _interpreted_triton(
    program: Program,
    options: InductorOptions,
    settings: BuildSettings,
    observer: Callable[[str, str], None] | None,
) -> InterpretedTriton:
    """The program's kernels as Triton interprets them, compiled for a GPU too if one is named."""
    from inductor.devices.gpu import build_all
    from inductor.runtime.triton_build import TritonTarget
    from inductor.runtime.triton_interpreter import InterpretedTriton

    made = InterpretedTriton(program)
    if observer is not None:
        observer("08_kernel.py", "\n".join(source.text for source in made.sources.values()))
    if options.gpu_target:
        target = TritonTarget.named(options.gpu_target)
        built = build_all(made.sources, target, settings)
        if observer is not None:
            lines = (
                f"{name}: {len(binary.binary)} bytes for {options.gpu_target}, {binary.warps} warps, "
                f"{binary.shared} bytes shared"
                for name, binary in built.items()
            )
            observer("08_kernel.binary.txt", "\n".join(lines))
    return made
