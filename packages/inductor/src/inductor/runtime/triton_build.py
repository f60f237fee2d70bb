"""Compiling Triton kernels: a pool of worker processes and a directory of finished binaries.

Comes in: `TritonSource`s and a `TritonTarget`. Goes out: `TritonBinary`s. Nothing here imports Triton: workers do; a
kernel that is on disk needs no worker. Invariant: a binary is found under the hash of everything that made it (text,
parameter types, alignment, warps, target, versions), and an entry whose checksum doesn't fit counts as missing.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inductor.__about__ import __version__
from inductor.errors import InductorError, OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inductor.codegen.triton import TritonSource

__all__ = ["TritonBinary", "TritonBuildError", "TritonBuilder", "TritonTarget"]

_TIMEOUT = 300.0


class TritonBuildError(InductorError):
    """Triton rejected a kernel or could not be run; the kernel falls back to torch's own operators."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"a Triton kernel was not compiled: {reason}")


@dataclass(frozen=True, slots=True)
class TritonTarget:
    """A kind of GPU: `TritonTarget("cuda", 90, 32)`, `TritonTarget("hip", "gfx942", 64)`."""

    backend: str
    architecture: int | str
    warp_size: int

    @staticmethod
    def named(name: str) -> TritonTarget:
        """The target that the compilers' own names mean: `sm_90`, `gfx942`.

        Raises:
            OptionError: it is neither.
        """
        if name.startswith("sm_") and name[3:].isdecimal():
            return TritonTarget("cuda", int(name[3:]), 32)
        if name.startswith("gfx") and name[3:].isalnum():
            return TritonTarget("hip", name, 64)
        raise OptionError(f"no GPU is called {name!r}\n  try: sm_90 (Hopper), sm_80, gfx942")


@dataclass(frozen=True, slots=True)
class TritonBinary:
    """A compiled kernel: device code, its function's name, bytes of dynamic shared memory, warps of a program."""

    binary: bytes
    name: str
    shared: int
    warps: int


@dataclass(slots=True)
class _Worker:
    """One process; used by one thread at a time."""

    process: subprocess.Popen[str]

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(_TIMEOUT, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError as error:
            raise TritonBuildError(f"the compiling process died ({error})") from error
        finally:
            timer.cancel()
        if not line:
            raise TritonBuildError("the compiling process died")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _start_worker() -> _Worker:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    process = subprocess.Popen(  # noqa: S603 - this interpreter and a file of ours
        [sys.executable, str(Path(__file__).with_name("triton_worker.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    return _Worker(process)


@dataclass(slots=True)
class TritonBuilder:
    """Compiles kernels in parallel and keeps them in `directory`; thread-safe.

    Fields:
        directory: where binaries and sources live; it exists and is private.
        target: the kind of GPU.
        processes: most workers that are started; each starts when there is work for it.
    """

    directory: Path
    target: TritonTarget
    processes: int = 8
    _idle: list[_Worker] = field(default_factory=list)
    _running: list[_Worker] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pending: dict[str, Future[TritonBinary]] = field(default_factory=dict)
    _threads: ThreadPoolExecutor | None = None

    def submit(self, source: TritonSource, aligned: Sequence[int]) -> Future[TritonBinary]:
        """Begin to compile; the future's exception is a `TritonBuildError`.

        Args:
            source: the kernel.
            aligned: positions of the parameters that are always multiples of 16 bytes.

        Equal kernels that are asked for meanwhile are compiled once.
        """
        request = {
            "text": source.text,
            "signature": list(source.signature),
            "aligned": list(aligned),
            "warps": source.warps,
            "stages": source.stages,
            "checked": source.bounds_checked,
            **asdict(self.target),
        }
        key = _key(request)
        with self._lock:
            pending = self._pending.get(key)
            if pending is not None:
                return pending
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    self.processes, thread_name_prefix="triton-build"
                )
                atexit.register(self.close)
            made = self._pending[key] = self._threads.submit(self._build, key, request)
        made.add_done_callback(lambda _: self._pending.pop(key, None))
        return made

    def prestart(self, count: int = 2) -> None:
        """Start workers before there is work, so that they have loaded Triton when it comes."""
        with self._lock:
            if not self._running:
                atexit.register(self.close)
            while len(self._running) < min(count, self.processes):
                worker = _start_worker()
                self._running.append(worker)
                self._idle.append(worker)

    def close(self) -> None:
        """End the workers."""
        with self._lock:
            workers, self._running, self._idle = self._running, [], []
            threads, self._threads = self._threads, None
        for worker in workers:
            with contextlib.suppress(OSError):
                worker.process.kill()
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def _build(self, key: str, request: dict[str, Any]) -> TritonBinary:
        found = self._find(key)
        if found is not None:
            return found
        worker = self._take()
        try:
            answer = worker.ask({**request, "directory": str(self.directory)})
        except TritonBuildError:
            self._drop(worker)
            raise
        self._give(worker)
        if "error" in answer:
            raise TritonBuildError(str(answer["error"]))
        built = TritonBinary(
            base64.b64decode(answer["binary"]),
            str(answer["name"]),
            int(answer["shared"]),
            int(answer["warps"]),
        )
        self._publish(key, built)
        return built

    def _take(self) -> _Worker:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            worker = _start_worker()
            self._running.append(worker)
            return worker

    def _give(self, worker: _Worker) -> None:
        with self._lock:
            self._idle.append(worker)

    def _drop(self, worker: _Worker) -> None:
        with contextlib.suppress(OSError):
            worker.process.kill()
        with self._lock, contextlib.suppress(ValueError):
            self._running.remove(worker)

    # ---- the directory
    def _find(self, key: str) -> TritonBinary | None:
        try:
            record = json.loads((self.directory / f"{key}.json").read_text(encoding="ascii"))
            binary = (self.directory / f"{key}.bin").read_bytes()
            found = TritonBinary(
                binary, str(record["name"]), int(record["shared"]), int(record["warps"])
            )
            fits = hashlib.sha256(binary).hexdigest() == record["checksum"]
        except (OSError, ValueError, KeyError, TypeError, binascii.Error):
            return None
        return found if fits else None

    def _publish(self, key: str, built: TritonBinary) -> None:
        record = {
            "checksum": hashlib.sha256(built.binary).hexdigest(),
            "name": built.name,
            "shared": built.shared,
            "warps": built.warps,
        }
        with contextlib.suppress(
            OSError
        ):  # a full disk costs the next process a compilation, nothing else
            _write(self.directory / f"{key}.bin", built.binary)
            _write(self.directory / f"{key}.json", json.dumps(record).encode("ascii"))


def _write(path: Path, content: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix="write-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


@lru_cache(maxsize=1)
def _sources() -> tuple[str, ...]:
    """What makes every kernel, beside its request: Triton's version, ours, the prelude."""
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = "none"
    prelude = Path(__file__).parent.parent / "codegen" / "triton" / "prelude.py"
    return triton, __version__, prelude.read_text(encoding="utf-8")


def _key(request: dict[str, Any]) -> str:
    parts = [
        json.dumps(request, sort_keys=True),
        *_sources(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]
