"""Captures PyTorch programs from CPython bytecode into torch.fx graphs with guards."""

from dynamo.__about__ import __version__
from dynamo.api import (
    CaptureReport,
    Exported,
    allow_in_graph,
    disable,
    error_on_graph_break,
    explain,
    export,
    graph_break,
    is_compiling,
    mark_dynamic,
    mark_static,
    mark_unbacked,
    optimize,
    reset,
)
from dynamo.backends import list_backends, lookup_backend, register_backend
from dynamo.errors import (
    BackendCompilerFailed,
    BackendError,
    BreakReason,
    CaptureError,
    DynamoError,
    InternalError,
    RecompileRefused,
    UsageError,
)
from dynamo.options import DynamoOptions
from dynamo.stance import set_stance
from dynamo.substitutes import assume_constant_result, substitute_in_graph

__all__ = [
    "BackendCompilerFailed",
    "BackendError",
    "BreakReason",
    "CaptureError",
    "CaptureReport",
    "DynamoError",
    "DynamoOptions",
    "Exported",
    "InternalError",
    "RecompileRefused",
    "UsageError",
    "__version__",
    "allow_in_graph",
    "assume_constant_result",
    "disable",
    "error_on_graph_break",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "list_backends",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "optimize",
    "register_backend",
    "reset",
    "set_stance",
    "substitute_in_graph",
]
