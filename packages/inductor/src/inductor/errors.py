"""What inductor raises.

    InductorError
    |- WireError                  the graph handed over breaks wire 3
    |- UnsupportedOperationError  nobody can express something in loops (the caller falls back)
    |- KernelError                one kernel can't be built (raised under `strict` only)
    |- PromiseError               an operator returned something else than its shape rule said
    |- VerificationError          one of our own stages made something illegal
    `- OptionError                an unknown option or a bad value

Each says what was being compiled, the user's line where one is known, why, and what to do.
"""

from __future__ import annotations


class InductorError(Exception):
    """The root of this package's errors."""


class WireError(InductorError):
    """The graph handed to the compiler isn't what docs/interfaces.md promises on wire 3."""

    def __init__(
        self, node: str, problem: str, source_line: tuple[str, int, str, str] | None = None
    ) -> None:
        self.node = node
        self.problem = problem
        self.source_line = source_line
        where = (
            f"\n  {source_line[0]}:{source_line[1]}  {source_line[3].strip()}"
            if source_line
            else ""
        )
        super().__init__(
            f"cannot compile node {node}: {problem}{where}\n"
            "  try: hand over a functional graph of aten operators, as aot_autograd makes it "
            "(docs/interfaces.md, wire 3)"
        )


class UnsupportedOperationError(InductorError):
    """Something that loops can't express; lowering catches it and calls the operator instead."""

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        self.why = why
        super().__init__(f"{what} can't be written as loops: {why}")


class KernelError(InductorError):
    """One kernel of a program could not be built, where the others could: a fault of ours."""

    def __init__(self, kernel: str, why: object) -> None:
        self.kernel = kernel
        super().__init__(
            f"kernel {kernel} was not built: {why}\n"
            "  this is a fault of inductor: please report the kernel; without `strict` torch's operators run it"
        )


class PromiseError(InductorError, RuntimeError):
    """An operator returned another dtype, size or number of tensors than its shape rule promised: a fault of ours."""

    def __init__(self, problem: object) -> None:
        self.problem = str(problem)
        super().__init__(
            f"{problem}\n"
            "  this is a fault of a shape rule: please report the operator; "
            "without `strict` torch's operators run the graph"
        )


class VerificationError(InductorError):
    """A stage of the compiler produced something illegal: a fault of ours."""

    def __init__(self, stage: str, subject: str, problem: str, context: str = "") -> None:
        self.stage = stage
        self.subject = subject
        self.problem = problem
        super().__init__(
            f"after {stage}: {subject}: {problem}\n{context}\n"
            "  this is a fault of inductor: please report the graph"
        )


class OptionError(InductorError, ValueError):
    """An option that doesn't exist or has a bad value."""
