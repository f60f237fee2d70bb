"""Reads the shipped source and reports every import that breaks the house's contracts.

What import-linter can't see: parts of torch that must not be used (by import, by attribute, by a
string), siblings imported past their public roots, third-party packages that a distribution
doesn't declare, imports built at run time. In: `packages/*/src`. Out: one line a fault,
`path:line: what`, and exit status 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

FORBIDDEN = (
    "torch._dynamo",
    "torch._C._dynamo",
    "torch._inductor",
    "torch._functorch",
    "torch._decomp",
    "torch._refs",
    "torch._prims",
    "torch._prims_common",
    "torch._subclasses",
    "torch.fx.experimental",
    "torch.compile",
    "torch.export",
)
PUBLIC_ROOTS = {
    "primtorch": (
        "primtorch",
        "primtorch.symbolic",
        "primtorch.fake",
        "primtorch.regions",
        "primtorch.serial",
        "primtorch.errors",
    ),
    "dynamo": ("dynamo",),
    "aot_autograd": ("aot_autograd",),
    "inductor": ("inductor",),
    "compile_api": ("compile_api",),
}
MAY_IMPORT = {
    "primtorch": (),
    "dynamo": ("primtorch",),
    "aot_autograd": ("primtorch",),
    "inductor": ("primtorch",),
    "compile_api": ("primtorch", "dynamo", "aot_autograd", "inductor"),
}
_HIDDEN_IMPORT = re.compile(r"\bimport\b[^\n]*")


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One broken contract: where, and what."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def forbidden_part(name: str) -> str | None:
    """Names the forbidden part of torch that a dotted name lies in, or None."""
    for part in FORBIDDEN:
        if name == part or name.startswith(f"{part}."):
            return part
    return None


def declared_imports(package: str) -> set[str]:
    """Gives the top-level names that a distribution declares, optional dependencies included."""
    path = ROOT / "packages" / package / "pyproject.toml"
    table = tomllib.loads(path.read_text())["project"]
    requirements = list(table["dependencies"])
    for extra in table.get("optional-dependencies", {}).values():
        requirements += extra
    return {re.split(r"[^A-Za-z0-9_.-]", name)[0].replace("-", "_") for name in requirements}


def _dotted(node: ast.expr) -> str | None:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attribute):
            base = _dotted(value)
            return None if base is None else f"{base}.{attribute}"
    return None


def _module_faults(name: str, package: str, declared: set[str]) -> Iterator[str]:
    """Judges one imported module name."""
    top = name.split(".", maxsplit=1)[0]
    if part := forbidden_part(name):
        yield f"imports {part}: that is the system being built here"
    elif top in PUBLIC_ROOTS and top != package:
        if top not in MAY_IMPORT[package]:
            yield f"{package} must not import {top}"
        elif name not in PUBLIC_ROOTS[top]:
            yield f"imports {name}; public are {', '.join(PUBLIC_ROOTS[top])}"
    elif top not in PUBLIC_ROOTS and top not in sys.stdlib_module_names and top not in declared:
        yield f"imports {top}, which packages/{package}/pyproject.toml doesn't declare"


def _names_of_from(node: ast.ImportFrom, siblings: bool) -> Iterator[str]:
    """Gives the modules that an absolute `from` import may mean."""
    assert node.module is not None
    yield node.module
    if not siblings:
        for alias in node.names:
            if forbidden_part(f"{node.module}.{alias.name}"):
                yield f"{node.module}.{alias.name}"


def _call_faults(node: ast.Call, package: str, declared: set[str]) -> Iterator[str]:
    """Judges calls that import at run time."""
    name = _dotted(node.func)
    if name not in {
        "importlib.import_module",
        "import_module",
        "builtins.__import__",
        "__import__",
    }:
        return
    match node.args:
        case [ast.Constant(value=str(module)), *_]:
            yield from _module_faults(module, package, declared)
        case _:
            yield f"{name} with a name built at run time: no tool can see what it imports"


def check(tree: ast.Module, path: str, package: str, declared: set[str]) -> list[Fault]:
    """Judges one module of a package."""
    faults = []

    def report(node: ast.AST, what: str) -> None:
        faults.append(Fault(path, getattr(node, "lineno", 0), what))

    prose = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    for what in _module_faults(alias.name, package, declared):
                        report(node, what)
            case ast.ImportFrom(module=str(module), level=0):
                for name in _names_of_from(node, module.split(".")[0] in PUBLIC_ROOTS):
                    for what in _module_faults(name, package, declared):
                        report(node, what)
            case ast.Call():
                for what in _call_faults(node, package, declared):
                    report(node, what)
            case ast.Attribute():
                name = _dotted(node)
                if name in FORBIDDEN:
                    report(node, f"uses {name}: that is the system being built here")
            case ast.Constant(value=str(text)) if id(node) not in prose and "import" in text:
                for statement in _HIDDEN_IMPORT.findall(text):
                    if any(part in statement for part in FORBIDDEN):
                        report(node, f"a string that imports: {statement.strip()!r}")
    return sorted(set(faults))


def main() -> int:
    """Checks every shipped module; prints the faults."""
    faults: list[Fault] = []
    modules = 0
    for package in PUBLIC_ROOTS:
        declared = declared_imports(package)
        for path in sorted((ROOT / "packages" / package / "src").rglob("*.py")):
            modules += 1
            tree = ast.parse(path.read_text(), str(path))
            faults += check(tree, str(path.relative_to(ROOT)), package, declared)
    for fault in faults:
        print(fault)
    print(f"imports: {modules} modules, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
