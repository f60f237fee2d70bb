"""Entries that outlive the process: asked for before a capture, put away after one.

A `Shelf` is where the caller of `optimize` keeps bytes; this package says what they hold. An entry is found by the
digest of the code that is called, made again for the call, and used if its guards hold. Invariant: what is on the
shelf never changes what a program computes; whatever cannot be used or written is passed over, with the reason.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from dynamo.stored import read_entry, write_entry
from primtorch.serial import Foreign, NotStorable, root_digest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FunctionType

    from dynamo._native import CodeCache, Entry
    from dynamo.stored.entry import Material

__all__ = ["Shelf", "Span", "put", "take"]

Span = Callable[[str, str], AbstractContextManager[None]]

_log = logging.getLogger("dynamo")
_PATIENCE = 10.0  # seconds


class Shelf(Protocol):
    """Where entries are kept; all methods may be called from several threads."""

    def key(self, code: str) -> str:
        """Under what entries are kept that are made now of the code object with a digest."""

    def find(self, key: str) -> Iterator[tuple[str, memoryview]]:
        """The names and bytes kept under a key, the likeliest first."""

    def keep(self, key: str, name: str | None, content: bytes) -> str:
        """Keep bytes, in the place of those with this name if one is given; gives the name."""

    def used(self, key: str, name: str) -> None:
        """Note that the bytes with this name serve this process."""

    def store_graph(self, compiled: Callable[..., Any]) -> bytes:
        """The bytes of a compiled graph; raises NotStorable."""

    def restore_graph(self, content: memoryview) -> Callable[..., Any]:
        """The compiled graph of bytes; raises Foreign."""

    def tell(self, function: str, outcome: str, why: str) -> None:
        """What became of an entry: "restored", "passed over", "kept" or "not kept"."""


def take(
    shelf: Shelf,
    cache: CodeCache,
    function: FunctionType,
    slots: tuple[Any, ...],
    resume: Callable[..., Any],
    hook: Any,
) -> tuple[Entry, list[Any]] | None:
    """An entry from the shelf that serves the call, added to the cache; None if there is none."""
    try:
        key = shelf.key(root_digest(function))
    except LookupError:
        return None
    for name, content in shelf.find(key):
        try:
            restored = read_entry(content, function, slots, shelf.restore_graph, resume, hook)
        except Foreign as error:
            shelf.tell(function.__qualname__, "passed over", f"{name}: {error}")
            continue
        cache.add(restored.entry)
        shelf.used(key, name)
        shelf.tell(function.__qualname__, "restored", name)
        return restored.entry, restored.inputs
    return None


def put(shelf: Shelf, function: FunctionType, material: Material, hook: Any) -> None:
    """Put an entry on the shelf, with its backward as soon as that is compiled."""
    try:
        # Of now: until the backward is compiled, in another thread, torch's state may be another.
        key = shelf.key(root_digest(function))
    except LookupError as error:
        shelf.tell(function.__qualname__, "not kept", f"its code holds a {error.args[0]}")
        return
    when_complete = getattr(material.graph, "when_complete", None)
    if when_complete is None:
        _put(shelf, key, None, material, hook)
    else:
        waiting = _Waiting(lambda name: _put(shelf, key, name, material, hook))
        when_complete(waiting.complete)


class _Waiting:
    """An entry whose backward is not compiled yet: mostly it will be at once, and is then written once.

    If it isn't within some seconds, or when the process ends, the entry is written without it.
    """

    __slots__ = ("_lock", "_name", "_timer", "_write")

    def __init__(self, write: Callable[[str | None], str | None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._name: str | None = None
        self._timer: threading.Timer | None = threading.Timer(_PATIENCE, self.incomplete)
        self._timer.daemon = True
        self._timer.start()
        atexit.register(self.incomplete)

    def complete(self) -> None:
        """The backward is there."""
        with self._lock:
            self._stop()
            self._keep()

    def incomplete(self) -> None:
        """Nobody asked for the backward so far."""
        with self._lock:
            if self._timer is not None:
                self._stop()
                self._keep()

    def _keep(self) -> None:
        try:
            self._name = self._write(self._name)
        except Exception as error:  # noqa: BLE001 - whoever asked for a backward gets it all the same
            _log.warning("an entry is not kept on disk: %r", error)
        # Not before: a process that ends waits for the writing.
        atexit.unregister(self.incomplete)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _put(shelf: Shelf, key: str, name: str | None, material: Material, hook: Any) -> str | None:
    try:
        graph = None if material.graph is None else shelf.store_graph(material.graph)
        content = write_entry(material, graph, hook)
    except NotStorable as error:
        shelf.tell(material.name, "not kept", str(error))
        return name
    kept = shelf.keep(key, name, content)
    shelf.tell(material.name, "kept", kept)
    return kept
