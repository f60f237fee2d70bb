"""What dynamo asks for entries of former processes, for one call of `compile`.

Comes in: the backend, the settings and the watch of the call. Goes out: `dynamo.shelved.Shelf`. Invariant: when
somebody wants to see the stages of a compilation, nothing is taken from the shelf, for then there would be none.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from compile_api.artifacts.identity import key_of, process_identity
from compile_api.artifacts.store import open_store
from compile_api.options import cache_directory
from primtorch.serial import Foreign, NotStorable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from compile_api.options import Settings
    from compile_api.watch import Watch

__all__ = ["ArtifactShelf"]


class ArtifactShelf:
    """The artifacts of one call of `compile`; `more` is what of its arguments changes the result."""

    def __init__(self, backend: Any, settings: Settings, watch: Watch, *more: object) -> None:
        self._backend = backend
        self._settings = settings
        self._watch = watch
        self._more = more

    def key(self, code: str) -> str:
        """Under what artifacts of a code object are kept that are made in the state of now."""
        store = open_store(cache_directory())
        return key_of(code, process_identity(store.directory), self._settings, *self._more)

    def find(self, key: str) -> Iterator[tuple[str, memoryview]]:
        """The artifacts under a key."""
        if not self._watch.wants_stages:
            yield from open_store(cache_directory()).find(key)

    def keep(self, key: str, name: str | None, content: bytes) -> str:
        """Write an artifact; its name is a digest of what it was first."""
        name = name or hashlib.sha256(content).hexdigest()[:24]
        open_store(cache_directory()).keep(key, name, content)
        return name

    def used(self, key: str, name: str) -> None:
        """Note that an artifact serves."""
        open_store(cache_directory()).used(key, name)

    def store_graph(self, compiled: Callable[..., Any]) -> bytes:
        """The bytes of a compiled graph."""
        stored = getattr(compiled, "store", None)
        if stored is None:
            raise NotStorable("the compiled graph has no stored form")
        content: bytes = stored()
        return content

    def restore_graph(self, content: memoryview) -> Callable[..., Any]:
        """The compiled graph of bytes."""
        restore = getattr(self._backend, "restore", None)
        if restore is None:
            raise Foreign("the backend restores nothing")
        restored: Callable[..., Any] = restore(content)
        return restored

    def tell(self, function: str, outcome: str, why: str) -> None:
        """Log what became of an artifact, and tell the watch."""
        text = f"{function}: {outcome} ({why})"
        self._watch.saw_cache(text)
