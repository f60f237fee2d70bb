"""Who looks on while something is compiled: the logs, an `explain`, and the count of graphs.

In: the stage texts that every package hands to its observer (docs/interfaces.md). Out: log records
under the topics of COMPILE_API_LOGS, and `GraphRecord`s for `explain`. Invariant: when nobody looks,
`observer()` is None, and no package spends time on a text.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compile_api import logs
from compile_api.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx import GraphModule

    Observer = Callable[[str, str], None]

__all__ = ["GraphRecord", "Ledger", "Watch", "ledger"]


class Ledger:
    """Counts the graphs compiled by this process since the last reset; safe from many threads."""

    __slots__ = ("_count", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0

    def add(self) -> int:
        """Counts one more graph; returns its number, from 0."""
        with self._lock:
            self._count += 1
            return self._count - 1

    def clear(self) -> None:
        """Starts again at 0."""
        with self._lock:
            self._count = 0

    @property
    def count(self) -> int:
        """How many graphs were compiled."""
        return self._count


ledger = Ledger()


@dataclass(slots=True)
class GraphRecord:
    """What is known of one graph of a call: its stages by file name, and how long each was waited for."""

    index: int
    graph: GraphModule | None = None
    stages: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Watch:
    """What one call of `compile` shows to the logs and, with `record=True`, keeps for `explain`."""

    def __init__(self, *, record: bool = False) -> None:
        self.records: list[GraphRecord] = []
        self.breaks: list[str] = []
        self.recompiles: list[str] = []
        self.cache: list[str] = []
        self.timeline = Timeline()
        self._record = record
        self._numbers = itertools.count()
        self._current: GraphRecord | None = None  # the frame that dynamo captures now
        self._clock = time.perf_counter()

    @property
    def active(self) -> bool:
        """Tells whether anybody looks."""
        return self._record or logs.enabled()

    @property
    def wants_stages(self) -> bool:
        """Tells whether somebody looks for what only a compilation shows, and a restored program lacks."""
        return self._record or logs.stages_enabled()

    def saw_cache(self, text: str) -> None:
        """Logs what became of an artifact."""
        if self._record:
            self.cache.append(text)
        logs.emit("cache", text)

    def for_capture(self) -> Observer | None:
        """Gives dynamo's observer; a frame's first stage opens a new record."""
        return self._see_capture if self.active else None

    def for_graph(self, graph: GraphModule) -> Callable[[str], Observer | None]:
        """Gives the observers of one graph's later stages, by role ("forward", "backward")."""
        ledger.add()
        if not self.active:
            return lambda _role: None
        record = self._open() if self._current is None else self._current
        record.graph = graph
        self._clock = time.perf_counter()

        def observer_of(role: str) -> Observer:
            return lambda stage, text: self._see(record, stage, text, role)

        return observer_of

    def _open(self) -> GraphRecord:
        record = GraphRecord(next(self._numbers))
        self.records.append(record)
        return record

    def _see_capture(self, stage: str, text: str) -> None:
        match stage:
            case "break":
                self.breaks.append(text)
                logs.emit("graph_breaks", text)
            case "recompile":
                self.recompiles.append(text)
                logs.emit("recompiles", text)
            case _:
                if self._current is None or stage in self._current.stages:
                    self._current = self._open()
                self._see(self._current, stage, text, "")

    def _see(self, record: GraphRecord, stage: str, text: str, role: str) -> None:
        now = time.perf_counter()
        stem, _, suffix = stage.rpartition(".")
        name = f"{stem}.backward.{suffix}" if role == "backward" else stage
        record.stages[name] = f"{record.stages[name]}\n{text}" if name in record.stages else text
        record.seconds[name] = record.seconds.get(name, 0.0) + now - self._clock
        self._clock = now
        logs.emit_stage(record.index, name, text)
