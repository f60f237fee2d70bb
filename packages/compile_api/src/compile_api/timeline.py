"""What a compilation spends its time on: spans for the trace, the report, the log and the progress line.

In: `span(name, detail)` around each step, from any thread. Out: spans with start, length, thread and depth; a Chrome
trace (open it in chrome://tracing or ui.perfetto.dev); one line on the terminal while a compilation takes long.
Invariant: spans exist while something is compiled only; a call of what is compiled has none.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compile_api import logs
from compile_api.options import progress_by_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Span", "Timeline", "trace_file"]

_PATIENCE = 2.0  # seconds of a compilation after which a terminal shows what it is at


@dataclass(frozen=True, slots=True)
class Span:
    """One step: what, about what, when it began and how long it took in microseconds, where it stands."""

    name: str
    detail: str
    start: float
    length: float
    thread: int
    depth: int


class Timeline:
    """Spans of one call of `compile`, or of all that write to one file; safe from many threads."""

    def __init__(self, path: Path | None = None) -> None:
        self.spans: list[Span] = []
        self.path = path
        self._lock = threading.Lock()
        self._depth = threading.local()

    @contextlib.contextmanager
    def span(self, name: str, detail: str = "") -> Iterator[None]:
        """The step that runs inside."""
        depth = getattr(self._depth, "value", 0)
        self._depth.value = depth + 1
        start = time.perf_counter()
        _line.enter(name, detail)
        try:
            yield
        finally:
            _line.leave()
            self._depth.value = depth
            length = time.perf_counter() - start
            found = Span(name, detail, 1e6 * start, 1e6 * length, threading.get_native_id(), depth)
            with self._lock:
                self.spans.append(found)
            logs.emit("times", f"{'  ' * depth}{name} {detail}: {1e3 * length:.1f} ms")
            if depth == 0 and self.path is not None:
                self.write(self.path)

    def events(self) -> list[dict[str, Any]]:
        """The spans in Chrome's trace format."""
        with self._lock:
            spans = sorted(self.spans, key=lambda span: span.start)
        return [
            {
                "name": span.name,
                "cat": "compile",
                "ph": "X",
                "ts": span.start,
                "dur": span.length,
                "pid": os.getpid(),
                "tid": span.thread,
                "args": {"about": span.detail},
            }
            for span in spans
        ]

    def write(self, path: Path) -> Path:
        """Writes the trace, whole or not at all."""
        text = json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"})
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(text)
        temporary.replace(path)
        return path


_files: dict[Path, Timeline] = {}
_files_lock = threading.Lock()


def trace_file(path: str) -> Timeline:
    """The timeline that writes to a file, one for all calls of `compile` that name it."""
    target = Path(path).absolute()
    with _files_lock:
        found = _files.get(target)
        if found is None:
            found = _files[target] = Timeline(target)
        return found


class _ProgressLine:
    """The line on a terminal that says what a long compilation is at, and since when."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: list[str] = []
        self._timer: threading.Timer | None = None
        self._shown: Any = None
        self._task: Any = None

    def enter(self, name: str, detail: str) -> None:
        """A step begins."""
        with self._lock:
            self._steps.append(f"{name} {detail}".strip())
            if len(self._steps) == 1 and _wanted():
                self._timer = threading.Timer(_PATIENCE, self._show)
                self._timer.daemon = True
                self._timer.start()
            self._update()

    def leave(self) -> None:
        """The step that began last ends."""
        with self._lock:
            self._steps.pop()
            if self._steps:
                self._update()
                return
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            shown, self._shown = self._shown, None
        if shown is not None:
            shown.stop()

    def _update(self) -> None:
        if self._shown is not None:
            self._shown.update(self._task, description=self._steps[-1])

    def _show(self) -> None:
        from rich.console import Console  # a compilation that is over before needs none of it
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("compiling: {task.description}"),
            TimeElapsedColumn(),
        )
        made = Progress(*columns, console=Console(stderr=True), transient=True)
        with self._lock:
            if not self._steps:
                return
            self._shown, self._task = made, made.add_task(self._steps[-1], total=None)
            made.start()


def _wanted() -> bool:
    """Whether somebody sees a progress line: stderr is a terminal, and nobody switched it off."""
    try:
        return progress_by_environment() and sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False


_line = _ProgressLine()
atexit.register(lambda: [timeline.write(path) for path, timeline in _files.items()])
