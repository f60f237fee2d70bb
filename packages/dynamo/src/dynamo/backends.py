"""Backends by name. `eager` runs the captured graph as it is."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from dynamo.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["eager", "list_backends", "lookup_backend", "register_backend"]

Backend = Any
_BACKENDS: dict[str, Callable[..., Any]] = {}


def register_backend(
    backend: Callable[..., Any] | None = None, name: str | None = None
) -> Callable[..., Any]:
    """Give a backend a name; usable as a decorator with or without arguments.

    Raises:
        UsageError: the name belongs to another backend.
    """
    if backend is None:
        return lambda function: register_backend(function, name)
    key = name or backend.__name__
    known = _BACKENDS.get(key)
    if known is not None and known is not backend:
        raise UsageError(f"a backend named {key!r} is registered already; choose another name")
    _BACKENDS[key] = backend
    return backend


def list_backends() -> list[str]:
    """The names that `optimize` accepts, sorted."""
    return sorted(_BACKENDS)


def lookup_backend(backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """A backend by name, or the callable itself.

    Raises:
        UsageError: no such name; the nearest one is given.
    """
    if not isinstance(backend, str):
        if not callable(backend):
            raise UsageError(f"a backend is a name or a callable, not {type(backend).__name__}")
        return backend
    found = _BACKENDS.get(backend)
    if found is None:
        near = difflib.get_close_matches(backend, _BACKENDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(list_backends())}"
        raise UsageError(f"there is no backend named {backend!r}; {hint}")
    return found


def eager(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    """Run the graph as it was captured."""
    del example_inputs
    return gm.forward


eager.symbolic = True  # type: ignore[attr-defined]
register_backend(eager)
