"""For what an artifact is good: the versions, the machine and the state that compiled code depends on.

Comes in: the process and the settings of one `compile` call. Goes out: texts whose digests are part of every key.
Invariant: two processes with the same texts compile the same function to the same program; what may differ between
them beyond that is guarded or verified when an artifact is restored.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import aot_autograd
import dynamo
import inductor
import primtorch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from compile_api.options import Settings

__all__ = ["key_of", "process_identity", "sources_digest"]

FORMAT = 1
_PACKAGES: tuple[Any, ...] = (primtorch, dynamo, aot_autograd, inductor)


def _folders() -> list[Path]:
    ours = [Path(str(package.__file__)).parent for package in _PACKAGES]
    return [*ours, Path(__file__).parent.parent]


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            elif entry.name.endswith((".py", ".h", ".so")):
                yield entry


def sources_digest(memo: Path | None) -> str:
    """A digest of our own sources; `memo` is a private directory that remembers it by the files' times."""
    found = sorted(
        (entry for folder in _folders() for entry in _files(str(folder))), key=lambda e: e.path
    )
    stats = [(entry.path, entry.stat()) for entry in found]
    quick = hashlib.sha256(
        repr([(path, s.st_size, s.st_mtime_ns, s.st_ino) for path, s in stats]).encode()
    ).hexdigest()[:32]
    note = None if memo is None else memo / f"sources-{quick}"
    if note is not None:
        try:
            text = note.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            text = ""
        if len(text) == 32:
            return text
    digest = hashlib.sha256()
    roots = {str(folder): folder.name for folder in _folders()}
    for path, _ in stats:
        root = next(root for root in roots if path.startswith(f"{root}/"))
        content = Path(path).read_bytes()
        if not path.endswith(".so"):  # built on each machine from the sources that are counted
            digest.update(f"{roots[root]}{path[len(root) :]}\0{len(content)}\0".encode())
            digest.update(content)
    text = digest.hexdigest()[:32]
    if note is not None:
        try:
            temporary = note.with_name(f"write-{os.getpid()}-{note.name}")
            temporary.write_text(text, encoding="ascii")
            temporary.replace(note)
        except OSError:
            pass  # it is computed again next time
    return text


def _processor() -> str:
    """The first processor's instruction sets: kernels are compiled for exactly these."""
    lines = []
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    break
                if line.startswith(("flags", "Features", "model name", "CPU part")):
                    lines.append(" ".join(line.split()))
    except OSError:
        lines.append(platform.processor())
    return platform.machine() + "|" + "|".join(sorted(lines))


@functools.cache
def _fixed() -> dict[str, str]:
    return {
        "format": str(FORMAT),
        "python": f"{sys.implementation.cache_tag} {sys.hexversion:x}",
        "torch": f"{torch.__version__} {torch.version.git_version} {torch.version.cuda} {torch.version.hip}",
        "numpy": str(getattr(sys.modules.get("numpy"), "__version__", None)),  # primtorch's, loaded
        "processor": _processor(),
    }


def process_identity(memo: Path | None) -> dict[str, str]:
    """What an artifact of this process is good for: a text for each thing that must be the same."""
    return {**_fixed(), "compile-api": _sources(memo)}


@functools.lru_cache(maxsize=4)
def _sources(memo: Path | None) -> str:
    return sources_digest(memo)


def _state() -> tuple[Any, ...]:
    """torch's switches that choose among operators while a graph is traced, and that no guard asks about."""
    backends = torch.backends
    return (
        backends.mkldnn.enabled,
        backends.cudnn.enabled,
        backends.cudnn.deterministic,
        backends.cudnn.benchmark,
        backends.cuda.flash_sdp_enabled(),
        backends.cuda.mem_efficient_sdp_enabled(),
        backends.cuda.math_sdp_enabled(),
        os.environ.get("CUDA_VISIBLE_DEVICES"),
        torch.cuda.is_available(),
    )


def key_of(code: str, identity: dict[str, str], settings: Settings, *more: object) -> str:
    """The name under which artifacts of a code object are kept."""
    text = repr((code, sorted(identity.items()), settings, more, _state()))
    return hashlib.sha256(text.encode()).hexdigest()[:40]
