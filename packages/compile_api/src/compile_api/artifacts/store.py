"""The files: one artifact each, whole or not there.

`<cache>/artifacts-1/<key>/<name>` begins with a mark and ends with the checksum of all before. A file is written
under another name and renamed, so that a reader sees all of it or nothing, and a process that is killed leaves
nothing but a scrap that is swept later. Invariant: no failure here is an error of the program; the directory and each
file belong to this user and can be written by nobody else, or they are not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ArtifactStore", "Damaged", "open_store", "sealed", "unsealed"]

_LOG = logging.getLogger("compile_api.cache")
_MARK = b"compile-api artifact 1\n"
_CHECKSUM = 32
_LARGEST = 1 << 30
_MOST_OF_A_KEY = 32
_SWEEP_EVERY = 32
_SCRAP_AGE = 3600.0


class Damaged(Exception):
    """Bytes that are no artifact, or not all of one."""


def sealed(content: bytes) -> bytes:
    """The bytes of a file."""
    body = _MARK + content
    return body + hashlib.sha256(body).digest()


def unsealed(file: bytes | memoryview) -> memoryview:
    """What was sealed.

    Raises:
        Damaged: the mark or the checksum is wrong.
    """
    view = memoryview(file)
    if len(view) < len(_MARK) + _CHECKSUM or view[: len(_MARK)] != _MARK:
        raise Damaged("it does not begin as an artifact does")
    if hashlib.sha256(view[:-_CHECKSUM]).digest() != view[-_CHECKSUM:]:
        raise Damaged("its checksum is wrong")
    return view[len(_MARK) : -_CHECKSUM]


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022


class ArtifactStore:
    """The artifacts of one directory, and those taken in by this process; safe from threads and processes.

    Args:
        directory: Where the files are; None keeps nothing beyond the process.
        limit: Bytes above which the least recently used files are deleted.
    """

    def __init__(self, directory: Path | None, limit: int = 1 << 30) -> None:
        self.directory = directory
        self._limit = limit
        self._lock = threading.Lock()
        self._writes = 0
        self._taken_in: dict[str, dict[str, bytes]] = {}
        self._used: dict[tuple[str, str], None] = {}

    def find(self, key: str) -> Iterator[tuple[str, memoryview]]:
        """The artifacts under a key, the most recently used first."""
        with self._lock:
            held = dict(self._taken_in.get(key, ()))
        for name, taken in held.items():
            yield name, memoryview(taken)
        for path in self._files_of(key):
            if path.name in held:
                continue
            try:
                content = unsealed(_read(path))
            except Damaged as error:
                _LOG.info("%s is deleted: %s", path, error)
                with contextlib.suppress(OSError):
                    path.unlink()
            except OSError as error:
                _LOG.info("%s is passed over: %s", path, error)
            else:
                yield path.name, content

    def _files_of(self, key: str) -> list[Path]:
        if self.directory is None:
            return []
        try:
            with os.scandir(self.directory / key) as entries:
                found = [
                    (entry.stat(follow_symlinks=False).st_mtime_ns, entry.path)
                    for entry in entries
                    if not entry.name.startswith("write-")
                ]
        except OSError:
            return []
        return [Path(path) for _, path in sorted(found, reverse=True)[:_MOST_OF_A_KEY]]

    def used(self, key: str, name: str) -> None:
        """Note that an artifact served this process."""
        with self._lock:
            self._used[(key, name)] = None
        if self.directory is not None:
            with contextlib.suppress(OSError):
                os.utime(self.directory / key / name)

    def keep(self, key: str, name: str, content: bytes) -> bool:
        """Write an artifact; False if the directory can't be written."""
        with self._lock:
            self._used[(key, name)] = None
            if self.directory is None:
                self._taken_in.setdefault(key, {})[name] = content
                return False
            self._writes += 1
            sweep = self._writes % _SWEEP_EVERY == 1
        folder = self.directory / key
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix="write-", dir=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(sealed(content))
                Path(temporary).replace(folder / name)
            except OSError:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
                raise
        except OSError as error:
            _LOG.info("an artifact is not written: %s", error)
            with self._lock:
                self._taken_in.setdefault(key, {})[name] = content
            return False
        if sweep:
            self.sweep()
        return True

    def take_in(self, key: str, name: str, content: bytes) -> None:
        """Add an artifact from elsewhere: to the directory, or to this process only."""
        self.keep(key, name, content)

    def used_here(self) -> Iterator[tuple[str, str, bytes]]:
        """Key, name and content of each artifact that this process made or used."""
        with self._lock:
            used = list(self._used)
        for key, name in used:
            for found, content in self.find(key):
                if found == name:
                    yield key, name, bytes(content)
                    break

    def forget(self) -> None:
        """Drop what is only in this process."""
        with self._lock:
            self._taken_in.clear()
            self._used.clear()

    def sweep(self) -> None:
        """Delete old scraps, and the least recently used artifacts while there are too many bytes."""
        if self.directory is None:
            return
        files: list[tuple[float, int, Path]] = []
        oldest_scrap = time.time() - _SCRAP_AGE
        try:
            for path in self.directory.glob("*/*"):
                status = path.stat()
                if path.name.startswith("write-"):
                    if status.st_mtime < oldest_scrap:
                        path.unlink()
                    continue
                files.append((status.st_mtime, status.st_size, path))
        except OSError:
            return  # another process deletes too
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._limit:
                return
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()
            total -= size


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            raise PermissionError(f"{path} belongs to, or can be written by, somebody else")
        if status.st_size > _LARGEST:
            raise Damaged("it is too large")
        return file.read()


_stores: dict[Path, ArtifactStore] = {}
_stores_lock = threading.Lock()


def open_store(cache: Path) -> ArtifactStore:
    """The store in a cache directory; one that is in memory only if the directory can't be trusted or made."""
    with _stores_lock:
        store = _stores.get(cache)
        if store is None:
            store = _stores[cache] = ArtifactStore(_directory(cache))
        return store


def _directory(cache: Path) -> Path | None:
    path = cache / "artifacts-1"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in (cache, path):
            if not _is_private(one.stat()):
                raise PermissionError(f"{one} belongs to, or can be written by, somebody else")
    except OSError as error:
        _LOG.warning("compiled programs are not kept beyond this process: %s", error)
        return None
    return path
