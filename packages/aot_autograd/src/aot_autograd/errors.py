"""The error tree of aot_autograd.

    AotError(RuntimeError)
        TraceError                 the function could not be traced
            UnsupportedOperator    an operator whose effect a functional graph cannot express
            UnsupportedAliasing    inputs that share storage in a way that cannot be rebuilt exactly
        WireError                  a promise of docs/interfaces.md was broken by the caller
        CompilerContractError      a compiler passed by the user returned something else than promised
        PartitionError             a partition function lost or invented a value
        UnsupportedTransform       a transform of torch.func follows a compiled backward without its call
        OptionError(ValueError)    an option that does not exist or has a wrong value
    FirstDerivativeOnly(UserWarning)  a gradient lacks what eager's second derivatives bring

Each message says what was being compiled, where, why it failed, and what to do.
"""

from __future__ import annotations

SourceLine = tuple[str, int, str, str]


class AotError(RuntimeError):
    """Root of everything this package raises on its own account.

    Args:
        what: What was being done.
        why: The reason.
        remedy: What the reader can do.
        source_line: The user's (file, line, function, text), where known.
    """

    def __init__(
        self,
        what: str,
        why: str,
        remedy: str = "",
        source_line: SourceLine | None = None,
    ) -> None:
        self.what = what
        self.why = why
        self.remedy = remedy
        self.source_line = source_line
        lines = [what]
        if source_line is not None:
            file, line, function, text = source_line
            lines.append(f"  {file}:{line} in {function}: {text.strip()}")
        lines.append(f"  why: {why}")
        if remedy:
            lines.append(f"  try: {remedy}")
        super().__init__("\n".join(lines))


class TraceError(AotError):
    """The function could not be turned into a graph."""


class UnsupportedOperator(TraceError):
    """An operator whose effect no functional graph can express (`set_`, `resize_`, ...)."""


class UnsupportedAliasing(TraceError):
    """Tensors that share storage in a way whose gradient or mutation cannot be rebuilt exactly."""


class WireError(AotError):
    """The caller broke a promise of wire 2."""


class CompilerContractError(AotError):
    """A compiler returned something that is not a callable, or a wrong number of outputs."""


class PartitionError(AotError):
    """A partition function returned graphs that do not compute the joint graph's outputs."""


class UnsupportedTransform(AotError):
    """A gradient belongs to a transform that would have to see inside of a compiled backward."""


class OptionError(AotError, ValueError):
    """An unknown option, or a value outside its range."""


class IncompleteGradient(UserWarning):
    """Somebody looks at a gradient that misses a part which it has in eager.

    Args:
        what: What is being done.
        why: How its outcome differs from eager's.
        remedy: What the reader can do.
    """

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what}\n  why: {why}\n  try: {remedy}")


class FirstDerivativeOnly(IncompleteGradient):
    """A result of a compiled call retains its gradient, or has a hook, while derivatives are differentiated."""
