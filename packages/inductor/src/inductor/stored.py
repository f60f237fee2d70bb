"""A compiled graph as bytes, and from bytes in another process.

Comes in: the parts of a call program whose kernels run on the CPU. Goes out: bytes that hold the program's words,
its objects, the machine code of its kernels and, read only when it is needed, its graph; from them a launcher that
needs neither compiler nor graph. Invariant: a restored launcher runs the same words over the same kernels; only
the addresses of the kernels are put in anew.
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inductor.runtime.cpp_build import library_for
from inductor.runtime.launch import conform, native_launcher, reserve
from inductor.runtime.reference import ReferenceCallable
from inductor.runtime.settings import BuildSettings
from primtorch.serial import Foreign, NotStorable, Writer, read_graph, unpack, write_graph

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from inductor.runtime.launch import NativeLauncher

__all__ = ["CallProgram", "restore", "store"]


@dataclass(frozen=True, slots=True)
class CallProgram:
    """What a launcher is made of; `symbols` says where in the code which kernel's address stands."""

    code: array[int]
    registers: array[int]
    slots: int
    inputs: int
    objects: tuple[Any, ...]
    threshold: int
    keep: bool
    device: int
    symbols: tuple[tuple[int, str], ...]

    def launcher(self, native: NativeLauncher, recover: Any) -> Any:
        """The launcher; `recover` runs the graph when a kernel refuses its inputs."""
        return native.launcher(
            code=self.code,
            registers=self.registers,
            slots=self.slots,
            inputs=self.inputs,
            objects=self.objects,
            recover=recover,
            conform=conform,
            reserve=reserve,
            threshold=self.threshold,
            keep=self.keep,
            device=self.device,
        )


def store(parts: CallProgram, module: GraphModule, face: Any, settings: BuildSettings) -> bytes:
    """The bytes of a launcher `face` that was made of `parts` for the graph `module`.

    Raises:
        NotStorable: it runs on a GPU, or holds what has no meaning in another process.
    """
    if parts.device >= 0:
        raise NotStorable("the kernels of a GPU are not stored")
    writer = Writer()
    try:
        libraries = library_for(settings).machine_code(dict.fromkeys(n for _, n in parts.symbols))
    except (OSError, KeyError) as error:
        raise NotStorable(f"the machine code of a kernel is gone: {error}") from None
    code = array("q", parts.code)
    for place, _ in parts.symbols:
        code[place] = 0
    graph = Writer()
    data = {
        "code": writer.blob(code.tobytes()),
        "registers": writer.blob(parts.registers.tobytes()),
        "numbers": [parts.slots, parts.inputs, parts.threshold, parts.keep],
        "objects": [writer.value(value) for value in parts.objects],
        "symbols": [list(symbol) for symbol in parts.symbols],
        "libraries": [[writer.blob(content), names] for content, names in libraries.items()],
        "layouts": writer.value(face.output_layouts),
        "graph": writer.blob(graph.pack(write_graph(module, graph, values=False))),
    }
    return writer.pack(data)


class _LazyReference:
    """The graph of a restored program, read when a kernel refuses its inputs."""

    boxed = True

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._lock = threading.Lock()
        self._run: ReferenceCallable | None = None

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run the graph by torch's operators; empties `inputs`."""
        with self._lock:
            if self._run is None:
                data, reader = unpack(self._content)
                self._run = ReferenceCallable(read_graph(data, reader))
        return self._run(inputs)


def restore(content: bytes | memoryview, compiler: str = "") -> Any:
    """The launcher of bytes that `store` gave.

    Args:
        content: the bytes.
        compiler: as in `InductorOptions`; says which library of kernels the process keeps them in.

    Raises:
        Foreign: the launcher, the machine code or the data don't fit this process.
    """
    native = native_launcher()
    if native is None:
        raise Foreign("the C launcher is not built")
    data, reader = unpack(content)
    settings = BuildSettings.from_environment()
    if compiler:
        settings = BuildSettings(compiler, settings.cache_directory, settings.timeout,
                                 settings.cache_bytes, settings.parallel_jobs)  # fmt: skip
    library = library_for(settings)
    addresses: dict[str, int] = {}
    try:
        for blob, names in data["libraries"]:
            addresses.update(library.adopt(reader.blobs[blob], names))
        code = array("q", bytes(reader.blobs[data["code"]]))
        for place, name in data["symbols"]:
            code[place] = addresses[name]
        slots, inputs, threshold, keep = data["numbers"]
        parts = CallProgram(
            code=code,
            registers=array("q", bytes(reader.blobs[data["registers"]])),
            slots=slots,
            inputs=inputs,
            objects=tuple(reader.value(value) for value in data["objects"]),
            threshold=threshold,
            keep=keep,
            device=-1,
            symbols=tuple((place, name) for place, name in data["symbols"]),
        )
        made = parts.launcher(native, _LazyReference(reader.blobs[data["graph"]]))
        made.boxed, made.output_layouts = True, reader.value(data["layouts"])
    except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
        raise Foreign(f"a stored call program can't be used: {error}") from None
    kept = bytes(content)
    made.store_part = lambda: kept
    return made
