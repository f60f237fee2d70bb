"""One file with all artifacts of a process, for other machines of the same kind.

    compile_api.save_cache_artifacts("warm.artifacts")       # after a run
    compile_api.load_cache_artifacts("warm.artifacts")       # before the first call, elsewhere

The file says for which versions and machine it is and carries a checksum. It holds machine code and the text of
programs: load only files that you made or trust, as with any executable. Invariant: a file that is foreign, cut off
or changed is refused as a whole, with the reason.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from compile_api.artifacts.identity import process_identity
from compile_api.artifacts.store import Damaged, open_store, sealed, unsealed
from compile_api.errors import ArtifactRefused
from compile_api.options import cache_directory

__all__ = ["ArtifactSummary", "load_cache_artifacts", "save_cache_artifacts"]

_TITLE = "compile-api portable artifacts"


@dataclass(frozen=True, slots=True)
class ArtifactSummary:
    """What a portable file holds: where it is, how many artifacts, how many bytes."""

    path: Path
    artifacts: int
    size: int


def save_cache_artifacts(path: str | Path) -> ArtifactSummary:
    """Writes what this process compiled, or restored from its cache, to one portable file.

    Args:
        path: where; an existing file is replaced at once, never half.

    Raises:
        OSError: the file can't be written.
    """
    store = open_store(cache_directory())
    found = list(store.used_here())
    head = {
        "title": _TITLE,
        "identity": process_identity(store.directory),
        "artifacts": [[key, name, len(content)] for key, name, content in found],
    }
    text = json.dumps(head).encode()
    parts = [struct.pack("<Q", len(text)), text, *(content for _, _, content in found)]
    target = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=".write-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(sealed(b"".join(parts)))
        Path(temporary).replace(target)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    return ArtifactSummary(target, len(found), target.stat().st_size)


def load_cache_artifacts(path: str | Path) -> ArtifactSummary:
    """Takes in a portable file, so that the next calls need not compile what it holds.

    The file holds machine code that this process will run: load only files that you trust.

    Raises:
        ArtifactRefused: it is damaged, or was made by other versions or for another machine.
        OSError: it can't be read.
    """
    source = Path(path)
    file = source.read_bytes()
    try:
        body = unsealed(file)
        (length,) = struct.unpack_from("<Q", body)
        head = json.loads(bytes(body[8 : 8 + length]))
        if head["title"] != _TITLE:
            raise Damaged("it is one artifact, not a portable file")  # noqa: TRY301 - one reason of many
        identity, table = dict(head["identity"]), [tuple(row) for row in head["artifacts"]]
        for key, name, _ in table:
            if not all(part and part.isalnum() for part in (key, name)):
                raise Damaged("it names a file that no artifact has")  # noqa: TRY301 - the same
    except (Damaged, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactRefused(str(source), f"it is damaged: {error}") from None
    store = open_store(cache_directory())
    for name, ours in process_identity(store.directory).items():
        theirs = identity.get(name)
        if theirs != ours:
            raise ArtifactRefused(
                str(source),
                f"it was made for another {name}: {_short(theirs)}, here is {_short(ours)}",
            )
    start = 8 + length
    for key, name, size in table:
        store.take_in(key, name, bytes(body[start : start + size]))
        start += size
    return ArtifactSummary(source, len(table), len(file))


def _short(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
