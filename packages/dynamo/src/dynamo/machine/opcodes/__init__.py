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
from dynamo.values import copies as _copies  # registers its rules
from dynamo.values import optimizers as _optimizers  # registers its rules

assert _copies is not _optimizers, "imported for their rules"

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
