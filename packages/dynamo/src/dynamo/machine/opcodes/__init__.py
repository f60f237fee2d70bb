"""One module per family of opcodes; importing this package registers all of them."""

from dynamo.machine.opcodes import (
    attributes,
    calls,
    containers,
    control_flow,
    exceptions,
    functions,
    names,
    operators,
    strings,
)

__all__ = [
    "attributes",
    "calls",
    "containers",
    "control_flow",
    "exceptions",
    "functions",
    "names",
    "operators",
    "strings",
]
