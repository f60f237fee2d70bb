"""Executes the Python blocks of the README and of docs/, page by page, as one test a page.

A page is one program: its blocks run in order in one namespace. A block opened by ```python is
run; one opened by ```python no-run is shown only; a ```text block right after a run block is
compared with what that block printed.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("packages/*/README.md")),
]
NOTATION = {"interfaces.md", "loop_ir.md"}  # their blocks are signatures and grammar, not programs
_BLOCK = re.compile(r"^```(\S+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: Path) -> list[tuple[str, str, str, int]]:
    text = page.read_text()
    return [
        (match[1], match[2].strip(), match[3], text.count("\n", 0, match.start(3)))
        for match in _BLOCK.finditer(text)
    ]


RUNNABLE = [
    page
    for page in PAGES
    if page.name not in NOTATION
    and any(kind == "python" and note != "no-run" for kind, note, _, _ in _blocks(page))
]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "compile_api" in sys.modules:
        sys.modules["compile_api"].reset()  # a page may count its graphs
    namespace: dict[str, Any] = {"__name__": "__document__"}
    printed: str | None = None
    for kind, note, body, line in _blocks(page):
        if kind == "python" and note != "no-run":
            name = f"{page.relative_to(ROOT)}:{line + 1}"
            source = "\n" * line + body  # so that a traceback shows the page's own line
            linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, name, "exec"), namespace)
            printed = out.getvalue()
        elif kind == "text" and printed is not None:
            assert printed.strip() == body.strip(), (
                f"{page.name}:{line}: the page and the program differ"
            )
            printed = None
        else:
            printed = None
