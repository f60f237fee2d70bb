"""`import` inside a function: modules that are loaded already are found; a first import happens for real."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.faults import require_programs
from dynamo.values import attributes

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine

__all__ = ["import_from", "import_module"]


def import_module(
    machine: Machine, names: dict[str, Any], name: str, fromlist: Any, level: int
) -> Any:
    """What `import name` binds: the package, or with a `from` list the module itself."""
    del machine
    full = (
        importlib.util.resolve_name("." * level + name, names.get("__package__") or "")
        if (level)
        else name
    )
    if full not in sys.modules:
        raise GraphBreak(BreakReason.OUTSIDE_EFFECT, f"the module {full} is imported here first")
    if fromlist:
        return sys.modules[full]
    return sys.modules[full.partition(".")[0]] if not level else sys.modules[full]


def import_from(machine: Machine, module: Any, name: str) -> Any:
    """`from module import name`."""
    try:
        return attributes.load(machine, module, name)
    except AttributeError as error:
        require_programs(error)
        found = sys.modules.get(f"{module.__name__}.{name}")
        if found is None:
            raise ImportError(f"cannot import name '{name}' from '{module.__name__}'") from None
        return found
