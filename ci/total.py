"""A pytest plugin that tells the results of earlier pytest runs again, and their total.

In: a folder of JUnit reports, one a session. Out: each test's outcome once more, failures by name, and
pytest's own closing line over all of them, which is also kept in the file that COMPILE_API_TOTAL names.
Invariant: a test that failed, or broke in a fixture, in any session fails here.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collect_file(parent: pytest.Collector, file_path: Path) -> pytest.Collector | None:
    """Takes the reports as test files."""
    if file_path.suffix != ".xml":
        return None
    made: pytest.Collector = Report.from_parent(parent, path=file_path)
    return made


class Report(pytest.File):
    """The results of one session."""

    def collect(self) -> Iterator[pytest.Item]:
        """Gives a result for each test case."""
        for number, case in enumerate(ET.parse(self.path).getroot().iter("testcase")):
            name = f"{number}: {case.get('classname', '')}::{case.get('name', '')}"
            yield Result.from_parent(self, name=name, case=case)


class Result(pytest.Item):
    """What became of one test."""

    def __init__(self, *, case: ET.Element, **others: Any) -> None:
        super().__init__(**others)
        self.case = case
        self.seconds = float(case.get("time", 0.0))

    def runtest(self) -> None:
        """Fails, skips or passes as the test did."""
        for outcome in self.case:
            match outcome.tag:
                case "failure" | "error":
                    pytest.fail(outcome.get("message") or outcome.tag, pytrace=False)
                case "skipped":
                    pytest.skip(outcome.get("message") or "skipped")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Keeps the closing line, with the time that the tests themselves took."""
    stats = terminalreporter.stats
    counts = [
        f"{len(stats[outcome])} {outcome}"
        for outcome in ("failed", "passed", "skipped", "error")
        if stats.get(outcome)
    ]
    items = getattr(terminalreporter._session, "items", [])
    seconds = sum(item.seconds for item in items if isinstance(item, Result))
    line = f"===== {', '.join(counts)} in {seconds:.2f}s (all sessions) ====="
    terminalreporter.write_line(line)
    if kept := os.environ.get("COMPILE_API_TOTAL"):
        Path(kept).write_text(f"{line}\n")
