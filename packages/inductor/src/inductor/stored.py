"""A compiled graph as bytes, and from bytes in another process.

Comes in: the parts of a call program. Goes out: bytes that hold the program's words, its objects, the machine code of
its kernels (a card's device code too) and, read only when it is needed, its graph; from them a launcher that needs
neither compiler, nor Triton, nor graph. Invariant: a restored launcher runs the same words over the same kernels; only
the addresses of the kernels are put in anew.
"""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inductor.errors import InductorError
from inductor.ir.counters import Counters
from inductor.ir.nodes import WithNumbers
from inductor.runtime.cpp_build import library_for
from inductor.runtime.errors import BuildError
from inductor.runtime.heap import keep_heap
from inductor.runtime.launch import conform, native_launcher, reserve
from inductor.runtime.reference import ReferenceCallable
from inductor.runtime.replay import Replayed
from inductor.runtime.settings import BuildSettings
from inductor.runtime.triton_build import TritonBinary
from primtorch.serial import Foreign, NotStorable, Writer, read_graph, unpack, write_graph

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from inductor.runtime.launch import NativeLauncher
    from primtorch.serial import Reader

__all__ = ["CallProgram", "restore", "store", "store_replayed"]

_RECORDS = {"Counters": Counters, "WithNumbers": WithNumbers}


@dataclass(frozen=True, slots=True)
class CallProgram:
    """What a launcher is made of.

    `ranges` names the kernels for a profiler, in order. `symbols` says where in the code which kernel's address stands,
    `binaries` where the handle of which device code; `device` is the card's number, or -1.
    """

    code: array[int]
    registers: array[int]
    slots: int
    inputs: int
    objects: tuple[Any, ...]
    threshold: int
    keep: bool
    device: int
    symbols: tuple[tuple[int, str], ...]
    binaries: tuple[tuple[int, TritonBinary], ...] = ()
    ranges: tuple[bytes, ...] = ()

    def launcher(self, native: NativeLauncher, recover: Any) -> Any:
        """The launcher; `recover` runs the graph when a kernel refuses its inputs."""
        if self.device < 0:
            keep_heap()
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
            ranges=self.ranges,
        )


def store(parts: CallProgram, module: GraphModule, face: Any, settings: BuildSettings) -> bytes:
    """The bytes of a launcher `face` that was made of `parts` for the graph `module`.

    Raises:
        NotStorable: it holds what has no meaning in another process.
    """
    writer = Writer(_RECORDS)
    try:
        libraries = library_for(settings).machine_code(dict.fromkeys(n for _, n in parts.symbols))
    except (OSError, KeyError) as error:
        raise NotStorable(f"the machine code of a kernel is gone: {error}") from None
    code = array("q", parts.code)
    for place, _ in (*parts.symbols, *parts.binaries):
        code[place] = 0
    graph = Writer()
    data = {
        "code": writer.blob(code.tobytes()),
        "registers": writer.blob(parts.registers.tobytes()),
        "numbers": [parts.slots, parts.inputs, parts.threshold, parts.keep],
        "objects": [writer.value(value) for value in parts.objects],
        "ranges": [name.decode() for name in parts.ranges],
        "symbols": [list(symbol) for symbol in parts.symbols],
        "libraries": [[writer.blob(content), names] for content, names in libraries.items()],
        "card": _card_data(parts, writer),
        "layouts": writer.value(face.output_layouts),
        "graph": writer.blob(graph.pack(write_graph(module, graph, values=False))),
    }
    return writer.pack(data)


def _card_data(parts: CallProgram, writer: Writer) -> Any:
    """The card and the device code of each kernel: once, with all the places of its handle."""
    if parts.device < 0:
        return None
    from inductor.devices.gpu import card_at  # loads code generators: not for a CPU's artifact

    places: dict[TritonBinary, list[int]] = {}
    for place, binary in parts.binaries:
        places.setdefault(binary, []).append(place)
    kernels = [
        [writer.blob(binary.binary), binary.name, binary.shared, binary.warps, where]
        for binary, where in places.items()
    ]
    return [parts.device, list(card_at(parts.device).identity(parts.device)), kernels]


def _restore_card(data: Any, reader: Reader, code: array[int]) -> int:
    """Load the device code on the card that it was compiled for; returns the card's number, or -1."""
    if data is None:
        return -1
    from inductor.devices.gpu import card_at  # as above

    index, identity, kernels = data
    try:
        card = card_at(index)
        if list(card.identity(index)) != identity:
            raise Foreign(f"compiled for {identity}, here is {list(card.identity(index))}")
        card.direct_calls()
        binaries = [
            TritonBinary(bytes(reader.blobs[blob]), name, shared, warps)
            for blob, name, shared, warps, _ in kernels
        ]
        functions = card.load(binaries, index)
    except (BuildError, InductorError, RuntimeError, AssertionError) as error:
        raise Foreign(f"the kernels of a GPU can't be loaded: {error}") from error
    for function, (*_, places) in zip(functions, kernels, strict=True):
        for place in places:
            code[place] = function.handle
    return int(index)


def store_replayed(inner: bytes, static: tuple[bool, ...], layouts: Any) -> bytes:
    """The bytes of a program that is recorded and replayed: those of its launcher, and what to keep in place."""
    writer = Writer()
    data = {"replayed": list(static), "inner": writer.blob(inner), "layouts": writer.value(layouts)}
    return writer.pack(data)


def _restore_replayed(data: Any, reader: Reader, content: bytes, compiler: str) -> Any:
    try:
        static, inner = tuple(map(bool, data["replayed"])), reader.blobs[data["inner"]]
        layouts = reader.value(data["layouts"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Foreign(f"a stored call program can't be used: {error}") from None
    made: Any = Replayed(restore(inner, compiler), static)
    made.boxed, made.output_layouts, made.store_part = True, layouts, lambda: content
    return made


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
    data, reader = unpack(content, _RECORDS)
    if "replayed" in data:
        return _restore_replayed(data, reader, bytes(content), compiler)
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
        card = _restore_card(data["card"], reader, code)
        slots, inputs, threshold, keep = data["numbers"]
        parts = CallProgram(
            code=code,
            registers=array("q", bytes(reader.blobs[data["registers"]])),
            slots=slots,
            inputs=inputs,
            objects=tuple(reader.value(value) for value in data["objects"]),
            threshold=threshold,
            keep=keep,
            device=card,
            symbols=tuple((place, name) for place, name in data["symbols"]),
            ranges=tuple(name.encode() for name in data["ranges"]),
        )
        made = parts.launcher(native, _LazyReference(reader.blobs[data["graph"]]))
        made.boxed, made.output_layouts = True, reader.value(data["layouts"])
    except (OSError, KeyError, IndexError, TypeError, ValueError) as error:
        raise Foreign(f"a stored call program can't be used: {error}") from None
    kept = bytes(content)
    made.store_part = lambda: kept
    return made
