"""Reports how large the shipped source is, and what outgrew a reader.

Files of about 800 lines and functions of about 80 are the wish; beyond the limits below a file holds
two ideas, a function does two things. Out: a line per package, the largest offenders, exit status 1
beyond a limit.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_WISH, FILE_LIMIT = 800, 1100
FUNCTION_WISH, FUNCTION_LIMIT = 80, 140


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
    long_files: list[tuple[int, str]] = []
    long_functions: list[tuple[int, str]] = []
    total = 0
    for package in sorted((ROOT / "packages").iterdir()):
        paths = sorted((package / "src").rglob("*.py"))
        lengths = {path: len(path.read_text().splitlines()) for path in paths}
        native = sum(
            len(path.read_text().splitlines())
            for path in (package / "src").rglob("*")
            if path.suffix in {".c", ".h", ".cpp"}
        )
        total += sum(lengths.values()) + native
        print(
            f"{package.name:14} {len(paths):4} files {sum(lengths.values()):6} lines, {native} of C"
        )
        long_files += [(n, str(p.relative_to(ROOT))) for p, n in lengths.items() if n > FILE_WISH]
        for path in paths:
            long_functions += [found for found in functions(path) if found[0] > FUNCTION_WISH]
    print(f"{'in all':14} {total:17} lines")
    for what, found, limit in (
        ("file", long_files, FILE_LIMIT),
        ("function", long_functions, FUNCTION_LIMIT),
    ):
        for length, place in sorted(found, reverse=True):
            print(f"{'TOO LONG' if length > limit else 'long'} {what}: {length} lines, {place}")
    return int(
        any(length > FILE_LIMIT for length, _ in long_files)
        or any(length > FUNCTION_LIMIT for length, _ in long_functions)
    )


if __name__ == "__main__":
    sys.exit(main())
