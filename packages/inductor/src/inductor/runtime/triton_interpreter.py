"""Runs a program's Triton kernels in Triton's interpreter, on CPU tensors: how a machine without a GPU checks them.

Comes in: a program scheduled as for a GPU. Goes out: a callable of wire 3. Slow (milliseconds a program instance).
Invariant: Triton must interpret, which it decides when it is first imported: TRITON_INTERPRET=1 stands before that.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from inductor.codegen.triton import write_kernel
from inductor.errors import InductorError
from inductor.ir import Kernel
from inductor.ir.execute import Memory, run_program
from inductor.schedule.blocks import choose_blocks
from primtorch.symbolic import evaluate

if TYPE_CHECKING:
    from inductor.codegen.triton import TritonSource
    from inductor.ir import Program

__all__ = ["InterpretedTriton", "InterpreterOffError"]


class InterpreterOffError(InductorError):
    """Triton was imported to compile, so it can't interpret in this process."""

    def __init__(self) -> None:
        super().__init__(
            "Triton kernels can't be interpreted in this process\n"
            "  try: set TRITON_INTERPRET=1 before the process starts"
        )


class InterpretedTriton:
    """A program whose kernels Triton interprets."""

    def __init__(self, program: Program) -> None:
        import triton  # the package is optional; only this executor and the workers need it

        if not triton.knobs.runtime.interpret:
            raise InterpreterOffError
        self._program = program
        self._directory = tempfile.TemporaryDirectory(prefix="compile-api-triton-")
        self._functions: dict[str, Any] = {}
        self.sources: dict[str, TritonSource] = {}
        for step in program.schedule.steps:
            if isinstance(step, Kernel):
                self.sources[step.name] = write_kernel(step, choose_blocks(step, program.card))

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run step by step; empties `inputs`."""
        arguments = tuple(inputs)
        inputs.clear()
        with torch.no_grad():
            return run_program(self._program, arguments, self._run)

    def _run(self, kernel: Kernel, memory: Memory) -> None:
        source = self.sources[kernel.name]
        grid = evaluate(source.grid, memory.sizes)
        pointers = [memory.allocate(argument.buffer) for argument in kernel.arguments]
        if grid == 0:
            return
        sizes = [memory.size(size) for size in kernel.sizes]
        scalars = [memory.scalars[name] for name, _ in kernel.scalars]
        self._function(kernel.name)[(grid,)](*pointers, *sizes, *scalars)

    def _function(self, name: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            path = Path(self._directory.name) / f"{name}.py"
            path.write_text(self.sources[name].text, encoding="utf-8")
            spec = importlib.util.spec_from_file_location(f"interpreted_{name}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found = self._functions[name] = module.kernel
        return found
