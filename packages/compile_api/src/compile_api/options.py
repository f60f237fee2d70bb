"""What a user may set, and where it goes.

In: the `mode` and `options` arguments of `compile`, and the environment (read here and nowhere
else). Out: one frozen `Settings`, the option dataclasses of the packages below, each of which is
handed to its package as an argument. Invariant: an option that reaches a package was named by the
user exactly, checked against the type of its default, or is that default.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from aot_autograd import AotOptions
from compile_api.errors import (
    ConflictingArguments,
    InvalidArgument,
    InvalidOption,
    UnknownMode,
    UnknownOption,
)
from dynamo import DynamoOptions
from inductor import InductorOptions
from primtorch import DecompositionTable

__all__ = [
    "FacadeOptions",
    "Settings",
    "artifacts_by_environment",
    "cache_directory",
    "compiler_by_environment",
    "list_mode_options",
    "list_options",
    "log_topics",
    "progress_by_environment",
    "resolve",
    "strict_by_environment",
]

_TRUE = frozenset({"1", "true", "yes", "on"})


@dataclass(frozen=True, slots=True)
class FacadeOptions:
    """The facade's own options."""

    strict: bool = dataclasses.field(
        default=False,
        metadata={"help": "raise a fault of the compiler instead of running that graph eagerly"},
    )
    verify: bool = dataclasses.field(
        default=False,
        metadata={
            "help": "run each graph eagerly beside its compiled form and compare the results; compare what "
            "each decomposition returns with its operator's shape rule"
        },
    )
    decompositions: DecompositionTable | None = dataclasses.field(
        default=None,
        metadata={
            "help": "which operators are taken apart, and how; primtorch's table for inductor if not given"
        },
    )
    trace: str = dataclasses.field(
        default="",
        metadata={"help": "write what compiling takes to this file, as a Chrome trace"},
    )
    profile_ranges: bool = dataclasses.field(
        default=False,
        metadata={
            "help": "show each compiled graph to torch.profiler as a range with its module and line"
        },
    )
    artifact_cache: bool = dataclasses.field(
        default=True,
        metadata={
            "help": "keep what was compiled on disk, and look there before capturing a function"
        },
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that was chosen for one call of `compile`; hashable, so that it can be a key."""

    facade: FacadeOptions
    dynamo: DynamoOptions
    aot_autograd: AotOptions
    inductor: InductorOptions


_ROOMS: dict[str, type[Any]] = {
    "facade": FacadeOptions,
    "dynamo": DynamoOptions,
    "aot_autograd": AotOptions,
    "inductor": InductorOptions,
}

# "reduce-overhead" replays recorded launches on a GPU; the "max-autotune" pair also keeps the
# intermediates of half types in float32 within a kernel, which is less work and nearer to exact, but
# not rounded where eager rounds.
_MODES: dict[str, dict[str, object]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True, "round_halves": False},
    "max-autotune-no-cudagraphs": {"round_halves": False},
}


def _catalogue() -> dict[str, list[tuple[str, dataclasses.Field[Any]]]]:
    """Maps each name a user may write to the places it goes: (package, field)."""
    found: dict[str, list[tuple[str, dataclasses.Field[Any]]]] = {}
    for room, options in _ROOMS.items():
        for field in dataclasses.fields(options):
            found.setdefault(field.name, []).append((room, field))
    for name, places in list(found.items()):
        for room, field in places:
            found[f"{room}.{name}"] = [(room, field)]
    return found


def _default(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    assert field.default_factory is not dataclasses.MISSING, f"option {field.name} has no default"
    return field.default_factory()


def _check(name: str, value: object, default: object) -> object:
    """Returns the value if it has the default's type; an int is welcome where a float is expected."""
    match default:
        case bool():
            fits = isinstance(value, bool)
        case int():
            fits = isinstance(value, int) and not isinstance(value, bool)
        case float():
            fits = isinstance(value, int | float) and not isinstance(value, bool)
            value = float(value) if isinstance(value, int) and fits else value
        case str():
            fits = isinstance(value, str)
        case tuple():
            fits = isinstance(value, tuple | list)
            value = tuple(value) if isinstance(value, list) else value
        case _:
            return value  # a default of None says nothing about the type: the package judges
    if not fits:
        raise InvalidOption(name, value, type(default).__name__)
    return value


def _table(name: str, value: object) -> DecompositionTable:
    """Gives the user's decompositions as an immutable table; primtorch judges its entries."""
    if isinstance(value, DecompositionTable):
        return value
    if not isinstance(value, Mapping):
        raise InvalidOption(name, value, "mapping from operator overloads to functions")
    return DecompositionTable("the user's", value)


def _apply(changes: dict[str, dict[str, object]], given: Mapping[str, object]) -> None:
    """Adds the user's choices to what each package gets."""
    catalogue = _catalogue()
    for name, value in given.items():
        places = catalogue.get(name)
        if places is None:
            shown = {key for key, where in catalogue.items() if "." not in key or len(where) > 1}
            raise UnknownOption(name, shown)
        for room, field in places:
            if field.name == "decompositions" and value is not None:
                value = _table(name, value)  # noqa: PLW2901  a plain mapping is welcome
            changes[room][field.name] = _check(name, value, _default(field))


def strict_by_environment() -> bool:
    """Tells whether COMPILE_API_STRICT asks that faults of ours raise (it is on in all our tests)."""
    return os.environ.get("COMPILE_API_STRICT", "").lower() in _TRUE


def artifacts_by_environment() -> bool:
    """Tells whether COMPILE_API_ARTIFACTS leaves the artifact cache on; "0" or "off" turns it off."""
    return os.environ.get("COMPILE_API_ARTIFACTS", "").lower() not in {"0", "off", "false", "no"}


def progress_by_environment() -> bool:
    """Tells whether COMPILE_API_PROGRESS leaves the progress line on; "0" or "off" turns it off."""
    return os.environ.get("COMPILE_API_PROGRESS", "").lower() not in {"0", "off", "false", "no"}


def log_topics() -> tuple[str, ...]:
    """Gives the topics that COMPILE_API_LOGS names, in its order."""
    return tuple(
        name.strip() for name in os.environ.get("COMPILE_API_LOGS", "").split(",") if name.strip()
    )


def cache_directory() -> Path:
    """Gives the directory of all caches: COMPILE_API_CACHE_DIR, otherwise the user's cache directory."""
    named = os.environ.get("COMPILE_API_CACHE_DIR")
    return Path(named).absolute() if named else Path(platformdirs.user_cache_dir("compile_api"))


def compiler_by_environment() -> str | None:
    """Gives the C++ compiler that CXX names, or None."""
    return os.environ.get("CXX") or None


def resolve(mode: str | None, options: Mapping[str, object] | None) -> Settings:
    """Turns `mode` and `options` into settings.

    Raises:
        UnknownMode: no mode has that name.
        InvalidArgument: `options` is no mapping.
        ConflictingArguments: both were given (as with torch.compile, a mode is a set of options).
        UnknownOption, InvalidOption: an option that no package has, or a value of the wrong type.
    """
    if options is not None and not isinstance(options, Mapping):
        raise InvalidArgument(
            f"options must be a dict of names and values, got {type(options).__name__}: {options!r}"
        )
    if mode is not None and options:
        why = "a mode is itself a set of options; see compile_api.list_mode_options(mode)"
        raise ConflictingArguments("mode=", "options=", why)
    changes: dict[str, dict[str, object]] = {room: {} for room in _ROOMS}
    if strict_by_environment():
        for room, kind in _ROOMS.items():
            if any(field.name == "strict" for field in dataclasses.fields(kind)):
                changes[room]["strict"] = True
    _apply(changes, list_mode_options(mode or "default"))
    _apply(changes, options or {})
    if changes["facade"].get("verify"):
        changes["aot_autograd"].setdefault(
            "fallback_random", True
        )  # eager's own numbers to compare
    return Settings(**{room: _make(room, changes[room]) for room in _ROOMS})


def _make(room: str, values: dict[str, object]) -> Any:
    """Makes one package's options; what it refuses becomes an error of ours."""
    try:
        return _ROOMS[room](**values)
    except (TypeError, ValueError, RuntimeError) as refused:
        text = str(refused).strip()
        named = [name for name in values if name in text] or list(values)
        shown = values[named[0]] if len(named) == 1 else tuple(values[name] for name in named)
        raise InvalidOption(
            ", ".join(named), shown, text.partition("why: ")[2] or text
        ) from refused


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Gives the options that a mode stands for; without a mode, those of every mode by its name.

    An option that the installed version of a package lacks is left out.
    """
    if mode is None:
        return {name: list_mode_options(name) for name in _MODES}
    if mode not in _MODES:
        raise UnknownMode(mode, _MODES)
    known = _catalogue()
    return {name: value for name, value in _MODES[mode].items() if name in known}


def _help(room: str, field: dataclasses.Field[Any]) -> str:
    """Gives a field's help, or its paragraph in the docstring of its class."""
    text = field.metadata.get("help")
    if text is not None:
        return str(text)
    documented = inspect.getdoc(_ROOMS[room]) or ""
    found = re.search(rf"^\s+{field.name}: (.*(?:\n\s{{8,}}.*)*)", documented, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def list_options() -> dict[str, str]:
    """Gives every option with its package, default and meaning."""
    return {
        name: f"{room}, default {_default(field)!r}: {_help(room, field)}".rstrip(": ")
        for name, places in sorted(_catalogue().items())
        if "." not in name
        for room, field in places
    }
