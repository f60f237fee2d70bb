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

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx import GraphModule

    from inductor.ir import Program, Size
    from inductor.options import InductorOptions

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
) -> CompiledGraph:
    """The callable for a program."""
    layouts = layouts_of(program)
    if options.executor == "interpreter":
        return CompiledGraph(InterpretedProgram(program), program, layouts)
    if options.executor == "triton_interpreter":
        from inductor.runtime.triton_interpreter import InterpretedTriton

        made = InterpretedTriton(program)
        if observer is not None:
            observer("08_kernel.py", "\n".join(source.text for source in made.sources.values()))
        return CompiledGraph(made, program, layouts)
    try:
        from inductor.codegen.program import compile_program, kernel_texts
        from inductor.runtime.settings import BuildSettings
    except ImportError:
        return CompiledGraph(InterpretedProgram(program), program, layouts)
    settings = BuildSettings.from_environment()
    if options.compiler:
        settings = dataclasses.replace(settings, compiler=options.compiler)
    if observer is not None:
        observer("08_kernel.cpp", "\n".join(kernel_texts(program).values()))
        observer("09_program.txt", calls_text(program))
    return CompiledGraph(compile_program(program, gm, settings), program, layouts)
