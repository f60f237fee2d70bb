"""From a miss to an entry: which calls are captured, when to stop, and the fall-back to eager.

A `Compiler` holds what `optimize` was told. Each code object, the user's and those of resume functions, has one
cache of entries; a call that no entry serves comes to `miss`. Invariant: a fault of the compiler never changes
what the program computes; outside strict mode it runs eagerly with one warning.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dynamo import shelved
from dynamo._native import CodeCache, CompiledFunction, forget_codes, run_original
from dynamo._torch import (
    forward_level,
    functorch_depth,
    python_dispatch_enabled,
    watched_by_dispatch_modes,
)
from dynamo.capture import RECURSION, Captured, Request, UserError, capture
from dynamo.emit.drawn import Drawing
from dynamo.emit.resume import Resume
from dynamo.errors import (
    DynamoError,
    InternalError,
    OwnFault,
    RecompileRefused,
    RunsAsItIs,
    SkipFrame,
)
from dynamo.frames import NestedFrames
from dynamo.graph.sizes import History
from dynamo.stored.codes import in_one_form

if TYPE_CHECKING:
    import types
    from collections.abc import Callable, Iterator
    from types import CodeType

    from dynamo._native import Entry
    from dynamo.options import DynamoOptions
    from dynamo.shelved import Shelf, Span

__all__ = ["Compiler", "forget_all", "take_stance"]

_log = logging.getLogger("dynamo")
_lock = threading.RLock()
_live: weakref.WeakSet[Compiler] = weakref.WeakSet()
_MOST = 8  # times the recompile limit: so many entries a code object has at most
_GENERATOR_LIKE = 0x20 | 0x80 | 0x200
_LONGEST_WAIT = 60.0  # seconds that a fork waits for a capture


class _Forks:
    """A process forks only while no other thread captures: what that had locked would stay so in the child."""

    __slots__ = ("held", "waits")

    def __init__(self) -> None:
        self.held = self.waits = False

    def captured(self) -> None:
        """From now on forks wait.

        Python asks in reverse order: what a capture uses, and the backend's modules, must be there, so that their own
        hooks come after ours. A lock on files, for one, is given to nobody once its hook has run.
        """
        if not self.waits:
            self.waits = True
            os.register_at_fork(before=self.before, after_in_parent=self.in_parent)

    def before(self) -> None:
        """Let a running capture end, and no other begin."""
        self.held = _lock.acquire(timeout=_LONGEST_WAIT)

    def in_parent(self) -> None:
        """Go on."""
        if self.held:
            self.held = False
            _lock.release()

    def in_child(self) -> None:
        """Go on with a lock that nobody holds, even if the waiting was given up."""
        global _lock  # noqa: PLW0603 - whoever held the old one is not in the child
        _lock = threading.RLock()
        self.held = False


_forks = _Forks()
os.register_at_fork(after_in_child=_forks.in_child)


@contextlib.contextmanager
def _room_to_recurse() -> Iterator[None]:
    """The compiler needs the frames that it needs, however deep the program has come."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


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


def _no_span(step: str, about: str) -> contextlib.AbstractContextManager[None]:
    """Nobody measures."""
    del step, about
    return contextlib.nullcontext()


@dataclass(slots=True)
class Worth:
    """What compiling one code object took, and what it saves, in seconds."""

    compiling: float = 0.0
    eager: float | None = None  # the shortest run of each kind so far
    compiled: float | None = None
    warned: bool = False

    def ran(self, seconds: float) -> None:
        """A new entry ran once."""
        self.compiled = seconds if self.compiled is None else min(self.compiled, seconds)

    def ran_eagerly(self, seconds: float) -> None:
        """A call ran eagerly."""
        self.eager = seconds if self.eager is None else min(self.eager, seconds)

    def pays(self, hits: int) -> bool:
        """Whether compiling took less than ten times what `hits` calls of its entries saved."""
        if self.eager is None or self.compiled is None:
            return False
        return self.compiling < 10 * hits * max(0.0, self.eager - self.compiled)


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
        shelf: Shelf | None = None,
        span: Span | None = None,
    ) -> None:
        self.backend = backend
        self.shelf = shelf
        self.span = span if span is not None else _no_span
        self.options = options
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.observer = observer
        self.captured: list[Captured] = []
        self.skipped: dict[CodeType, str] = {}
        self.history: dict[CodeType, History] = {}
        self._resumes: dict[Any, Resume] = {}
        self._resumes_by_code: dict[tuple[CodeType, int], Resume] = {}
        self._regions: dict[CodeType, bool | None] = {}  # what `error_on_graph_break` says there
        self._worth: dict[CodeType, Worth] = {}
        self._mistaken: set[CodeType] = set()
        self._caches: list[CodeCache] = []
        self._suspended: list[tuple[CodeCache, tuple[Entry, ...]]] = []
        self.nested = NestedFrames(self.cache, self._find_for_frame)
        self.drawing = Drawing(self.cache, fullgraph=fullgraph)
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
        self.nested.forget()
        self.drawing.forget()
        forget_codes()
        self.captured.clear()
        self.skipped.clear()
        self.history.clear()
        self._worth.clear()

    def resume(self, key: Any, code: CodeType, names: dict[str, Any]) -> Resume:
        """The resume function of a place in a code object, the same each time."""
        found = self._resumes.get((key, id(names)))
        if found is None:
            found = self._equal_resume(code, names)
            self._resumes[(key, id(names))] = found
        return found

    def _equal_resume(self, code: CodeType, names: dict[str, Any]) -> Resume:
        """The turns of a loop, and a restored entry and a capture, go on through one function with one history."""
        key = in_one_form(code), id(names)
        try:
            same = self._resumes_by_code.get(key)
        except TypeError:  # a constant of it has no hash
            return Resume(code, names, self.cache(code))
        if same is None:
            same = self._resumes_by_code[key] = Resume(code, names, self.cache(code))
        return same

    def miss(self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]) -> Any:
        """Capture the call and run it; eagerly where that is not possible."""
        raised = found = None
        try:
            found = self._find(cache, function, slots)
        except UserError as error:
            raised = error
        if raised is not None:  # outside of the handler: eager's exception has no context
            return self._run_raising(function, slots, raised)
        if found is None:
            return self._run_eagerly(cache, function, slots)
        entry, inputs = found
        if entry.hits:
            return entry.run(function, slots, inputs)
        start = time.perf_counter()
        result = entry.run(function, slots, inputs)
        worth = self._worth.get(function.__code__)
        if (
            worth is not None
        ):  # nobody forgot all meanwhile, in the call itself or in another thread
            worth.ran(time.perf_counter() - start)
        return result

    def _find(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> tuple[Entry, list[Any]] | None:
        """An entry for the call, made now if there is none; None if the call runs eagerly.

        Raises:
            UserError: the program raised while it was captured.
        """
        with _lock, _room_to_recurse():
            found = cache.lookup(function, slots)  # another thread may have made it meanwhile
            if found is not None:
                return found
            if self._stays_eager(cache, function, slots):
                return None
            worth = self._worth.setdefault(function.__code__, Worth())
            limit = self.options.recompile_limit
            if len(cache.entries) >= limit:
                if not worth.pays(sum(entry.hits for entry in cache.entries)):
                    self._limit(cache, function, slots)
                    return None
                if len(cache.entries) >= _MOST * limit:
                    cache.remove(cache.entries[-1])
            start = time.perf_counter()
            if self.shelf is not None:
                taken = self._take(cache, function, slots)
                if taken is not None:
                    worth.compiling += time.perf_counter() - start
                    history = self.history.setdefault(function.__code__, History())
                    history.learn(taken[0].program.guards)
                    return taken
            made = self._made(cache, function, slots)
            worth.compiling += time.perf_counter() - start
            return made

    def _made(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> tuple[Entry, list[Any]] | None:
        """A new entry and what it takes of this call.

        Compiling may import what changes a list that capture has read (`torch.distributed.tensor` adds to the types
        that have foreach operators): then the call is captured once more.
        """
        failed: Any = None
        for _ in range(2):
            captured = self._capture(cache, function, slots)
            if captured is None:
                return None
            cache.add(captured.entry)
            inputs = captured.entry.program.match(slots, function)
            if inputs is not None:
                return captured.entry, inputs
            failed = captured.entry.program.explain(slots, function)
            cache.remove(captured.entry)
        self._fault(
            cache,
            InternalError(
                f"the guards of {function.__qualname__} don't hold for the call that made them: {failed}"
            ),
        )
        return None

    def _take(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> tuple[Entry, list[Any]] | None:
        """An entry of a former process; a fault in making it again is no reason not to capture."""
        assert self.shelf is not None, "asked only where there is one"
        try:
            with self.span("look for an artifact", function.__qualname__):
                return shelved.take(
                    self.shelf, cache, function, slots, self.resume, self.nested.hook
                )
        except Exception as error:
            if self.options.strict:
                raise
            _log.warning(
                "%s is captured, for its artifact failed: %r", function.__qualname__, error
            )
            return None

    def _put(self, function: types.FunctionType, captured: Captured) -> None:
        """Keep an entry for processes to come."""
        if self.shelf is None or captured.material is None:
            return
        try:
            with self.span("keep the artifact", function.__qualname__):
                shelved.put(self.shelf, function, captured.material, self.nested.hook)
        except Exception as error:
            if self.options.strict:
                raise
            _log.warning("%s is not kept on disk: %r", function.__qualname__, error)

    def _find_for_frame(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> tuple[Entry, list[Any]] | None:
        try:
            return self._find(cache, function, slots)
        except UserError:  # the frame runs, and raises
            return None

    def _run_eagerly(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> Any:
        """A call that nothing compiled serves; how long it takes says what compiling it would save."""
        if function.__code__ in self.skipped:
            return self._run_skipped(cache, function, slots)
        start = time.perf_counter()
        result = run_original(function, slots)
        worth = self._worth.get(function.__code__)
        if worth is not None:
            worth.ran_eagerly(time.perf_counter() - start)
        return result

    def _stays_eager(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> bool:
        """Whether the stance or torch's state keeps this call from being captured; raises if it is forbidden."""
        if not python_dispatch_enabled() or functorch_depth():
            return True  # the tensors are a transform's own, as in a function that eager code maps
        if forward_level() >= 0:
            return True  # kernels would lose the derivatives that dual tensors carry
        if watched_by_dispatch_modes():
            return True  # kernels would hide from the mode what the program calls
        if sys.is_finalizing():
            return True  # nothing can be imported any more
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

    def _run_skipped(
        self, _cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> Any:
        """Run a function that can't be captured itself; the frames it calls may be."""
        if _stance.name == "force_eager":
            return run_original(function, slots)
        return self.nested.hook(run_original, function, slots)

    def _run_raising(
        self, function: types.FunctionType, slots: tuple[Any, ...], error: UserError
    ) -> Any:
        """Run a call eagerly that raised while it was captured; it is expected to raise again."""
        try:
            result = run_original(function, slots)
        except BaseException:
            # The frames of the capture must not live as long as the program's exception does.
            error.__traceback__ = None
            if error.__cause__ is not None:
                error.__cause__.__traceback__ = None
            raise
        if error.otherwise is not None:
            raise error.otherwise from error.__cause__
        fault = InternalError(
            f"capture of {function.__qualname__} raised {error.__cause__!r}, which running it does not"
        )
        if self.options.strict:
            raise fault from error.__cause__
        if function.__code__ not in self._mistaken:
            self._mistaken.add(function.__code__)
            _log.warning("a fault of the compiler; the call ran eagerly: %s", fault)
        return result

    def _limit(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> None:
        worth = self._worth[function.__code__]
        if worth.warned or worth.eager is None:  # before it is known what a call takes, nothing is
            return
        worth.warned = True
        failed = cache.entries[0].program.explain(slots, function)
        _log.warning(
            "%s has %d compiled versions, which save less time than more would take; calls that fit "
            "none run eagerly (%s)",
            function.__qualname__,
            len(cache.entries),
            failed,
        )

    def _fault(self, cache: CodeCache, fault: Exception) -> None:
        if self.options.strict:
            raise fault
        _log.warning("a fault of the compiler; the function runs eagerly: %s", fault)
        cache.miss = None

    def _report(self, cache: CodeCache, function: types.FunctionType, error: BaseException) -> None:
        """A fault of this package while it captured a function."""
        cause, where = (
            (error.error, f" ({error.place})") if isinstance(error, OwnFault) else (error, "")
        )
        line = f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"
        fault = InternalError(
            f"capture of {function.__qualname__}, {line}, failed: {cause!r}{where}"
        )
        if self.options.strict:
            raise fault from cause
        self._fault(cache, fault)
        # The frames of the capture must not live as long as the error does.
        cause.__traceback__ = None

    def _capture(
        self, cache: CodeCache, function: types.FunctionType, slots: tuple[Any, ...]
    ) -> Captured | None:
        if cache.entries and (self.observer is not None or _log.isEnabledFor(logging.INFO)):
            failed = cache.entries[0].program.explain(slots, function)
            why = f"{function.__qualname__}: {failed}"
            _log.info("compiled again: %s", why)
            if self.observer is not None:
                self.observer("recompile", why)
        request = Request(
            function,
            slots,
            self.backend,
            self.options,
            self.resume,
            self.history.setdefault(function.__code__, History()),
            self.nested.hook,
            self.fullgraph,
            self._regions.get(function.__code__),
            self._regions,
            self.dynamic,
            self.observer,
            self.drawing,
            cache,
        )
        try:
            with self.span("capture and compile", function.__qualname__):
                captured = capture(request)
        except SkipFrame as skip:
            if not skip.recursion:
                self.skipped[function.__code__] = skip.why
            if not cache.entries:
                cache.miss = None if skip.recursion else self._run_skipped
            if self.observer is not None:
                self.observer("break", skip.why)
            _log.info("%s runs eagerly: %s", function.__qualname__, skip.why)
            return None
        except RunsAsItIs as once:
            _log.info("this call of %s runs eagerly: %s", function.__qualname__, once.why)
            return None
        except (DynamoError, UserError):
            raise
        except (OwnFault, Exception) as error:  # noqa: BLE001 - reported, and raised where strict
            self._report(cache, function, error)
            return None
        _forks.captured()
        self._put(function, captured)
        self.captured.append(replace(captured, material=None))
        if captured.message:
            _log.info("%s", captured.message)
            if self.observer is not None:
                self.observer("break", captured.message)
        return captured
