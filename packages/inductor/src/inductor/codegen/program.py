"""From a scheduled program to the callable that runs it.

Comes in: `inductor.ir.Program` and the FX graph it was made from. Goes out: a boxed callable: the C launcher with the
program as data, its Python twin where the extension is missing, torch's own operators where no compiler works (one
warning says so). Invariant: all three give what the graph says; what differs is speed.
"""

from __future__ import annotations

import logging
from array import array
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol, assert_never

import torch

from inductor._torch import device_code, dtype_code
from inductor.codegen.direct import direct_call
from inductor.codegen.ranges import range_names
from inductor.devices import BuiltKernel, CalledKernel, LoadedKernel, device_for
from inductor.devices.built import flat_length, run_by_torch
from inductor.errors import KernelError, UnsupportedOperationError
from inductor.ir import Kernel, OperatorCall, View
from inductor.runtime.errors import BuildError
from inductor.runtime.launch import Opcode, Result, ValueKind, native_launcher
from inductor.runtime.reference import ReferenceCallable
from inductor.stored import CallProgram, store
from primtorch.symbolic import Expression, Symbol, map_expression

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.fx import GraphModule

    from inductor.devices import Built
    from inductor.ir import GraphInput, Program, Size
    from inductor.runtime.launch import NativeLauncher
    from inductor.runtime.settings import BuildSettings
    from inductor.runtime.triton_build import TritonBinary

__all__ = ["BoxedCallable", "build_kernels", "compile_program", "kernel_texts", "schedule_kernels"]

_LOG = logging.getLogger("inductor")
_THREAD_WORK = (
    1 << 17
)  # weighted scalar operations that are worth a second thread (some 30 microseconds)


class BoxedCallable(Protocol):
    """What a compiled graph is: takes and empties a list, returns a tuple."""

    def __call__(self, inputs: list[Any], /) -> tuple[Any, ...]:
        """Run the graph; empties `inputs`."""
        ...


def schedule_kernels(program: Program) -> tuple[Kernel, ...]:
    """The kernels of a program in order of execution."""
    return tuple(step for step in program.schedule.steps if isinstance(step, Kernel))


def kernel_texts(program: Program, device: str = "") -> dict[str, str]:
    """The source of each kernel by its name, for people to read: C++, or Triton for a GPU."""
    return {
        kernel.name: device_for(kernel.device, device).text(kernel)
        for kernel in schedule_kernels(program)
    }


@lru_cache(maxsize=64)
def _warn_once(text: str) -> None:
    _LOG.warning("%s", text)


def compile_program(
    program: Program,
    graph: GraphModule,
    settings: BuildSettings,
    *,
    device: str = "",
    strict: bool = False,
) -> BoxedCallable:
    """The callable for `program`, which was lowered from `graph`.

    Args:
        program: what to run.
        graph: runs in its place where nothing can be built or a kernel refuses its inputs.
        settings: how kernels are built.
        device: the name of what builds them; empty means ours.
        strict: one kernel that can't be built raises, where otherwise torch's operators run it.
    """
    reference = ReferenceCallable(graph, strict=strict)
    try:
        built = build_kernels(program, settings, device=device, strict=strict)
    except BuildError as error:
        _warn_once(str(error))
        return reference
    native = native_launcher()
    if native is None and _on_card(program, device):
        _warn_once("a GPU program needs the C launcher, which was not built: install a C compiler")
        return reference
    if native is None:
        from inductor.codegen.program_python import (
            PythonLauncher,
        )  # only where the extension is missing

        on_cpu = {n: made for n, made in built.items() if not isinstance(made, LoadedKernel)}
        return PythonLauncher(program, on_cpu, reference)
    try:
        encoder = _Encoder(program, built, native, device)
        return encoder.launcher(reference, graph, settings)
    except BuildError as error:  # the GPU's part of the launcher can't be set up
        _warn_once(str(error))
        return reference


def build_kernels(
    program: Program, settings: BuildSettings, *, device: str = "", strict: bool = False
) -> dict[str, Built]:
    """Print and build all kernels of `program`, each on its device.

    One that can't be built is run by torch's operators, with a warning that says why.

    Raises:
        BuildError: if a compiler is missing or no kernel could be built.
        KernelError: one kernel could not be built, under `strict`.
        UnsupportedOperationError: its language can't express one, under `strict`.
    """
    kernels = schedule_kernels(program)
    places: dict[torch.device, list[Kernel]] = {}
    for kernel in kernels:
        places.setdefault(kernel.device, []).append(kernel)
    found: dict[str, Built | Exception] = {}
    for place, group in places.items():
        found |= device_for(place, device).build(group, settings)
    failed = {name: made for name, made in found.items() if isinstance(made, Exception)}
    for name, error in failed.items():
        if strict and isinstance(error, UnsupportedOperationError):
            raise error
        if strict and len(failed) < len(kernels):
            raise KernelError(name, error) from error
        if len(failed) == len(kernels):
            raise BuildError(str(error)) from error
        _warn_once(f"kernel {name} was not built and runs by torch's own operators: {error}")
    return {
        kernel.name: run_by_torch(kernel) if isinstance(made, Exception) else made
        for kernel, made in ((kernel, found[kernel.name]) for kernel in kernels)
    }


def _on_card(program: Program, device: str) -> bool:
    """Whether the launcher must know a card, whose kernels only it can start."""
    place = program_device(program)
    return device_for(place, device).launcher_index(place) >= 0


def _may_fail(step: Kernel | OperatorCall, built: Mapping[str, Built]) -> bool:
    """Whether torch's operators may have to run the call from its inputs: they are kept until this step is done."""
    return _can_refuse(built[step.name]) if isinstance(step, Kernel) else step.is_untried


def _can_refuse(built: Built) -> bool:
    """Whether the kernel reports bad indices; GPU kernels assert on the device, as eager's do."""
    return isinstance(built, BuiltKernel) and bool(built.source.checks)


def program_device(program: Program) -> torch.device:
    """Where the kernels run: the first device that is not the CPU, else the CPU."""
    devices = [kernel.device for kernel in schedule_kernels(program)]
    devices += [buffer.device for buffer in program.graph.buffers.values()]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


class _Registers:
    """The program's integers: constants in the initial image, sizes computed by instructions."""

    def __init__(self, code: list[int]) -> None:
        self.initial: list[int] = []
        self._code = code
        self._constants: dict[int, int] = {}
        self._expressions: dict[Expression, int] = {}

    def fresh(self, value: int = 0) -> int:
        """A new register that starts as `value`."""
        self.initial.append(value)
        return len(self.initial) - 1

    def bind(self, symbol: Expression, register: int) -> None:
        """Say where a size symbol's value is."""
        self._expressions[symbol] = register

    def __call__(self, value: Size | bool) -> int:
        """The register that holds `value`."""
        if isinstance(value, Expression):
            register = self._expressions.get(value)
            if register is None:
                register = self._expressions[value] = map_expression(value, self)
            return register
        return self.integer(int(value))

    def float(self, value: float) -> int:
        """The register that holds a double's bits."""
        return self.integer(array("q", array("d", [value]).tobytes())[0])

    # ---- the visitor that computes an expression
    def integer(self, value: int) -> int:
        """A constant's register."""
        register = self._constants.get(value)
        if register is None:
            register = self._constants[value] = self.fresh(value)
        return register

    def symbol(self, symbol: Symbol) -> int:
        """A symbol that no input binds is a fault of the lowering."""
        raise AssertionError(f"size {symbol.name} is bound by no input of the graph")

    def _binary(self, opcode: Opcode, left: int, right: int) -> int:
        target = self.fresh()
        self._code += [opcode, target, left, right]
        return target

    def sum(self, constant: int, terms: tuple[tuple[Expression, int], ...]) -> int:
        """Additions of products with coefficients."""
        total: int | None = self.integer(constant) if constant else None
        for term, count in terms:
            part = self(term)
            if count != 1:
                part = self._binary(Opcode.MULTIPLY, part, self.integer(count))
            total = part if total is None else self._binary(Opcode.ADD, total, part)
        return self.integer(0) if total is None else total

    def product(self, factors: tuple[Expression, ...]) -> int:
        """Multiplications."""
        return self._chain(Opcode.MULTIPLY, factors)

    def floor_div(self, dividend: Size, divisor: Size) -> int:
        """Division rounded down."""
        return self._binary(Opcode.FLOOR_DIVIDE, self(dividend), self(divisor))

    def modulo(self, dividend: Size, divisor: Size) -> int:
        """The remainder with the divisor's sign."""
        return self._binary(Opcode.MODULO, self(dividend), self(divisor))

    def maximum(self, arguments: tuple[Size, ...]) -> int:
        """The largest."""
        return self._chain(Opcode.MAXIMUM, arguments)

    def minimum(self, arguments: tuple[Size, ...]) -> int:
        """The smallest."""
        return self._chain(Opcode.MINIMUM, arguments)

    def _chain(self, opcode: Opcode, values: Sequence[Size]) -> int:
        total = self(values[0])
        for value in values[1:]:
            total = self._binary(opcode, total, self(value))
        return total


class _Encoder:
    """Writes the words of one program."""

    def __init__(
        self,
        program: Program,
        built: Mapping[str, Built],
        native: NativeLauncher,
        device: str = "",
    ) -> None:
        self._program = program
        self._built = built
        self._native = native
        self._head: list[int] = []
        self._code: list[int] = []
        self._registers = _Registers(self._head)
        self._objects: list[Any] = []
        self._object_numbers: dict[int, int] = {}
        graph = program.graph
        self._slots = {name: number for number, name in enumerate(graph.buffers)}
        self._scalars: dict[str, int] = {}
        self._fallible = [
            number for number, step in enumerate(program.schedule.steps) if _may_fail(step, built)
        ]
        self._own: set[str] = set()
        self._bent: set[str] = set()  # in a tensor that has another geometry than they
        self._symbols: list[tuple[int, str]] = []  # where in the code which kernel's address stands
        self._binaries: list[tuple[int, TritonBinary]] = []  # or the handle of which device code
        self._started: list[BuiltKernel | LoadedKernel] = []  # by instructions, in order
        self._read = program.read_buffers
        self._device = program_device(program)
        made_by = device_for(self._device, device)
        self._card = made_by.launcher_index(self._device)
        self._direct = made_by.direct_calls()

    def launcher(
        self, reference: ReferenceCallable, module: GraphModule, settings: BuildSettings
    ) -> BoxedCallable:
        """The C launcher that runs the program; it can be stored."""
        self._inputs()
        program = self._program
        for number, step in enumerate(program.schedule.steps):
            if isinstance(step, Kernel):
                self._allocate(step, program.memory.allocate[number])
                self._kernel(self._built[step.name])
            else:
                self._call(step)
            self._release(number)
        self._results()
        places = self._places()  # may add instructions to the head
        before = len(self._head) + len(places)
        parts = CallProgram(
            code=array("q", [*self._head, *places, *self._code]),
            registers=array("q", self._registers.initial),
            slots=len(self._slots),
            inputs=len(program.graph.inputs),
            objects=tuple(self._objects),
            threshold=_THREAD_WORK,
            keep=bool(self._fallible),
            device=self._card,
            symbols=tuple((before + place, name) for place, name in self._symbols),
            binaries=tuple((before + place, binary) for place, binary in self._binaries),
            ranges=range_names(self._started, program.graph, module),
        )
        made = parts.launcher(self._native, reference)
        made.store_part = partial(store, parts, module, made, settings)
        return made

    def _object(self, value: object) -> int:
        number = self._object_numbers.get(id(value))
        if number is None:
            number = self._object_numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return number

    # ---- head: inputs, constants, sizes, memory
    def _inputs(self) -> None:
        for position, item in enumerate(self._program.graph.inputs):
            self._input(position, item)
        for name, tensor in self._program.graph.constants.items():
            if name in self._slots:
                self._head += [Opcode.CONSTANT, self._object(tensor), self._slots[name]]

    def _input(self, position: int, item: GraphInput) -> None:
        match item.kind:
            case "tensor":
                if item.name in self._slots:
                    self._head += [Opcode.TENSOR_INPUT, position, self._slots[item.name]]
            case "size":
                if isinstance(item.symbol, Expression):
                    register = self._registers.fresh()
                    self._registers.bind(item.symbol, register)
                    self._head += [Opcode.SIZE_INPUT, position, register]
            case "scalar":
                register = self._scalars[item.name] = self._registers.fresh()
                is_float = item.dtype is not None and item.dtype.is_floating_point
                self._head += [
                    Opcode.FLOAT_INPUT if is_float else Opcode.SIZE_INPUT,
                    position,
                    register,
                ]
                if isinstance(item.symbol, Expression):
                    self._registers.bind(item.symbol, register)

    def _places(self) -> list[int]:
        """Everything about memory that is known once the sizes are."""
        memory = self._program.memory
        words: list[int] = []
        # Also for no bytes: an operator is given empty tensors of the arena, too.
        if any(place.kind == "arena" for place in memory.places.values()):
            register = self._registers(memory.arena_bytes)
            words += [Opcode.ARENA, register, self._placed(torch.uint8, self._device)]
            for name, place in memory.places.items():
                if place.kind == "arena":
                    words += [Opcode.PLACE, self._slots[name], self._registers(place.offset)]
        return words if self._is_brief() else [Opcode.BEGIN, *words]

    def _is_brief(self) -> bool:
        """Whether to keep the interpreter lock: giving it up costs more than other threads gain by it."""
        total = 0
        for step in self._program.schedule.steps:
            work = step.decisions.work if isinstance(step, Kernel) and self._card < 0 else None
            if not isinstance(work, int):
                return False
            total += work
        return total <= _THREAD_WORK

    def _allocate(self, step: Kernel, outputs: tuple[str, ...]) -> None:
        places = self._program.memory.places
        for argument in step.arguments:
            name = argument.buffer
            if argument.access == "read" or name in self._own:
                continue
            place = places[name]
            if place.kind == "reuse":
                self._own.add(name)
                self._share(name, place.of)
            elif place.kind in {"output", "operator"} or name in outputs:
                self._own.add(name)
                self._code += [Opcode.ALLOCATE, *self._output(name)]

    def _share(self, name: str, source: str | None) -> None:
        """Take over the memory of `source`, which its kernel reads for the last time."""
        assert source is not None
        buffers, places = self._program.graph.buffers, self._program.memory.places
        root = source
        while (older := places[root].of) is not None:
            root = older
        ours, theirs = buffers[name], buffers[root]
        if (ours.shape, ours.stride) != (theirs.shape, theirs.stride):
            self._bent.add(name)
        self._code += [Opcode.SHARE, self._slots[name], self._slots[source]]

    def _release(self, number: int) -> None:
        last = self._fallible[-1] if self._fallible else -1
        release = self._program.memory.release
        names = [name for name in release[number] if name in self._slots]
        if number <= last:
            # A kernel may still refuse its data, and torch's operators begin with the inputs.
            inputs = {item.name for item in self._program.graph.inputs}
            names = [name for name in names if name not in inputs]
        if number == last:
            self._code += [Opcode.SURE]
            past = (name for names in release[: last + 1] for name in names)
            names += [name for name in past if name in inputs and name in self._slots]
        if number == self._program.memory.arena_until and self._device.type == "cpu":
            self._code += [Opcode.CLOSE]
        if names:
            self._code += [Opcode.RELEASE, len(names), *(self._slots[name] for name in names)]

    # ---- steps
    def _kernel(self, built: Built) -> None:
        match built:
            case LoadedKernel():
                self._launch(built)
            case CalledKernel():
                self._call_kernel(built)
            case BuiltKernel():
                self._run(built)
            case _:
                assert_never(built)

    def _run(self, built: BuiltKernel) -> None:
        kernel = built.kernel
        registers = [self._registers(size) for size in kernel.sizes if isinstance(size, Symbol)]
        registers += [self._scalars[name] for name, _ in kernel.scalars]
        registers += [self._registers(value) for value in built.source.literals]
        slots = [self._slots[argument.buffer] for argument in kernel.arguments]
        work = self._registers(kernel.decisions.work)
        self._started.append(built)
        self._symbols.append((len(self._code) + 1, built.symbol))
        self._code += [Opcode.KERNEL, built.address, work]
        self._code += [len(slots), *slots, len(registers), *registers]

    def _launch(self, loaded: LoadedKernel) -> None:
        kernel, function = loaded.kernel, loaded.function
        registers = [self._registers(size) for size in kernel.sizes if isinstance(size, Symbol)]
        registers += [self._scalars[name] for name, _ in kernel.scalars]
        slots = [self._slots[argument.buffer] for argument in kernel.arguments]
        grid = self._registers(loaded.source.grid)
        self._started.append(loaded)
        self._binaries.append((len(self._code) + 1, loaded.binary))
        self._code += [Opcode.LAUNCH, function.handle, grid, function.threads, function.shared]
        self._code += [len(slots), *slots, len(registers), *registers]

    def _call_kernel(self, called: CalledKernel) -> None:
        """An operator call whose arguments are three lists: flat tensors, sizes, scalars."""
        kernel, memory = called.kernel, self._program.memory
        tensors: list[int] = [ValueKind.LIST, len(kernel.arguments)]
        # what this kernel writes over has handed its memory on
        heirs = {
            memory.places[argument.buffer].of: argument.buffer
            for argument in kernel.arguments
            if argument.access != "read"
        }
        for argument in kernel.arguments:
            length = flat_length(self._program.graph.buffers[argument.buffer])
            owner = heirs.get(argument.buffer, argument.buffer)
            flat = View(owner, (length,), (1,), 0, argument.dtype)
            tensors += [ValueKind.TENSOR, *self._view(flat)]
        registers = [self._registers(size) for size in kernel.sizes if isinstance(size, Symbol)]
        sizes: list[int] = [ValueKind.LIST, len(registers)]
        for register in registers:
            sizes += [ValueKind.REGISTER, register]
        scalars: list[int] = [ValueKind.LIST, len(kernel.scalars)]
        for name, dtype in kernel.scalars:
            kind = ValueKind.FLOAT if dtype.is_floating_point else ValueKind.REGISTER
            scalars += [kind, self._scalars[name]]
        words = [self._object(called.run), 0, 0, 3, *tensors, *sizes, *scalars, 0, 0]
        self._code += [Opcode.CALL, len(words) + 1, *words]

    def _view(self, view: View) -> list[int]:
        """Words: slot, whole, dtype, item size, rank, offset, sizes, strides."""
        buffer = self._program.graph.buffers[view.buffer]
        whole = view == buffer.view and view.buffer not in self._bent
        words = [
            self._slots[view.buffer],
            int(whole),
            dtype_code(view.dtype),
            view.dtype.itemsize,
            len(view.shape),
        ]
        words.append(self._registers(view.offset))
        words += [self._registers(size) for size in view.shape]
        words += [self._registers(stride) for stride in view.stride]
        return words

    def _output(self, name: str | None) -> list[int]:
        """Words: slot or -1, dtype, rank, sizes, strides."""
        if name is None or name not in self._read:
            return [-1, 0, 0]  # some operators return nothing where nobody looks
        buffer = self._program.graph.buffers[name]
        placed = self._placed(buffer.dtype, buffer.device)
        words = [self._slots[name], placed, len(buffer.shape)]
        words += [self._registers(size) for size in buffer.shape]
        words += [self._registers(stride) for stride in buffer.stride]
        return words

    def _placed(self, dtype: torch.dtype, device: torch.device) -> int:
        """A dtype and a device in one word, as `_launch.c` reads them."""
        if device.type == "cpu":
            return dtype_code(dtype)
        return dtype_code(dtype) | device_code(device.type) << 16 | (device.index or 0) << 24

    def _value(self, value: Any) -> list[int]:
        if isinstance(value, View):
            return [ValueKind.TENSOR, *self._view(value)]
        if isinstance(value, Expression):
            return [ValueKind.REGISTER, self._registers(value)]
        if isinstance(value, list | tuple) and any(_is_dynamic(item) for item in value):
            words: list[int] = [ValueKind.LIST, len(value)]
            for item in value:
                words += self._value(item)
            return words
        return [ValueKind.OBJECT, self._object(list(value) if isinstance(value, tuple) else value)]

    def _inside(self, step: OperatorCall) -> None:
        """Make room for results that lie inside a result of the graph."""
        for name in step.outputs:
            place = None if name is None else self._program.memory.places.get(name)
            if name not in self._read or place is None or place.kind != "inside":
                continue
            assert place.of is not None
            if place.of not in self._own:
                self._own.add(place.of)
                self._code += [Opcode.ALLOCATE, *self._output(place.of)]
            words = [*self._output(name), self._slots[place.of], self._registers(place.offset)]
            self._code += [Opcode.INSIDE, *words]

    def _call(self, step: OperatorCall) -> None:
        self._inside(step)
        outputs = [len(step.outputs)]
        for name in step.outputs:
            outputs += self._output(name)
        direct = direct_call(step, self._direct)
        described: list[int] = []
        kind = 0
        if direct is not None:
            kind = direct.kind
            described.append(len(direct.tensors))
            for view in direct.tensors:
                described += [-1] if view is None else self._view(view)
            numbers = [
                self._registers.float(number)
                if isinstance(number, float)
                else self._registers(number)
                for number in direct.numbers
            ]
            described += [len(numbers), *numbers, *outputs]
        words = [self._object(step.operator), kind, len(described), *described, len(step.args)]
        for value in step.args:
            words += self._value(value)
        words.append(len(step.kwargs))
        for name, value in step.kwargs.items():
            words += [self._object(name), *self._value(value)]
        words += outputs
        self._code += [Opcode.CALL, len(words) + 1, *words]

    def _results(self) -> None:
        graph = self._program.graph
        shown: set[str] = set()
        words: list[int] = [Opcode.RETURN, len(graph.outputs)]
        for output in graph.outputs:
            if output is None:
                words.append(Result.NONE)
            elif isinstance(output, View):
                kind = self._program.memory.places[output.buffer].kind
                again = (
                    output.buffer in shown
                    and kind not in {"input", "constant"}
                    and graph.role == "inference"
                )
                shown.add(output.buffer)
                words += [Result.CLONE if again else Result.VIEW, *self._view(output)]
            elif isinstance(output, Expression):
                words += [Result.INTEGER, self._registers(output)]
            else:
                words += [Result.OBJECT, self._object(output)]
        self._code += words


def _is_dynamic(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_is_dynamic(item) for item in value)
    return isinstance(value, View | Expression)
