"""The backends by name: ours, those other distributions register, and those a program adds.

A backend is what turns a captured graph into a callable (docs/interfaces.md, wire 1). Ours are made
from the settings of one `compile` call, so their entry here is a factory; a foreign backend is the
callable itself. Entry points: the group `compile_api.backends`, looked up only when a name is not
one of ours, because scanning the installed distributions costs milliseconds.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

import dynamo
from compile_api import wiring
from compile_api.errors import BackendUnavailable, InvalidArgument, UnknownBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from compile_api.options import Settings
    from compile_api.watch import Watch

    Backend = Callable[..., Callable[..., Any]]

__all__ = ["list_backends", "lookup_backend", "register_backend"]

_GROUP = "compile_api.backends"
_OURS: dict[str, Callable[[Settings, Watch], Backend]] = {
    "aot_eager": wiring.aot_eager,
    "aot_eager_decomp": wiring.aot_eager_decomp,
    "eager": wiring.eager,
    "inductor": wiring.inductor,
}
_REGISTERED: dict[str, Backend] = {}


def register_backend(name: str, backend: Backend) -> None:
    """Makes `backend` known under a name of the program's own.

    Raises:
        InvalidArgument: the name is no string or taken by one of ours, or the backend isn't callable.
    """
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of a backend must be a string, got {name!r}")
    if name in _OURS:
        raise InvalidArgument(f"the backend name {name!r} is taken by compile_api itself")
    if not callable(backend):
        raise InvalidArgument(f"the backend {name!r} is not callable: {backend!r}")
    _REGISTERED[name] = backend


def _entry_points() -> dict[str, importlib.metadata.EntryPoint]:
    return {point.name: point for point in importlib.metadata.entry_points(group=_GROUP)}


def list_backends() -> list[str]:
    """Names every backend that `compile(backend=...)` accepts, sorted."""
    return sorted({*_OURS, *_REGISTERED, *_entry_points(), *dynamo.list_backends()})


def lookup_backend(backend: str | Backend, settings: Settings, watch: Watch) -> Backend:
    """Finds a backend by name, or takes the callable as it is.

    Raises:
        UnknownBackend: no backend has that name; the nearest is given.
        BackendUnavailable: it is registered by an installed distribution and fails to load.
    """
    if callable(backend):
        return wiring.foreign(backend, settings, watch)
    if not isinstance(backend, str):
        raise InvalidArgument(f"backend must be a name or a callable, got {backend!r}")
    if backend in _OURS:
        return _OURS[backend](settings, watch)
    if backend in _REGISTERED:
        return wiring.foreign(_REGISTERED[backend], settings, watch)
    point = _entry_points().get(backend)
    if point is None:
        raise UnknownBackend(backend, list_backends())
    try:
        loaded = point.load()
    except Exception as fault:
        origin = "an unknown distribution" if point.dist is None else str(point.dist.name)
        raise BackendUnavailable(backend, origin, fault) from fault
    return wiring.foreign(loaded, settings, watch)
