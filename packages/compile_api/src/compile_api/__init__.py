"""A PyTorch compiler that can be taken apart: five packages behind one call."""

from compile_api.__about__ import __version__
from compile_api.api import compile, disable, graph_count, is_compiling, mark_dynamic, reset  # noqa: A004
from compile_api.backends import list_backends, register_backend
from compile_api.options import list_mode_options, list_options

__all__ = [
    "__version__",
    "compile",
    "disable",
    "graph_count",
    "is_compiling",
    "list_backends",
    "list_mode_options",
    "list_options",
    "mark_dynamic",
    "register_backend",
    "reset",
]
