"""Every error and warning that the facade raises, in one tree.

    CompileApiError(RuntimeError)
        InvalidArgument(ValueError)          something that was passed to `compile` or its relatives
            NotCallable(TypeError)
            UnknownBackend, UnknownMode, UnknownOption, InvalidOption, ConflictingArguments
        BackendUnavailable                   a known backend that can't be loaded here
        CompilationFailed                    a fault of ours, in strict mode; translates the stages'
        ResultDiffers                        under options={"verify": True}: a graph isn't eager's equal
        ArtifactRefused(ValueError)          a portable cache file of another version, or damaged
    CompileWarning(UserWarning)              a fault of ours that was survived: eager ran instead

Each message says what was asked, what is wrong with it and what to do, and ends with its section in
docs/errors.md. Names that may be misspelt get the nearest valid one.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ArtifactRefused",
    "BackendUnavailable",
    "CompilationFailed",
    "CompileApiError",
    "CompileWarning",
    "ConflictingArguments",
    "InvalidArgument",
    "InvalidOption",
    "NotCallable",
    "ResultDiffers",
    "UnknownBackend",
    "UnknownMode",
    "UnknownOption",
]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Gives the valid name most like `name`, or None when none is like it."""
    candidates = list(known)
    close = difflib.get_close_matches(name.lower(), candidates, n=1, cutoff=0.5)
    if close:
        return close[0]
    tails = {candidate.rpartition(".")[2]: candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), list(tails), n=1, cutoff=0.5)
    return tails[close[0]] if close else None


def _suggestion(name: str, known: Iterable[str]) -> str:
    candidates = sorted(known)
    best = nearest(name, candidates)
    hint = f"  did you mean: {best!r}?\n" if best is not None else ""
    return f"{hint}  valid are: {', '.join(candidates)}"


class CompileApiError(RuntimeError):
    """The root of what compile_api raises by itself; `section` is the heading in docs/errors.md."""

    section = "compile-api-error"

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}\n  see: docs/errors.md#{self.section}")


class InvalidArgument(CompileApiError, ValueError):
    """An argument that can't be meant."""

    section = "invalid-argument"


class NotCallable(InvalidArgument, TypeError):
    """What was to be compiled is neither a function nor a module.

    >>> import compile_api
    >>> compile_api.compile(42)
    Traceback (most recent call last):
    compile_api.errors.NotCallable: compile_api.compile needs a function or an nn.Module, got int: 42
    ...
    """

    section = "not-callable"

    def __init__(self, value: object) -> None:
        text = repr(value)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        super().__init__(
            f"compile_api.compile needs a function or an nn.Module, got {type(value).__name__}: {shown}\n"
            "  try: pass the function itself, not the result of calling it"
        )


class UnknownBackend(InvalidArgument):
    """No backend has that name."""

    section = "unknown-backend"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no backend {name!r}\n{_suggestion(name, known)}")


class UnknownMode(InvalidArgument):
    """No mode has that name."""

    section = "unknown-mode"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no mode {name!r}\n{_suggestion(name, known)}")


class UnknownOption(InvalidArgument):
    """No package has an option of that name."""

    section = "unknown-option"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no option {name!r}\n{_suggestion(name, known)}")


class InvalidOption(InvalidArgument):
    """An option exists, but its value is of the wrong type or out of range."""

    section = "invalid-option"

    def __init__(self, name: str, value: object, expected: str) -> None:
        super().__init__(
            f"option {name!r} is {value!r} ({type(value).__name__})\n  expected: {expected}"
        )


class ConflictingArguments(InvalidArgument):
    """Two arguments, each valid, that contradict each other."""

    section = "conflicting-arguments"

    def __init__(self, first: str, second: str, why: str) -> None:
        super().__init__(f"{first} and {second} contradict each other\n  why: {why}")


class BackendUnavailable(CompileApiError):
    """A backend is registered, but loading it failed."""

    section = "backend-unavailable"

    def __init__(self, name: str, origin: str, cause: BaseException) -> None:
        super().__init__(
            f"the backend {name!r} of {origin} can't be loaded\n"
            f"  why: {type(cause).__name__}: {cause}\n"
            "  try: reinstall that distribution, or choose one of compile_api.list_backends()"
        )


class CompilationFailed(CompileApiError):
    """A stage of ours failed on a program that eager runs; raised in strict mode only."""

    section = "compilation-failed"

    def __init__(self, stage: str, what: str, where: str, cause: BaseException) -> None:
        self.stage = stage
        super().__init__(
            f"{stage} failed while compiling {what}{where}\n"
            f"  why: {type(cause).__name__}: {cause}\n"
            "  try: without strict mode this graph runs eagerly; please report it with the output\n"
            "       of compile_api.explain"
        )


class ResultDiffers(CompileApiError):
    """A compiled graph computed something else than the graph run eagerly."""

    section = "result-differs"

    def __init__(self, graph: int, what: str, how: str) -> None:
        super().__init__(
            f"graph {graph} differs from eager in {what}\n"
            f"  how: {how}\n"
            "  try: backend='aot_eager', then 'aot_eager_decomp', to tell which stage it is; please\n"
            "       report it with the output of compile_api.explain"
        )


class ArtifactRefused(CompileApiError, ValueError):
    """A portable cache file that can't be used here."""

    section = "artifact-refused"

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"the cache artifacts in {path} are refused\n  why: {why}")


class CompileWarning(UserWarning):
    """Something of ours failed and was survived; the program's results are eager's."""
