"""What was compiled, kept from process to process, and looked up before anything is captured.

`identity` says for which program, machine and versions an artifact is good; `store` keeps the files; `shelf` is what
dynamo asks; `portable` makes one file of a process's artifacts and takes it in elsewhere. Invariant: a file is used
only when it is whole, private to the user, and was made for exactly this state of everything.
"""

from compile_api.artifacts.portable import (
    ArtifactSummary,
    load_cache_artifacts,
    save_cache_artifacts,
)
from compile_api.artifacts.shelf import ArtifactShelf

__all__ = ["ArtifactShelf", "ArtifactSummary", "load_cache_artifacts", "save_cache_artifacts"]
