"""The callable that stands for a compiled function: guards first, then the entry; a miss is captured.

`CompiledFunction` is the interface of the C dispatcher and its Python twin.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import weakref
from typing import TYPE_CHECKING, Any

from dynamo.capture import Entry, Request, capture
from dynamo.errors import BackendError, CaptureError, DynamoError, InternalError, SkipFrame

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from dynamo.options import DynamoOptions

__all__ = ["CompiledFunction", "forget_all"]

_log = logging.getLogger("dynamo")
_lock = threading.RLock()
_live: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()


def forget_all() -> None:
    """Drop the entries of every compiled function; their next calls are captured anew."""
    with _lock:
        for compiled in list(_live):
            compiled.entries = []
            compiled.skip = None


class CompiledFunction:
    """A function with its compiled entries, most recently used first."""

    def __init__(
        self,
        function: types.FunctionType,
        backend: Callable[..., Any],
        options: DynamoOptions,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        observer: Callable[[str, str], None] | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.backend = backend
        self.options = options
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.observer = observer
        self.entries: list[Entry] = []
        self.skip: str | None = None
        code = function.__code__
        self._count = code.co_argcount + code.co_kwonlyargcount
        self._simple = not code.co_flags & 12 and not code.co_kwonlyargcount
        self._signature: inspect.Signature | None = None
        _live.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the entry whose guards hold; capture if there is none."""
        if self.skip is not None:
            return self.function(*args, **kwargs)
        arguments = (
            args
            if self._simple and not kwargs and len(args) == self._count
            else self._bind(args, kwargs)
        )
        function = self.function
        entries = self.entries
        for i, entry in enumerate(entries):
            inputs = entry.program.match(arguments, function)
            if inputs is not None:
                if i:
                    entries.insert(0, entries.pop(i))
                return entry.run(inputs)
        return self._miss(arguments, args, kwargs)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        if self._signature is None:
            self._signature = inspect.signature(self.function, follow_wrapped=False)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        code = self.function.__code__
        total = code.co_argcount + code.co_kwonlyargcount
        total += bool(code.co_flags & 4) + bool(code.co_flags & 8)
        return tuple(bound.arguments[name] for name in code.co_varnames[:total])

    def _miss(
        self, arguments: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with _lock:
            if len(self.entries) >= self.options.recompile_limit:
                failed = self.entries[0].program.explain(arguments, self.function)
                _log.warning(
                    "%s has %d compiled versions; this call runs eagerly (%s)",
                    self.function.__qualname__,
                    len(self.entries),
                    failed,
                )
                return self.function(*args, **kwargs)
            entry = self._capture(arguments)
            if entry is None:
                return self.function(*args, **kwargs)
            inputs = entry.program.match(arguments, self.function)
            if inputs is None:
                failed = entry.program.explain(arguments, self.function)
                fault = InternalError(
                    f"the guards of {self.function.__qualname__} don't hold for the call that "
                    f"made them: {failed}"
                )
                if self.options.strict:
                    raise fault
                _log.warning("%s", fault)
                self.skip = str(fault)
                return self.function(*args, **kwargs)
            self.entries.insert(0, entry)
        return entry.run(inputs)

    def _capture(self, arguments: tuple[Any, ...]) -> Entry | None:
        request = Request(
            self.function,
            arguments,
            self.backend,
            self.options,
            self.fullgraph,
            self.dynamic,
            self.observer,
        )
        try:
            return capture(request)
        except SkipFrame as skip:
            self.skip = skip.why
            if self.observer is not None:
                self.observer("break", skip.why)
            _log.info("%s runs eagerly: %s", self.function.__qualname__, skip.why)
            return None
        except (CaptureError, BackendError):
            raise
        except DynamoError:
            raise
