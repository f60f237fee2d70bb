"""From a miss to an entry: which calls are captured, when to stop, and the fall-back to eager.

A `Compiler` holds what `optimize` was told. Each code object, the user's and those of resume functions, has one
cache of entries; a call that no entry serves comes to `miss`. Invariant: a fault of the compiler never changes
what the program computes; outside strict mode it runs eagerly with one warning.
"""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from dynamo._native import CodeCache, CompiledFunction, run_original
from dynamo.capture import Captured, Request, UserError, capture
from dynamo.emit.resume import Resume
from dynamo.errors import DynamoError, InternalError, RecompileRefused, SkipFrame
from dynamo.graph.sizes import History

if TYPE_CHECKING:
    import types
    from collections.abc import Callable
    from types import CodeType

    from dynamo._native import Entry
    from dynamo.options import DynamoOptions

__all__ = ["Compiler", "forget_all", "take_stance"]

_log = logging.getLogger("dynamo")
_lock = threading.RLock()
_live: weakref.WeakSet[Compiler] = weakref.WeakSet()
_GENERATOR_LIKE = 0x20 | 0x80 | 0x200


def forget_all() -> None:
    """Drop the entries of every compiled function; their next calls are captured anew."""
    with _lock:
        for compiler in list(_live):
            compiler.forget()


class _Stance:
    """The stance of the process: read on each miss, changed by `take_stance` only."""

    __slots__ = ("name",)

    def __init__(self) -> None:
        self.name = "default"


_stance = _Stance()


def take_stance(name: str) -> str:
    """Change the stance of the process; returns the former one. See `dynamo.stance`."""
    with _lock:
        former, _stance.name = _stance.name, name
        for compiler in list(_live):
            if name == "force_eager":
                compiler.suspend()
            elif former == "force_eager":
                compiler.restore()
        return former


class Compiler:
    """What `optimize` was told, and the entries made so far."""

    def __init__(
        self,
        backend: Callable[..., Any],
        options: DynamoOptions,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        observer: Callable[[str, str], None] | None = None,
    ) -> None:
        self.backend = backend
        self.options = options
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.observer = observer
        self.captured: list[Captured] = []
        self.skipped: dict[CodeType, str] = {}
        self.history: dict[CodeType, History] = {}
        self._resumes: dict[Any, Resume] = {}
        self._warned: set[CodeType] = set()
        self._caches: list[CodeCache] = []
        self._suspended: list[tuple[CodeCache, tuple[Entry, ...]]] = []
        _live.add(self)

    def compile(self, function: types.FunctionType) -> CompiledFunction:
        """What the user calls in place of `function`."""
        return CompiledFunction(function, self.cache(function.__code__))

    def cache(self, code: CodeType) -> CodeCache:
        """An empty cache; generators and coroutines are never captured."""
        cache = CodeCache(code, None if code.co_flags & _GENERATOR_LIKE else self.miss)
        self._caches.append(cache)
        return cache

    def suspend(self) -> None:
        """Take the entries out of the caches until `restore`."""
        for cache in self._caches:
            if cache.entries:
                self._suspended.append((cache, cache.entries))
                cache.clear()

    def restore(self) -> None:
        """Put back what `suspend` took out."""
        for cache, entries in self._suspended:
            for entry in reversed(entries):
                cache.add(entry)
        self._suspended.clear()

    def forget(self) -> None:
        """Drop all entries, and what was learnt about sizes."""
        for cache in self._caches:
            cache.clear()
            if not cache.code.co_flags & _GENERATOR_LIKE:
                cache.miss = self.miss
        self._suspended.clear()
        self.captured.clear()
        self.skipped.clear()
        self.history.clear()
        self._warned.clear()

    def resume(self, key: Any, code: CodeType, names: dict[str, Any]) -> Resume:
        """The resume function of a place in a code object, the same each time."""
        found = self._resumes.get((key, id(names)))
        if found is None:
            found = self._resumes[(key, id(names))] = Resume(code, names, self.cache(code))
        return found

    def miss(self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        """Capture the call and run it; eagerly where that is not possible."""
        with _lock:
            found = cache.lookup(function, slots)  # another thread may have made it meanwhile
            if found is None:
                if self._stays_eager(cache, function, slots):
                    return run_original(function, slots)
                if len(cache.entries) >= self.options.recompile_limit:
                    self._limit(cache, function, slots)
                    return run_original(function, slots)
                raised = captured = None
                try:
                    captured = self._capture(cache, function, slots)
                except UserError as error:
                    raised = error
                if raised is not None:  # outside of the handler: eager's exception has no context
                    return self._run_raising(function, slots, raised)
                if captured is None:
                    return run_original(function, slots)
                cache.add(captured.entry)
                inputs = captured.entry.program.match(slots, function)
                if inputs is None:
                    failed = captured.entry.program.explain(slots, function)
                    cache.remove(captured.entry)
                    self._fault(
                        cache,
                        InternalError(
                            f"the guards of {function.__qualname__} don't hold for the call that "
                            f"made them: {failed}"
                        ),
                    )
                    return run_original(function, slots)
                found = captured.entry, inputs
        entry, inputs = found
        return entry.run(function, slots, inputs)

    def _stays_eager(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> bool:
        """Whether the stance keeps this call from being captured; raises if it forbids the call."""
        if _stance.name == "default":
            return False
        if _stance.name == "force_eager":
            return True
        if not cache.entries:
            return False
        if _stance.name == "fail_on_recompile":
            failed = cache.entries[0].program.explain(slots, function)
            raise RecompileRefused(
                f"{function.__qualname__} would be compiled again, and the stance is "
                f"'fail_on_recompile'\n  why: {failed}\n"
                "  try: warm it up on these inputs first, or set another stance"
            )
        return True

    def _run_raising(
        self, function: types.FunctionType, slots: tuple[Any, ...], error: UserError
    ) -> Any:
        """Run a call eagerly that raised while it was captured; it is expected to raise again."""
        result = run_original(function, slots)
        if self.options.strict:
            raise InternalError(
                f"capture of {function.__qualname__} raised {error.__cause__!r}, which running it "
                "does not"
            ) from error.__cause__
        return result

    def _limit(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> None:
        if function.__code__ in self._warned:
            return
        self._warned.add(function.__code__)
        failed = cache.entries[0].program.explain(slots, function)
        _log.warning(
            "%s has %d compiled versions, more are not made; calls that fit none run eagerly (%s)",
            function.__qualname__,
            len(cache.entries),
            failed,
        )

    def _fault(self, cache: CodeCache, fault: Exception) -> None:
        if self.options.strict:
            raise fault
        _log.warning("a fault of the compiler; the function runs eagerly: %s", fault)
        cache.miss = None

    def _capture(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> Captured | None:
        if self.observer is not None and cache.entries:
            failed = cache.entries[0].program.explain(slots, function)
            self.observer("recompile", f"{function.__qualname__}: {failed}")
        request = Request(
            function,
            slots,
            self.backend,
            self.options,
            self.resume,
            self.history.setdefault(function.__code__, History()),
            self.fullgraph,
            self.dynamic,
            self.observer,
        )
        try:
            captured = capture(request)
        except SkipFrame as skip:
            self.skipped[function.__code__] = skip.why
            if not cache.entries:
                cache.miss = None
            if self.observer is not None:
                self.observer("break", skip.why)
            _log.info("%s runs eagerly: %s", function.__qualname__, skip.why)
            return None
        except (DynamoError, UserError):
            raise
        except Exception as error:
            fault = InternalError(f"capture of {function.__qualname__} failed: {error!r}")
            if self.options.strict:
                raise fault from error
            self._fault(cache, fault)
            return None
        self.captured.append(captured)
        if captured.message:
            _log.info("%s", captured.message)
            if self.observer is not None:
                self.observer("break", captured.message)
        return captured
