"""A PyTorch compiler that can be taken apart: five packages behind one call."""

from compile_api.__about__ import __version__
from compile_api.api import (
    compile,  # noqa: A004 - torch.compile's name is the point
    disable,
    graph_count,
    is_compiling,
    mark_dynamic,
    reset,
    set_stance,
)
from compile_api.artifacts import (
    ArtifactSummary,
    load_cache_artifacts,
    save_cache_artifacts,
)
from compile_api.backends import list_backends, register_backend
from compile_api.doctor import doctor
from compile_api.explain import Explanation, explain
from compile_api.options import list_mode_options, list_options

__all__ = [
    "ArtifactSummary",
    "Explanation",
    "__version__",
    "compile",
    "disable",
    "doctor",
    "explain",
    "graph_count",
    "is_compiling",
    "list_backends",
    "list_mode_options",
    "list_options",
    "load_cache_artifacts",
    "mark_dynamic",
    "register_backend",
    "reset",
    "save_cache_artifacts",
    "set_stance",
]
