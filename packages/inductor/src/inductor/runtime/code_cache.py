"""The directory of compiled kernels.

An entry `<key>.so` is a shared library, `<key>.txt` lists the checksum of the library and the kernels in it, and
`kernel-<hash>` names the entry that holds one kernel, so that graphs and processes share kernels. Written to a
temporary name and renamed: a reader sees a whole file or none. Invariant: the directory is private (owner and mode are
checked), an entry whose checksum doesn't fit is deleted and counts as missing, and no failure here is an error: without
a usable directory kernels live in a temporary one and one warning says so. What a killed process left is swept.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CodeCache", "open_cache"]

_LOG = logging.getLogger("inductor")
_LAYOUT = "1"
_SWEEP_EVERY = 64
_IN_USE = "in_use"
_NO_LOCK = (
    OSError,
    NotImplementedError,
    filelock.Timeout,
)  # somebody holds it, or locks don't work here
_SCRAP_AGE = 600.0  # seconds
_LONGEST_BUILD = 7 * 86400.0


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

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new private directory for one compilation, on the same file system as the entries.

        A lock in it is held as long as this process lives: `sweep` deletes what killed ones left.

        Raises:
            OSError: it can't be made; what is raised inside passes, too.
        """
        path = Path(tempfile.mkdtemp(prefix="build-", dir=self.directory))
        lock = filelock.FileLock(path / _IN_USE)
        try:
            with contextlib.suppress(*_NO_LOCK):
                lock.acquire(timeout=0)
            yield path
        finally:
            lock.release()
            shutil.rmtree(path, ignore_errors=True)

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
        """Delete what killed processes left; beyond the limit the oldest entries, down to three quarters of it."""
        self._sweep_scraps()
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
                break
        for index in self.directory.glob("kernel-*"):
            with contextlib.suppress(OSError, ValueError):
                if not (self.directory / f"{index.read_text(encoding='ascii')}.so").exists():
                    index.unlink()

    def _sweep_scraps(self) -> None:
        now = time.time()
        for path in (*self.directory.glob("build-*"), *self.directory.glob("write-*")):
            with contextlib.suppress(OSError):
                age = now - path.stat().st_mtime
                if age < _SCRAP_AGE:
                    continue  # whoever made it may not have its lock yet
                if not path.is_dir():
                    path.unlink()
                elif age > _LONGEST_BUILD or _is_left(path):
                    shutil.rmtree(path, ignore_errors=True)


def _is_left(scratch: Path) -> bool:
    """Whether the process is gone that made the directory."""
    lock = filelock.FileLock(scratch / _IN_USE)
    try:
        lock.acquire(timeout=0)
    except _NO_LOCK:
        return False
    lock.release()
    return True


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
