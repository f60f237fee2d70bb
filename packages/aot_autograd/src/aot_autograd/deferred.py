"""The backward, compiled while the forward runs: in a worker thread, or by whoever needs it first.

Comes in: a backward graph and the function that compiles it. Goes out: the compiled backward, when asked for. The
first call of the forward starts the worker, not the end of its compilation: by then the symbolic sizes are frozen,
so that both threads only read them. An error of the compiler is kept and raised by the backward that needs the
code. Invariant: a graph is compiled once, unless that was interrupted; a process forks only while its worker rests,
so that a child finds every lock free.
"""

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from aot_autograd._torch import current_device, set_current_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import fx

    from aot_autograd.runtime import Boxed

_logger = logging.getLogger("aot_autograd")

_LONGEST_WAIT = 60.0
"""Seconds that a fork waits for the worker."""


class Worker:
    """One thread that does jobs in order and ends when there are none; safe from many threads."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._held = False
        self._registered = False

    def submit(self, job: Callable[[], None]) -> None:
        """Do `job` in the worker's thread."""
        with self._condition:
            if not self._registered:
                # Python asks in reverse order, and the compiler's modules, whose hooks must come after this one, are
                # there by now: a lock on files, for one, is given to nobody once its hook has run.
                self._registered = True
                os.register_at_fork(
                    before=self.before_fork,
                    after_in_parent=self.in_parent,
                    after_in_child=self.in_child,
                )
            self._jobs.append(job)
            self._begin()

    def _begin(self) -> None:
        """Called with the condition held: start the thread if there is work that may begin."""
        if self._jobs and self._thread is None and not self._held:
            self._thread = threading.Thread(target=self._run, name="aot_autograd backward")
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._condition:
                if self._held or not self._jobs:
                    self._thread = None
                    self._condition.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception:
                # What the compiler raises is kept; this came from somebody who was told of its end.
                _logger.exception("after compiling a backward in the background")
            del job

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing runs, before a fork with jobs left to do; whether it is so."""
        with self._condition:
            return self._condition.wait_for(lambda: self._thread is None, timeout)

    def before_fork(self) -> None:
        """Let the running job end, and no other begin; others may still be submitted."""
        with self._condition:
            if threading.current_thread() is self._thread:
                return
            self._held = True
        self.wait(_LONGEST_WAIT)

    def in_parent(self) -> None:
        """Go on."""
        with self._condition:
            self._held = False
            self._begin()

    def in_child(self) -> None:
        """Go on without the parent's jobs: who needs a backward here compiles it."""
        self._condition = threading.Condition()
        self._jobs.clear()
        self._thread = None
        self._held = False


_worker = Worker()


class Deferred:
    """A compiled backward to be; safe to start and to ask for from several threads.

    Args:
        compile_graph: Compiles; called once.
        load: Gives the graph.
        made: The compiled backward, where there is one already.
        in_worker: Whether `start` hands the work to the worker instead of doing nothing.
    """

    __slots__ = ("_compile_graph", "_complete", "_error", "_in_worker", "_load", "_lock", "made")

    def __init__(
        self,
        compile_graph: Callable[[fx.GraphModule], Boxed],
        *,
        load: Callable[[], fx.GraphModule] | None = None,
        made: Boxed | None = None,
        in_worker: bool,
    ) -> None:
        self._compile_graph = compile_graph
        self._load = load
        self._in_worker = in_worker
        self._lock = threading.Lock()
        self._complete: list[Callable[[], None]] = []
        self._error: Exception | None = None
        self.made = made

    def start(self) -> None:
        """Begin in the background, with the caller's context variables and device."""
        if not self._in_worker or self.made is not None:
            return
        context = contextvars.copy_context()
        device = current_device()

        def job() -> None:
            set_current_device(device)
            context.run(self._compile)

        _worker.submit(job)

    def __call__(self) -> Boxed:
        """The compiled backward.

        Raises:
            Exception: what the compiler raised, at each call.
        """
        compiled = self.made
        if compiled is None:
            self._compile()
            compiled = self.made
            if compiled is None:
                assert self._error is not None, "a graph that was not compiled had an error"
                raise self._error
        return compiled

    def when_made(self, then: Callable[[], None]) -> None:
        """Call `then` once the backward is compiled, at once if it is already; never if it fails."""
        with self._lock:
            if self.made is None:
                self._complete.append(then)
                return
        then()

    @contextmanager
    def settled(self) -> Iterator[fx.GraphModule | None]:
        """Inside, nobody compiles: the graph, or None where it is compiled already."""
        with self._lock:
            yield None if self.made is not None or self._load is None else self._load()

    def _compile(self) -> None:
        with self._lock:
            if self._load is None:
                return
            try:
                with torch.no_grad():
                    self.made = self._compile_graph(self._load())
            except Exception as error:  # noqa: BLE001 - raised by the backward that needs it
                self._error = error
            # What interrupts the program says nothing about the graph: whoever asks next compiles it.
            self._load = None
            told, self._complete = self._complete, []
        if self.made is not None:
            for then in told:
                then()
