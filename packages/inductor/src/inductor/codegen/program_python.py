"""The call program's Python twin: the same steps, kernels through ctypes, operators through Python.

Runs where the C extension was not built; in tests it is the oracle of the C launcher. Invariant: what it returns, keeps
alive and raises is the same as in `_launch.c`.
"""

from __future__ import annotations

import ctypes
import struct
from typing import TYPE_CHECKING, Any

import torch

from inductor.devices import BuiltKernel, CalledKernel
from inductor.devices.built import flat_length
from inductor.errors import PromiseError
from inductor.ir import Kernel, OperatorCall, View
from inductor.ir.execute import inputs_written
from inductor.runtime.launch import conform
from primtorch.symbolic import Expression, Symbol, evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from inductor.ir import Buffer, Program, Size
    from inductor.runtime.reference import ReferenceCallable

__all__ = ["PythonLauncher"]

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


class PythonLauncher:
    """A program as a boxed callable."""

    boxed = True

    def __init__(
        self,
        program: Program,
        built: Mapping[str, BuiltKernel | CalledKernel],
        reference: ReferenceCallable,
    ) -> None:
        self._program = program
        self._built = built
        self._functions = {
            name: _FUNCTION(kernel.address)
            for name, kernel in built.items()
            if isinstance(kernel, BuiltKernel)
        }
        self._reference = reference
        self._broken = False
        self._in_place = inputs_written(program)
        self._last_fallible = max(
            (
                number
                for number, step in enumerate(program.schedule.steps)
                if (_can_refuse(built[step.name]) if isinstance(step, Kernel) else step.is_untried)
            ),
            default=-1,
        )

    def __call__(self, inputs: list[Any]) -> tuple[Any, ...]:
        """Run the program; empties `inputs`."""
        graph = self._program.graph
        if len(inputs) != len(graph.inputs):
            raise TypeError(f"a compiled graph takes one list of {len(graph.inputs)} inputs")
        kept = list(inputs)
        inputs.clear()
        if self._broken:
            return self._reference(kept)
        tensors, sizes, scalars = self._read(kept)
        for name, old in self._in_place.items():
            tensors[name] = tensors[old]
        with torch.no_grad():
            for number, step in enumerate(self._program.schedule.steps):
                if number > self._last_fallible:
                    kept.clear()
                if isinstance(step, Kernel):
                    if self._kernel(step, tensors, sizes, scalars):
                        return self._reference(kept)
                else:
                    try:
                        self._call(step, tensors, sizes)
                    except PromiseError as error:
                        self._reference.take_over(error)
                        self._broken = True
                        if len(kept) < len(graph.inputs):
                            raise
                        return self._reference(kept)
                for name in self._program.memory.release[number]:
                    tensors.pop(name, None)
            return self._results(tensors, sizes)

    def _read(
        self, inputs: list[Any]
    ) -> tuple[dict[str, torch.Tensor], dict[Symbol, int], dict[str, Any]]:
        """Tensors, sizes and scalars by their names."""
        tensors: dict[str, torch.Tensor] = dict(self._program.graph.constants)
        sizes: dict[Symbol, int] = {}
        scalars: dict[str, Any] = {}
        for item, value in zip(self._program.graph.inputs, inputs, strict=True):
            match item.kind:
                case "tensor":
                    if not value.data_ptr() and value.numel():  # zeros without memory
                        value = conform(value, tuple(value.shape), value.stride())  # noqa: PLW2901 - the input in memory
                    tensors[item.name] = value
                case "size":
                    if isinstance(item.symbol, Symbol):
                        sizes[item.symbol] = int(value)
                case "scalar":
                    scalars[item.name] = value
                    if isinstance(item.symbol, Symbol):
                        sizes[item.symbol] = int(value)
        return tensors, sizes, scalars

    def _kernel(
        self,
        kernel: Kernel,
        tensors: dict[str, torch.Tensor],
        sizes: Mapping[Symbol, int],
        scalars: Mapping[str, Any],
    ) -> int:
        for argument in kernel.arguments:
            if argument.access != "read" and argument.buffer not in tensors:
                tensors[argument.buffer] = _empty(
                    self._program.graph.buffers[argument.buffer], sizes
                )
        built = self._built[kernel.name]
        if isinstance(built, CalledKernel):
            self._call_kernel(built, tensors, sizes, scalars)
            return 0
        pointers = [tensors[argument.buffer].data_ptr() for argument in kernel.arguments]
        words = [evaluate(size, sizes) for size in kernel.sizes if isinstance(size, Symbol)]
        for name, dtype in kernel.scalars:
            value = scalars[name]
            words.append(
                struct.unpack("q", struct.pack("d", value))[0]
                if dtype.is_floating_point
                else int(value)
            )
        words += built.source.literals
        addresses = (ctypes.c_void_p * (len(pointers) + 1))(*pointers)
        values = (ctypes.c_int64 * (len(words) + 1))(*words)
        threads = torch.get_num_threads() if evaluate(kernel.decisions.work, sizes) > 1 << 17 else 1
        function = self._functions[kernel.name]
        return int(function(ctypes.addressof(addresses), ctypes.addressof(values), threads))

    def _call_kernel(
        self,
        called: CalledKernel,
        tensors: Mapping[str, torch.Tensor],
        sizes: Mapping[Symbol, int],
        scalars: Mapping[str, Any],
    ) -> None:
        kernel, buffers = called.kernel, self._program.graph.buffers
        flat = []
        for argument in kernel.arguments:
            tensor = tensors[argument.buffer]
            length = evaluate(flat_length(buffers[argument.buffer]), sizes)
            flat.append(torch.as_strided(tensor, (length,), (1,), tensor.storage_offset()))
        values = [evaluate(size, sizes) for size in kernel.sizes if isinstance(size, Symbol)]
        called.run(flat, values, [scalars[name] for name, _ in kernel.scalars])

    def _call(
        self, step: OperatorCall, tensors: dict[str, torch.Tensor], sizes: Mapping[Symbol, int]
    ) -> None:
        args = [self._concrete(value, tensors, sizes) for value in step.args]
        kwargs = {
            name: self._concrete(value, tensors, sizes) for name, value in step.kwargs.items()
        }
        result = step.operator(*args, **kwargs)
        found = _flat(result)
        if len(found) != len(step.outputs):
            raise PromiseError(
                f"{step.operator} returned {len(found)} results where {len(step.outputs)} were promised"
            )
        for name, value in zip(step.outputs, found, strict=True):
            if name is None or name not in self._program.read_buffers:
                continue
            buffer = self._program.graph.buffers[name]
            if not isinstance(value, torch.Tensor) or value.dtype is not buffer.dtype:
                raise PromiseError(f"{step.operator} did not return the {buffer.dtype} it promised")
            shape = tuple(evaluate(size, sizes) for size in buffer.shape)
            stride = tuple(evaluate(size, sizes) for size in buffer.stride)
            fits = tuple(value.shape) == shape and all(
                size <= 1 or have == want
                for size, have, want in zip(shape, value.stride(), stride, strict=True)
            )
            tensors[name] = value if fits or 0 in shape else conform(value, shape, stride)

    def _results(
        self, tensors: dict[str, torch.Tensor], sizes: Mapping[Symbol, int]
    ) -> tuple[Any, ...]:
        graph = self._program.graph
        shown: set[str] = set()
        results: list[Any] = []
        for output in graph.outputs:
            value = self._concrete(output, tensors, sizes)
            if isinstance(output, View):
                kind = self._program.memory.places[output.buffer].kind
                if (
                    output.buffer in shown
                    and kind not in {"input", "constant"}
                    and graph.role == "inference"
                ):
                    value = value.clone()
                shown.add(output.buffer)
            results.append(value)
        return tuple(results)

    def _concrete(
        self, value: Any, tensors: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int]
    ) -> Any:
        """A value of the graph with views as tensors and expressions as integers."""
        if isinstance(value, View):
            tensor = tensors[value.buffer]
            whole = value == self._program.graph.buffers[value.buffer].view
            return tensor if whole else _window(tensor, value, sizes)
        if isinstance(value, Expression):
            return evaluate(value, sizes)
        if isinstance(value, list | tuple):
            return [self._concrete(item, tensors, sizes) for item in value]
        return value


def _can_refuse(built: BuiltKernel | CalledKernel) -> bool:
    return isinstance(built, BuiltKernel) and bool(built.source.checks)


def _empty(buffer: Buffer, sizes: Mapping[Symbol, int]) -> torch.Tensor:
    shape = tuple(evaluate(size, sizes) for size in buffer.shape)
    stride = tuple(evaluate(size, sizes) for size in buffer.stride)
    return torch.empty_strided(shape, stride, dtype=buffer.dtype, device=buffer.device)


def _window(tensor: torch.Tensor, view: View, sizes: Mapping[Symbol, int]) -> torch.Tensor:
    shape: tuple[int, ...] = tuple(_number(size, sizes) for size in view.shape)
    stride = tuple(_number(size, sizes) for size in view.stride)
    offset = _number(view.offset, sizes)
    if (
        tensor.dtype is view.dtype
        and tuple(tensor.shape) == shape
        and tensor.stride() == stride
        and not offset
    ):
        return tensor
    if tensor.dtype is not view.dtype:
        tensor = tensor.view(view.dtype)
    return torch.as_strided(tensor, shape, stride, tensor.storage_offset() + offset)


def _number(value: Size, sizes: Mapping[Symbol, int]) -> int:
    return evaluate(value, sizes)


def _flat(result: Any) -> list[Any]:
    """An operator's results as `OperatorCall.outputs` numbers them: through the lists among them."""
    if not isinstance(result, tuple | list):
        return [result]
    return [one for item in result for one in _flat(item)]
