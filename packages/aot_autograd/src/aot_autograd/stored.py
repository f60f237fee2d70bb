"""A compiled function, forward and backward, as bytes, and from bytes in another process.

Comes in: the callable's contract and its compiled parts, each of which knows its own bytes. Goes out: bytes, and from
them a callable that was never traced. A backward that nobody asked for yet is stored as its graph and compiled when
it is; the function's own graph, for derivatives of derivatives, is read only when they are asked for. Invariant:
a restored callable has the contract of the one that was stored.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd import metadata as contract
from aot_autograd.backwards import Backwards
from aot_autograd.connections import Connections
from aot_autograd.interpret import GraphFunction
from aot_autograd.partition import Saved
from aot_autograd.runtime import inference_callable
from aot_autograd.training import Compiled, training_callable
from primtorch.serial import Foreign, NotStorable, Writer, read_graph, unpack, write_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from aot_autograd.compiling import Toolchain
    from aot_autograd.double import DoubleBackward
    from aot_autograd.runtime import Boxed

__all__ = ["Origin", "restored", "store_inference", "store_training"]

_RECORDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        contract.FunctionMetadata,
        contract.ViewStep,
        contract.InputAlias,
        contract.GraphOutput,
        contract.SameAs,
        contract.Constant,
        contract.InputMutation,
        contract.SharedStorage,
        Connections,
        Saved,
    )
}


class Origin:
    """The captured graph that a function was traced from, for the bytes only; None where it was no graph.

    `order` says for each placeholder which distinct input it is.
    """

    __slots__ = ("content", "graph", "order")

    def __init__(
        self, graph: fx.GraphModule | None, order: Sequence[int], content: bytes | None = None
    ) -> None:
        self.graph = graph
        self.order = tuple(order)
        self.content = content

    def pack(self) -> bytes:
        """The graph as bytes.

        Raises:
            NotStorable: there is none, or it cannot be written.
        """
        if self.content is None:
            if self.graph is None:
                raise NotStorable("the function was not traced from a captured graph")
            writer = Writer()
            self.content = writer.pack(write_graph(self.graph, writer, values=False))
            self.graph = None
        return self.content

    def function(self) -> Callable[..., Any]:
        """The function, of its distinct inputs, by running the graph."""
        data, reader = unpack(self.pack())
        run = GraphFunction(read_graph(data, reader))
        order = self.order

        def function(*distinct: Any) -> Sequence[Any]:
            return run(*[distinct[index] for index in order])

        return function


def _part(compiled: Any, what: str) -> bytes:
    stored = getattr(compiled, "store_part", None)
    if stored is None:
        raise NotStorable(f"the compiled {what} has no stored form")
    content: bytes = stored()
    return content


def store_inference(compiled: Boxed, metadata: contract.FunctionMetadata, *, tracks: bool) -> bytes:
    """The bytes of a function without a backward.

    Raises:
        NotStorable: a part of it means nothing in another process.
    """
    writer = Writer(_RECORDS)
    data = {
        "metadata": writer.value(metadata),
        "tracks": tracks,
        "part": writer.blob(_part(compiled, "graph")),
    }
    return writer.pack(data)


def store_training(compiled: Compiled, origin: Origin) -> bytes:
    """The bytes of a function with a backward; see `store_inference`."""
    if compiled.metadata.shared and compiled.double is not None:
        raise NotStorable("derivatives of derivatives need to know how inputs share their storage")
    if compiled.metadata.made_of:
        raise NotStorable("a gradient is a tensor made of tensors")
    writer = Writer(_RECORDS)
    stored: dict[str, Any] = {"graph": None}
    with compiled.backward.settled() as graph:
        if graph is not None:
            inner = Writer()
            stored["graph"] = writer.blob(inner.pack(write_graph(graph, inner)))
    stored["parts"] = [
        [absent, writer.blob(_part(backward.deferred.made, "backward")), backward.kept]
        for absent, backward in compiled.backward.stored()
    ]
    if stored["graph"] is None and not stored["parts"]:
        raise NotStorable("its backward could not be compiled")
    data = {
        "metadata": writer.value(compiled.metadata),
        "forward": writer.blob(_part(compiled.forward, "forward")),
        "backward": stored,
        "saved": writer.value(compiled.saved),
        "outputs": [compiled.forward_outputs, compiled.total_outputs],
        "seeds": list(compiled.seeds),
        "watched": compiled.watched,
        "order": list(origin.order),
        "function": None if compiled.double is None else writer.blob(origin.pack()),
    }
    return writer.pack(data)


def storable_training(compiled: Compiled, origin: Origin) -> Boxed:
    """The callable of a training graph, which can be stored, and says when its backward was compiled."""
    call = training_callable(compiled)
    call.store = lambda: store_training(compiled, origin)  # type: ignore[attr-defined]
    call.when_complete = compiled.backward.when_made  # type: ignore[attr-defined]
    return call


def storable_inference(
    compiled: Boxed, metadata: contract.FunctionMetadata, *, tracks: bool
) -> Boxed:
    """The callable of a graph without a backward, which can be stored."""
    call = inference_callable(compiled, metadata, tracks=tracks)
    content = partial(store_inference, compiled, metadata, tracks=tracks)
    with contextlib.suppress(AttributeError):  # somebody else's callable, which takes no attributes
        call.store = content  # type: ignore[attr-defined]
    return call


class _Loading:
    """Reads a graph when it is first asked for."""

    __slots__ = ("_blob", "_graph")

    def __init__(self, blob: memoryview) -> None:
        self._blob: memoryview | None = blob
        self._graph: fx.GraphModule | None = None

    def __call__(self) -> fx.GraphModule:
        if self._graph is None:
            assert self._blob is not None, "the bytes are kept until they were read"
            nodes, inner = unpack(self._blob)
            self._graph, self._blob = read_graph(nodes, inner), None
        return self._graph


class _LazyDouble:
    """Derivatives of derivatives of a restored function; made when they are first asked for."""

    __slots__ = ("_lock", "_made", "_metadata", "_origin", "_tools")

    def __init__(
        self, origin: Origin, metadata: contract.FunctionMetadata, tools: Toolchain
    ) -> None:
        self._origin = origin
        self._metadata = metadata
        self._tools = tools
        self._lock = threading.Lock()
        self._made: dict[Any, DoubleBackward] = {}

    def __call__(
        self,
        inputs: list[Any],
        seeds: list[Any],
        tangents: list[Any],
        ends: int = 0,
        results: Sequence[Any] = (),
    ) -> Any:
        return self.for_inputs(inputs)(inputs, seeds, tangents, ends, results)

    def for_inputs(self, inputs: list[Any]) -> DoubleBackward:
        """Those for inputs of these shapes."""
        from aot_autograd.compiling import compile_flat, describe_inputs  # they import this module
        from aot_autograd.double import DoubleBackward

        key = tuple(
            (one.shape, one.stride(), one.dtype) if isinstance(one, torch.Tensor) else one
            for one in inputs
        )
        with self._lock:
            found = self._made.get(key)
            if found is None:
                found = self._made[key] = DoubleBackward(
                    self._origin.function(),
                    describe_inputs(inputs),
                    self._metadata,
                    self._tools,
                    compile_flat,
                )
        return found


def restored(
    content: bytes | memoryview, tools: Toolchain, restore_part: Callable[[memoryview], Boxed]
) -> Boxed:
    """The callable of bytes that one of the above gave.

    Raises:
        Foreign: the bytes are damaged, or a part doesn't fit this process.
    """
    data, reader = unpack(content, _RECORDS)
    try:
        metadata = reader.value(data["metadata"])
        if "part" in data:
            part = restore_part(reader.blobs[data["part"]])
            return storable_inference(part, metadata, tracks=bool(data["tracks"]))
        origin = Origin(None, data["order"])
        if data["function"] is not None:
            origin.content = bytes(reader.blobs[data["function"]])
        stored = data["backward"]
        parts = {
            absent: (restore_part(reader.blobs[part]), None if kept is None else tuple(kept))
            for absent, part, kept in stored["parts"]
        }
        load = None
        if stored["graph"] is not None:
            load = _Loading(reader.blobs[stored["graph"]])
        backward = Backwards(tools.deferred, metadata, load, parts)
        forward_outputs, total_outputs = data["outputs"]
        compiled = Compiled(
            forward=restore_part(reader.blobs[data["forward"]]),
            backward=backward,
            saved=reader.value(data["saved"]),
            metadata=metadata,
            forward_outputs=forward_outputs,
            total_outputs=total_outputs,
            double=None if data["function"] is None else _LazyDouble(origin, metadata, tools),
            seeds=tuple(data["seeds"]),
            watched=bool(data["watched"]),
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Foreign(f"a stored function is damaged: {error!r}") from None
    return storable_training(compiled, origin)
