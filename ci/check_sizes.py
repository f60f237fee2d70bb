"""Reports how large the shipped source is, and what outgrew a reader.

Beyond the limits below a file holds two ideas, a function does two things. Out: a line per package, then
what is too long, with exit status 1.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LIMIT, FUNCTION_LIMIT = 800, 80
NATIVE_LIMIT = 1000  # of a file of C: what it keeps to itself can't be shared


def functions(path: Path) -> list[tuple[int, str]]:
    """Gives the length and place of each function of a file; a docstring doesn't count."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            start = (first.end_lineno if documented else node.lineno) or 0
            found.append(((node.end_lineno or 0) - start, f"{path.relative_to(ROOT)}:{node.name}"))
    return found


def main() -> int:
    """Prints the report."""
    too_long: list[tuple[int, str]] = []
    total = 0
    for package in sorted((ROOT / "packages").iterdir()):
        paths = sorted((package / "src").rglob("*.py"))
        native = [p for p in (package / "src").rglob("*") if p.suffix in {".c", ".h", ".cpp"}]
        lengths = {path: len(path.read_text().splitlines()) for path in (*paths, *native)}
        in_c = sum(map(lengths.__getitem__, native))
        total += sum(lengths.values())
        print(
            f"{package.name:14} {len(paths):4} files {sum(lengths.values()) - in_c:6} lines, "
            f"{in_c} of C"
        )
        too_long += [
            (length, str(path.relative_to(ROOT)))
            for path, length in lengths.items()
            if length > (FILE_LIMIT if path.suffix == ".py" else NATIVE_LIMIT)
        ]
        for path in paths:
            too_long += [found for found in functions(path) if found[0] > FUNCTION_LIMIT]
    print(f"{'in all':14} {total:17} lines")
    for length, place in sorted(too_long, reverse=True):
        print(f"TOO LONG: {length} lines, {place}")
    return int(bool(too_long))


if __name__ == "__main__":
    sys.exit(main())
