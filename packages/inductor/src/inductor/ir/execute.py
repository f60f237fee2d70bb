"""Runs a whole graph or program step by step in torch: the oracle, and the executor of last resort.

Kernels and loop nodes run through `interpret`, operator calls by calling the operator. Nothing is
compiled and nothing is planned: each buffer has a storage of its own until its last use, but for those that a program
computes in an input's memory.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from inductor.ir.index import storage_length
from inductor.ir.interpret import run_body
from inductor.ir.kernel import Kernel, Program
from inductor.ir.nodes import LoopNode, OperatorCall, View
from primtorch.symbolic import Expression, Symbol, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from inductor.ir.nodes import Buffer, Graph
    from inductor.ir.operations import Size


def flat_storage(tensor: Tensor, length: int) -> Tensor:
    """The elements from a tensor's first on, one-dimensional, sharing memory."""
    return torch.as_strided(tensor, (length,), (1,), tensor.storage_offset())


def _uncounted(tensor: Tensor) -> Tensor:
    """The same memory in a tensor whose changes are not the given one's: who gave it counts them."""
    alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage()
    return alias.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


class Memory:
    """Storages of buffers during one run."""

    def __init__(
        self,
        buffers: Mapping[str, Buffer],
        sizes: Mapping[Symbol, int],
        scalars: Mapping[str, Any],
    ) -> None:
        self._buffers = buffers
        self.sizes = sizes
        self.scalars = scalars
        self.storages: dict[str, Tensor] = {}

    def size(self, value: Size) -> int:
        """A size in this run."""
        return evaluate(value, self.sizes)

    def adopt(self, name: str, tensor: Tensor) -> None:
        """Let a buffer be a tensor's memory; copies where the layout differs from the promise."""
        buffer = self._buffers[name]
        shape = tuple(map(self.size, buffer.shape))
        stride = tuple(map(self.size, buffer.stride))
        if any(
            ours != theirs and extent > 1
            for ours, theirs, extent in zip(stride, tensor.stride(), shape, strict=True)
        ):
            laid = torch.empty_strided(shape, stride, dtype=buffer.dtype, device=tensor.device)
            laid.data.copy_(tensor)  # whose version is not the result's
            tensor = laid
        self.storages[name] = flat_storage(tensor, self._length(buffer))

    def _length(self, buffer: Buffer) -> int:
        shape = tuple(map(self.size, buffer.shape))
        return evaluate(storage_length(shape, tuple(map(self.size, buffer.stride))), self.sizes)

    def allocate(self, name: str) -> Tensor:
        """A buffer's storage, made at its first use."""
        found = self.storages.get(name)
        if found is None:
            buffer = self._buffers[name]
            found = torch.empty(self._length(buffer), dtype=buffer.dtype, device=buffer.device)
            self.storages[name] = found
        return found

    def tensor(self, view: View) -> Tensor:
        """A window as a tensor."""
        storage = self.storages[view.buffer]
        if view.dtype != storage.dtype:
            storage = storage.view(view.dtype)
        return torch.as_strided(
            storage,
            tuple(map(self.size, view.shape)),
            tuple(map(self.size, view.stride)),
            storage.storage_offset() + self.size(view.offset),
        )


def run_graph(graph: Graph, arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Run a graph node by node, unfused."""
    return _run(graph, graph.nodes, arguments)


def run_program(
    program: Program,
    arguments: Sequence[Any],
    run_kernel: Callable[[Kernel, Memory], None] | None = None,
) -> tuple[Any, ...]:
    """Run a program step by step; `run_kernel` takes the kernels from the reference interpreter."""
    in_place = inputs_written(program)
    return _run(program.graph, program.schedule.steps, arguments, run_kernel, in_place)


def inputs_written(program: Program) -> dict[str, str]:
    """The buffers that lie in the memory of an input, with the input."""
    given = {entry.name for entry in program.graph.inputs}
    places = program.memory.places
    return {name: place.of for name, place in places.items() if place.of and place.of in given}


def _run(
    graph: Graph,
    steps: Iterable[LoopNode | Kernel | OperatorCall],
    arguments: Sequence[Any],
    run_kernel: Callable[[Kernel, Memory], None] | None = None,
    in_place: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Any, ...]:
    sizes: dict[Symbol, int] = {}
    scalars: dict[str, Any] = {}
    given: dict[str, Tensor] = {}
    for entry, argument in zip(graph.inputs, arguments, strict=True):
        match entry.kind:
            case "tensor":
                given[entry.name] = argument
            case "scalar":
                scalars[entry.name] = argument
            case "size":
                if isinstance(entry.symbol, Symbol):
                    sizes[entry.symbol] = int(argument)
    memory = Memory(graph.buffers, sizes, scalars)
    for name, tensor in {**given, **graph.constants}.items():
        memory.adopt(name, tensor)
    for name, old in in_place.items():
        memory.storages[name] = _uncounted(memory.storages[old])
    for step in steps:
        if isinstance(step, OperatorCall):
            call_operator(step, memory)
        elif isinstance(step, Kernel) and run_kernel is not None:
            run_kernel(step, memory)
        else:
            run_loops(step, memory)
    return tuple(_result(graph, value, given, memory) for value in graph.outputs)


def run_loops(step: LoopNode | Kernel, memory: Memory) -> None:
    """Run a loop node or a kernel."""
    locals_: dict[str, int] = {}
    storages: dict[str, Tensor] = {}
    if isinstance(step, Kernel):
        for local in step.locals:
            locals_[local.name] = memory.size(local.length)
            storages[local.name] = torch.empty(0, dtype=local.dtype, device=step.device)
    for name in step.body.reads | step.body.writes:
        if name not in storages:
            storages[name] = memory.allocate(name)
    run_body(step.body, storages, memory.sizes, memory.scalars, locals_)
    if isinstance(step, Kernel) and step.ending is not None:
        run_loops(step.ending.kernel, memory)


def call_operator(step: OperatorCall, memory: Memory) -> None:
    """Call an operator and keep its results."""
    args = [_argument(value, memory) for value in step.args]
    kwargs = {key: _argument(value, memory) for key, value in step.kwargs.items()}
    results: list[Any] = []
    _flatten(step.operator(*args, **kwargs), results)
    for name, result in zip(step.outputs, results, strict=True):
        if name is not None:
            memory.adopt(name, result)


def _flatten(value: Any, into: list[Any]) -> None:
    if isinstance(value, list | tuple):
        for item in value:
            _flatten(item, into)
    else:
        into.append(value)


def _argument(value: Any, memory: Memory) -> Any:
    if isinstance(value, View):
        return memory.tensor(value)
    if isinstance(value, tuple | list):
        return [_argument(item, memory) for item in value]
    if isinstance(value, Expression):
        return memory.size(value)
    return value


def _result(graph: Graph, value: Any, given: Mapping[str, Tensor], memory: Memory) -> Any:
    if isinstance(value, View):
        tensor = given.get(value.buffer)
        if tensor is not None and value == graph.buffers[value.buffer].view:
            return tensor
        return memory.tensor(value)
    return memory.size(value) if isinstance(value, Expression) else value
