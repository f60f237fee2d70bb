"""From kernel texts to function pointers.

Comes in: `KernelSource`s (canonical text whose function is named by its hash) and `BuildSettings`. Goes out: the
address of each kernel. Kernels known to this process or to the cache are not compiled again; the rest goes into
translation units that are compiled side by side. Invariant: after a `BuildError` nothing is half loaded, and the same
set of kernels may be asked for again.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import filelock

from inductor.runtime.code_cache import CodeCache, open_cache
from inductor.runtime.compiler import Compiler, find_compiler
from inductor.runtime.errors import (
    BuildError,
    CompilerFailedError,
    CompilerHungError,
    CompilerRejectedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from inductor.runtime.settings import BuildSettings

_IN_STRIPS = re.compile(r"\bci_\w+<(?:32|64)>\(")

__all__ = ["KernelLibrary", "KernelSource", "library_for", "prelude", "strips"]


_PROBE = 10.0
"""Seconds in which a compiler that works compiles next to nothing."""


@lru_cache(maxsize=1)
def prelude() -> str:
    """The text that stands before the kernels of every translation unit."""
    return _header("prelude.h")


@lru_cache(maxsize=1)
def strips() -> str:
    """The text that follows the prelude where a kernel has loops in strips."""
    return _header("strips.h")


def _header(name: str) -> str:
    return (Path(__file__).parent.parent / "codegen" / "cpp" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def _prelude_hash() -> bytes:
    return hashlib.sha256(prelude().encode() + strips().encode()).digest()


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One kernel: `text` defines a function whose name is spelled `KERNEL`; `helpers` are shared definitions."""

    text: str

    def hash(self, compiler: Compiler) -> str:
        """What the kernel is called: equal text under an equal compiler is the same kernel."""
        digest = hashlib.sha256(_prelude_hash())
        digest.update(compiler.identity.encode())
        digest.update(self.text.encode())
        return digest.hexdigest()[:24]


def _unit_text(kernels: Sequence[tuple[str, KernelSource]]) -> str:
    # A unit that doesn't need the lanes of erf, or strips, compiles faster without them.
    texts = [kernel.text for _, kernel in kernels]
    parts = ["#define CI_VECTOR_ERF"] if any("ci_erf(" in text for text in texts) else []
    if any("ci_erf_strip<" in text for text in texts):
        parts.append("#define CI_STRIP_ERF")
    parts.append(prelude())
    if any(_IN_STRIPS.search(text) for text in texts):
        parts.append(strips())
    parts.extend(
        f"#define KERNEL k_{name}\n#define KERNEL_BODY b_{name}\n{kernel.text}\n#undef KERNEL\n#undef KERNEL_BODY"
        for name, kernel in kernels
    )
    return "\n".join(parts) + "\n"


def _run(command: list[str], timeout: float, directory: Path) -> None:
    """Run the compiler in its own process group, so that a hung one goes away with its children."""
    name = Path(command[0]).name
    try:
        process = subprocess.Popen(  # noqa: S603 - the command is the user's own compiler, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,
        )
    except OSError as error:
        raise CompilerFailedError(name, "could not be started", str(error)) from error
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise CompilerHungError(name, f"did not finish within {timeout:g} s", "") from None
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    text = output.decode(errors="replace")
    if process.returncode < 0:
        raise CompilerFailedError(name, f"was killed by signal {-process.returncode}", text)
    if process.returncode:
        raise CompilerRejectedError(name, f"failed with status {process.returncode}", text)


_libraries: weakref.WeakSet[KernelLibrary] = weakref.WeakSet()


def _in_child_of_fork() -> None:
    for library in list(_libraries):
        library.free()


os.register_at_fork(after_in_child=_in_child_of_fork)


class KernelLibrary:
    """All kernels of this process under one set of settings; thread-safe.

    Holds loaded libraries for the life of the process: compiled graphs keep raw addresses into them.
    """

    def __init__(self, settings: BuildSettings) -> None:
        self._settings = settings
        self._cache: CodeCache | None = None
        self._lock = threading.Lock()
        self._loaded: dict[str, ctypes.CDLL] = {}
        self._addresses: dict[str, int] = {}
        self._libraries: dict[str, Path | bytes] = {}  # where each kernel's machine code is
        self._hung: CompilerHungError | None = None  # of a compiler that doesn't end for anything
        _libraries.add(self)

    def free(self) -> None:
        """In the child of a fork: another thread may have been building, which the child doesn't have."""
        self._lock = threading.Lock()

    @property
    def compiler(self) -> Compiler:
        """The compiler in use.

        Raises:
            CompilerMissingError: if there is none.
        """
        return find_compiler(self._settings.compiler)

    def names(self, kernels: Sequence[KernelSource]) -> tuple[str, ...]:
        """What each kernel is called in libraries.

        Raises:
            CompilerMissingError: there is no compiler, whose identity is part of a name.
        """
        compiler = self.compiler
        return tuple(kernel.hash(compiler) for kernel in kernels)

    def machine_code(self, names: Iterable[str]) -> dict[bytes, list[str]]:
        """The libraries that hold loaded kernels, each with those of `names` that are in it.

        Raises:
            OSError: a library was deleted meanwhile.
            KeyError: a kernel was not loaded by this process.
        """
        with self._lock:
            places = [(name, self._libraries[name]) for name in names]
        found: dict[bytes, list[str]] = {}
        read: dict[Path, bytes] = {}
        for name, place in places:
            if isinstance(place, Path):
                content = read[place] = read.get(place) or place.read_bytes()
            else:
                content = place
            found.setdefault(content, []).append(name)
        return found

    def adopt(self, content: bytes | memoryview, names: Sequence[str]) -> dict[str, int]:
        """The addresses of kernels in a library that is at hand as bytes.

        It is loaded from memory: a read-only home or a swept cache doesn't matter.

        Raises:
            OSError: it cannot be loaded, or lacks a kernel.
        """
        with self._lock:
            if not all(name in self._addresses for name in names):
                held = bytes(content)
                if not self._load(_as_file(held), names, held):
                    raise OSError("a stored library of kernels can't be loaded")
            return {name: self._addresses[name] for name in names}

    def addresses(self, kernels: Sequence[KernelSource]) -> tuple[int, ...]:
        """The address of each kernel, compiled if nobody has done so yet.

        Raises:
            BuildError: if the compiler is missing or fails.
        """
        if not kernels:
            return ()
        compiler = self.compiler
        names = [kernel.hash(compiler) for kernel in kernels]
        with self._lock:
            missing = {
                name: kernel
                for name, kernel in zip(names, kernels, strict=True)
                if name not in self._addresses
            }
            if missing:
                self._provide(missing, compiler)
            return tuple(self._addresses[name] for name in names)

    def _provide(self, missing: dict[str, KernelSource], compiler: Compiler) -> None:
        if self._cache is None:
            self._cache = open_cache(self._settings.cache_directory, self._settings.cache_bytes)
        cache = self._cache
        for name in list(missing):
            library = cache.find(name)
            if library is not None and self._load(library, (name,)):
                del missing[name]
        if not missing:
            return
        if self._hung is not None:
            raise self._hung.with_traceback(None)
        units = self._split(list(missing.items()))
        jobs = min(len(units), self._settings.parallel_jobs)
        try:
            if jobs <= 1:
                built = [self._build(cache, compiler, unit) for unit in units]
            else:
                with ThreadPoolExecutor(jobs) as pool:
                    built = list(pool.map(lambda unit: self._build(cache, compiler, unit), units))
        except CompilerHungError as error:
            if not self._ends(cache, compiler):
                self._hung = error  # or each graph to come would wait as long
            raise
        for unit, library in zip(units, built, strict=True):
            names = [name for name, _ in unit]
            if not self._load(library, names):
                raise BuildError(
                    f"{library} was compiled but can't be loaded; the graph runs with torch's operators"
                )

    def _ends(self, cache: CodeCache, compiler: Compiler) -> bool:
        """Whether the compiler comes to an end with the smallest kernel, however it ends."""
        try:
            with cache.scratch() as scratch:
                source, target = scratch / "unit.cpp", scratch / "unit.so"
                source.write_text("int nothing;\n", encoding="utf-8")
                timeout = min(self._settings.timeout, _PROBE)
                _run(compiler.command(str(source), str(target)), timeout, scratch)
        except CompilerHungError:
            return False
        except (CompilerFailedError, OSError):
            pass
        return True

    def _split(
        self, kernels: list[tuple[str, KernelSource]]
    ) -> list[list[tuple[str, KernelSource]]]:
        """Units of about equal text length, as many as can be compiled at once or as the size limit asks."""
        per_unit, jobs = self._settings.kernels_per_unit, self._settings.parallel_jobs
        count = max(min(jobs, (len(kernels) + 2) // 3), (len(kernels) + per_unit - 1) // per_unit)
        units: list[list[tuple[str, KernelSource]]] = [[] for _ in range(count)]
        load = [0] * count
        for kernel in sorted(kernels, key=lambda item: -len(item[1].text)):
            lightest = load.index(min(load))
            units[lightest].append(kernel)
            load[lightest] += len(kernel[1].text) + 500
        return [unit for unit in units if unit]

    def _build(
        self, cache: CodeCache, compiler: Compiler, unit: list[tuple[str, KernelSource]]
    ) -> Path:
        text = _unit_text(unit)
        names = [name for name, _ in unit]
        key = hashlib.sha256(f"{compiler.identity}\0{text}".encode()).hexdigest()[:32]
        with self._guard(cache, key), contextlib.ExitStack() as held:
            found = cache.find(names[0])
            if found is not None and found.stem == key:
                return found  # another process built the same unit while this one waited
            try:
                scratch = held.enter_context(cache.scratch())
            except OSError:
                self._cache = cache = open_cache(None, self._settings.cache_bytes)
                scratch = held.enter_context(cache.scratch())
            try:
                source, target = scratch / "unit.cpp", scratch / "unit.so"
                source.write_text(text, encoding="utf-8")
                _run(compiler.command(str(source), str(target)), self._settings.timeout, scratch)
                if not target.exists():
                    raise CompilerFailedError(
                        Path(compiler.path).name, "did not produce a library", ""
                    )
                return cache.publish(key, target, names)
            except OSError as error:
                raise BuildError(
                    f"compiled kernels can't be written to {cache.directory}: {error.strerror}"
                ) from error

    @staticmethod
    def _guard(cache: CodeCache, key: str) -> contextlib.AbstractContextManager[object]:
        """One process compiles a unit, others wait; where locks don't work, everybody compiles."""
        if not cache.persistent:
            return contextlib.nullcontext()
        lock = filelock.FileLock(cache.directory / f"{key[:2]}.lock", timeout=300)
        try:
            lock.acquire()
        except (OSError, filelock.Timeout):
            return contextlib.nullcontext()
        return contextlib.closing(_Release(lock))

    def _load(self, library: Path, names: Iterable[str], content: bytes | None = None) -> bool:
        key = str(library) if content is None else hashlib.sha256(content).hexdigest()
        try:
            handle = self._loaded.get(key)
            if handle is None:
                handle = ctypes.CDLL(str(library))
            found = {
                name: ctypes.cast(getattr(handle, f"k_{name}"), ctypes.c_void_p).value or 0
                for name in names
            }
        except (OSError, AttributeError):
            return False
        self._loaded[key] = handle
        self._addresses.update(found)
        self._libraries.update(dict.fromkeys(found, library if content is None else content))
        return True


def _as_file(content: bytes) -> Path:
    """A path under which `content` can be loaded.

    The descriptor stays open: the loader knows libraries by their path, so that no two may have the same, and
    profilers read the code from it.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("compile-api-kernels", os.MFD_CLOEXEC)
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        return Path(f"/proc/self/fd/{descriptor}")
    descriptor, name = tempfile.mkstemp(suffix=".so")
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    return Path(name)


class _Release:
    def __init__(self, lock: filelock.BaseFileLock) -> None:
        self._lock = lock

    def close(self) -> None:
        self._lock.release()


@lru_cache(maxsize=8)
def library_for(settings: BuildSettings) -> KernelLibrary:
    """The process's kernel library under `settings`."""
    return KernelLibrary(settings)
