"""Generators, interpreted lazily: each `next` runs the generator's frame up to its next `yield`.

A `TracedGenerator` is a Python iterator, so builtins written in C (`list`, `zip`, `sum`) drive the interpreter
through it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from dynamo.errors import GraphBreak
from dynamo.faults import require_programs
from dynamo.versions import PY312

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine

__all__ = ["TracedCallable", "TracedGenerator"]


class TracedGenerator:
    """A suspended frame with the protocol of a generator."""

    __slots__ = ("__weakref__", "finished", "frame", "machine", "running", "started", "suspended")

    def __init__(self, machine: Machine, frame: Frame) -> None:
        self.machine = machine
        self.frame = frame
        frame.generator = weakref.ref(self)  # no cycle: it ends when the program drops it
        self.started = False
        self.finished = False
        self.suspended = False
        self.running = False

    def __iter__(self) -> TracedGenerator:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume with `value` as the result of the `yield`."""
        if self.finished:
            raise StopIteration
        if self.running:
            raise ValueError("generator already executing")
        if not self.started:
            if value is not None:
                raise TypeError("can't send non-None value to a just-started generator")
            self.started = True
        else:
            self.frame.stack.append(value)
        return self._resume(None)

    def throw(self, error: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise inside the generator, where it is suspended."""
        del traceback
        if isinstance(error, type):
            if not isinstance(value, error):
                value = error() if value is None else error(value)
            error = value
        if self.finished or not self.started:
            self.finished = True
            raise error
        return self._resume(error)

    def close(self) -> None:
        """Raise GeneratorExit inside the generator."""
        if self.finished:
            return
        if not self.started:
            self.finished = True
            return
        try:
            self._resume(GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def __del__(self) -> None:
        """As CPython: a suspended generator that nobody can reach any more is closed."""
        if self.started and not self.finished and not self.running and self.machine.interpreting:
            try:
                self.close()
            except GraphBreak as stop:
                self.machine.failed_finally = stop
            except Exception:  # noqa: BLE001 - CPython only tells of it
                return

    def _resume(self, error: BaseException | None) -> Any:
        machine, frame = self.machine, self.frame
        self.suspended = False
        self.running = True
        frame.module_path = machine.frames[-1].module_path if machine.frames else None
        try:
            if error is not None:
                inner = self._delegate()
                if inner is not None:
                    found, error = self._thrown_on(inner, error)
                    if error is None and self.suspended:
                        return found
            if error is not None and not machine._handle(frame, error):
                self.finished = True
                raise error  # noqa: TRY301 - into the consumer
            value = machine.run(frame)
        except StopIteration as stop:
            self.finished = True
            raise RuntimeError("generator raised StopIteration") from stop
        except BaseException:
            self.finished = True
            raise
        finally:
            self.running = False
        if self.suspended:
            return value
        self.finished = True
        raise StopIteration(value)

    def _delegate(self) -> Any:
        """What a `yield from` at which the frame waits delegates to; else None."""
        op = self.frame.ops[self.frame.pc]
        waits = op.name == "RESUME" and op.arg & 3 == _AFTER_YIELD_FROM
        return self.frame.stack[-1] if waits else None

    def _thrown_on(self, inner: Any, error: BaseException) -> tuple[Any, BaseException | None]:
        """Raise in what is delegated to first: what it yields (then `suspended`), or an error for the frame."""
        from dynamo.values import attributes, calls

        machine, frame = self.machine, self.frame
        name = "close" if isinstance(error, GeneratorExit) else "throw"
        try:
            method = (
                getattr(inner, name)
                if type(inner) is TracedGenerator
                else attributes.load(machine, inner, name)
            )
        except AttributeError as absent:
            require_programs(absent)
            return None, error
        try:
            value = calls.call(machine, method, () if name == "close" else (error,), {})
        except StopIteration as stop:
            if name == "close":
                raise
            frame.pc = frame.ops[frame.pc + 1].target  # back to SEND, whose end is where it goes on
            if PY312:
                frame.stack.append(stop.value)
            else:
                frame.stack[-1] = stop.value
            frame.pc = frame.ops[frame.pc].target
            return None, None
        except Exception as raised:  # noqa: BLE001 - the program's own, to be handled in the frame
            return None, raised
        if name == "close":
            return None, error
        self.suspended = True
        return value, None


_AFTER_YIELD_FROM = 2


class TracedCallable:
    """A Python function that C code may call: the call is interpreted."""

    __slots__ = ("function", "machine")

    def __init__(self, machine: Machine, function: Any) -> None:
        self.machine = machine
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Interpret the call."""
        from dynamo.values import calls

        return calls.call(self.machine, self.function, args, kwargs)
