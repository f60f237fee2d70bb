"""The directory of compiled kernels.

An entry `<key>.so` is a shared library, `<key>.txt` lists the checksum of the library and the kernels in it, and
`kernel-<hash>` names the entry that holds one kernel, so that graphs and processes share kernels. Written to a
temporary name and renamed: a reader sees a whole file or none. Invariant: the directory is private (owner and mode are
checked), an entry whose checksum doesn't fit is deleted and counts as missing, and no failure here is an error: without
a usable directory kernels live in a temporary one and one warning says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CodeCache", "open_cache"]

_LOG = logging.getLogger("inductor")
_LAYOUT = "1"
_SWEEP_EVERY = 64


@dataclass(slots=True)
class CodeCache:
    """One directory of libraries and its index of kernels; thread-safe through the file system's atomic rename."""

    directory: Path
    persistent: bool
    limit: int
    writes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, kernel: str) -> Path | None:
        """The library that holds the kernel with hash `kernel`, checked, or None."""
        try:
            key = (self.directory / f"kernel-{kernel}").read_text(encoding="ascii")
            record = (self.directory / f"{key}.txt").read_text(encoding="ascii").splitlines()
            library = self.directory / f"{key}.so"
            content = library.read_bytes()
        except (OSError, ValueError):  # a ValueError: no ASCII, or a NUL, which no path may hold
            return None
        if (
            not record
            or hashlib.sha256(content).hexdigest() != record[0]
            or kernel not in record[1:]
        ):
            self.discard(key)
            return None
        return library

    def discard(self, key: str) -> None:
        """Delete a damaged entry."""
        for suffix in (".so", ".txt"):
            with contextlib.suppress(OSError):
                (self.directory / f"{key}{suffix}").unlink()

    def scratch(self) -> Path:
        """A new private directory for one compilation, on the same file system as the entries."""
        return Path(tempfile.mkdtemp(prefix="build-", dir=self.directory))

    def publish(self, key: str, library: Path, kernels: list[str]) -> Path:
        """Move a freshly built library into place and index its kernels.

        Raises:
            OSError: if the directory can't be written (full, read-only); the library is still where it was.
        """
        checksum = hashlib.sha256(library.read_bytes()).hexdigest()
        target = self.directory / f"{key}.so"
        library.chmod(0o700)
        library.replace(target)
        self._write(f"{key}.txt", "\n".join([checksum, *kernels]))
        for kernel in kernels:
            self._write(f"kernel-{kernel}", key)
        with self.lock:
            self.writes += 1
            sweep = self.writes % _SWEEP_EVERY == 1
        if sweep:
            self.sweep()
        return target

    def _write(self, name: str, text: str) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix="write-", dir=self.directory)
        try:
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write(text)
            Path(temporary).replace(self.directory / name)
        except OSError:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise

    def sweep(self) -> None:
        """Delete the oldest entries until the directory is below three quarters of its limit."""
        try:
            entries = [
                (item.stat().st_mtime, item.stat().st_size, item)
                for item in self.directory.glob("*.so")
            ]
        except OSError:
            return
        total = sum(size for _, size, _ in entries)
        if total <= self.limit:
            return
        for _, size, path in sorted(entries):
            self.discard(path.stem)
            total -= size
            if total <= self.limit * 3 // 4:
                return


def _is_private(path: Path) -> bool:
    status = path.stat()
    return status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o022


def open_cache(directory: Path | None, limit: int) -> CodeCache:
    """The cache in `directory`, made if need be, or a temporary one with a warning when that can't be used."""
    if directory is not None:
        path = directory / f"kernels-{_LAYOUT}"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(path):
                raise PermissionError(f"{path} belongs to, or can be written by, somebody else")
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            _LOG.warning(
                "kernels are not kept beyond this process: the cache directory can't be used (%s)",
                error,
            )
        else:
            return CodeCache(path, persistent=True, limit=limit)
    temporary = tempfile.TemporaryDirectory(prefix="compile-api-")  # lives as long as the process
    _KEPT.append(temporary)
    return CodeCache(Path(temporary.name), persistent=False, limit=limit)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []
