"""`python -m primtorch`: the coverage of ATen, and the list of prims, to read or as pages."""

from __future__ import annotations

import argparse
import sys

from primtorch.coverage import Status, coverage_report
from primtorch.meanings import DERIVATIVES, MEANINGS
from primtorch.prims import FAMILIES
from primtorch.registry import overload


def _prims_page() -> str:
    """The closed list of prims with the rules of each family, as Markdown."""
    lines = [
        "# The prims",
        "",
        "Made by `python -m primtorch prims`; don't edit.",
        "",
        "Every other operator is written in these. A name without a dot is the `default` overload of `aten`.",
        "The rules of a family hold for each of its operators. What they compute is said in short: eager's",
        "operator of that name is the specification. x and y are the operands in order, f the result.",
    ]
    for family in FAMILIES:
        lines += [
            "",
            f"## {family.name.capitalize()}",
            "",
            f"- shape and stride: {family.shape_and_stride}",
            f"- dtype: {family.dtype}",
            f"- derivative: {family.derivative}",
            "",
            "| prim | arguments | meaning | derivative |",
            "|---|---|---|---|",
            *map(_prim_row, family.operators),
        ]
    return "\n".join(lines) + "\n"


def _prim_row(name: str) -> str:
    """One prim: its arguments as the schema has them, what it computes, the formula of its derivative."""
    operator = overload(name if name.startswith("primtorch.") else f"aten.{name}")
    arguments = ""
    if operator is not None:
        arguments = ", ".join(argument.name for argument in operator._schema.arguments)
    formulas = "; ".join(f"`{text}`" for text in DERIVATIVES.get(name, ()))
    return f"| `{name}` | {arguments} | {MEANINGS[name]} | {formulas} |"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 0 on success."""
    parser = argparse.ArgumentParser(prog="python -m primtorch", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    coverage = commands.add_parser("coverage", help="what becomes of every ATen overload")
    coverage.add_argument(
        "--status", choices=[status.value for status in Status], help="only these"
    )
    coverage.add_argument("--markdown", action="store_true", help="as a page of documentation")
    commands.add_parser("prims", help="the closed list of primitive operators, as a page")
    options = parser.parse_args(arguments)
    if options.command == "prims":
        page = _prims_page()
    elif options.markdown:
        page = coverage_report().markdown()
    else:
        status = Status(options.status) if options.status else None
        page = coverage_report().text(status=status) + "\n"
    sys.stdout.write(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
