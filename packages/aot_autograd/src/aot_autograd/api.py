"""The public functions: compile a function or a module ahead of time, forward and backward.

Comes in: callables, modules, captured graphs; compilers for the parts. Goes out: callables with
eager's behaviour. `aot_function` and `aot_module` specialise on the inputs they meet and keep one
compiled version per kind of input; `aot_module_simplified` is for a captured graph with flat
inputs, whose caller guards the inputs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from aot_autograd import interpret, verify
from aot_autograd._torch import records_operators, storage_identity, transforms_active
from aot_autograd.aliasing import base_of
from aot_autograd.compiling import Compiler, Observer, Toolchain, compile_flat
from aot_autograd.errors import CompilerContractError, WireError
from aot_autograd.options import AotOptions
from aot_autograd.partition import Partition, min_cut_rematerialization_partition
from aot_autograd.stored import restored
from aot_autograd.subclasses import is_wrapper, take_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aot_autograd._torch import OpOverload
    from aot_autograd.runtime import Boxed

_NO_DECOMPOSITIONS: Mapping[Any, Any] = {}
_DEFAULT_OPTIONS = AotOptions()


def _toolchain(
    fw_compiler: Compiler,
    bw_compiler: Compiler | None,
    inference_compiler: Compiler | None,
    partition_fn: Callable[..., Partition],
    decompositions: Mapping[OpOverload, Any] | None,
    options: AotOptions | Mapping[str, object] | None,
    observer: Observer | None,
) -> Toolchain:
    compilers = {
        "fw_compiler": fw_compiler,
        "bw_compiler": bw_compiler,
        "inference_compiler": inference_compiler,
    }
    for name, given in compilers.items():
        if not callable(given) and (given is not None or name == "fw_compiler"):
            raise CompilerContractError(
                f"{name} is a {type(given).__name__}",
                "a compiler is called with a graph and its example inputs",
                "pass a function of them that returns the compiled function",
            )
    if options is None:
        options = _DEFAULT_OPTIONS
    elif not isinstance(options, AotOptions):
        options = AotOptions.from_mapping(options)
    return Toolchain(
        fw_compiler,
        fw_compiler if bw_compiler is None else bw_compiler,
        fw_compiler if inference_compiler is None else inference_compiler,
        partition_fn,
        _NO_DECOMPOSITIONS if decompositions is None else decompositions,
        options,
        observer,
    )


def aot_module_simplified(
    gm: torch.nn.Module,
    example_inputs: Sequence[Any],
    *,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    inference_compiler: Compiler | None = None,
    partition_fn: Callable[..., Partition] = min_cut_rematerialization_partition,
    decompositions: Mapping[OpOverload, Any] | None = None,
    options: AotOptions | Mapping[str, object] | None = None,
    observer: Observer | None = None,
) -> Boxed:
    """Compile a captured graph whose inputs are all placeholders (wire 2).

    Args:
        gm: The graph, or a module whose forward takes the inputs positionally.
        example_inputs: Real tensors, numbers and symbolic sizes, one per placeholder.
        fw_compiler: `(graph, example_inputs) -> callable` for forwards.
        bw_compiler: For backwards; default `fw_compiler`.
        inference_compiler: For graphs without a backward; default `fw_compiler`.
        partition_fn: How the joint graph is cut.
        decompositions: Overload -> function; what is not in it reaches the compilers as it is.
        options: `AotOptions` or a mapping of its fields.
        observer: Called with (stage, text) for `03_joint.py`, `04_forward.py`, `05_backward.py`.

    Returns:
        A boxed callable: takes and empties one list, returns a tuple.

    Raises:
        AotError: see `aot_autograd.errors`; what the function raises while traced passes through.
    """
    tools = _toolchain(
        fw_compiler,
        bw_compiler,
        inference_compiler,
        partition_fn,
        decompositions,
        options,
        observer,
    )
    verify.wire_inputs(example_inputs, tools.decompositions)
    values = tags = None
    function: Callable[..., Any]
    if isinstance(gm, fx.GraphModule):
        interpret.check_wire(gm, example_inputs)
        values, tags = interpret.described_placeholders(gm, example_inputs)
        function = interpret.GraphFunction(gm)
    else:
        function = _flat_module(gm)
    return compile_flat(
        function,
        example_inputs,
        tools,
        values=values,
        tags=tags,
        source=getattr(gm, "_get_name", lambda: "graph")(),
    )


def restore(
    content: bytes | memoryview,
    *,
    restore_part: Callable[[memoryview], Boxed],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    inference_compiler: Compiler | None = None,
    partition_fn: Callable[..., Partition] = min_cut_rematerialization_partition,
    decompositions: Mapping[OpOverload, Any] | None = None,
    options: AotOptions | Mapping[str, object] | None = None,
    observer: Observer | None = None,
) -> Boxed:
    """The callable whose `store()` gave these bytes, in this or another process.

    Args:
        content: The bytes.
        restore_part: Gives a compiled graph from the bytes of its own `store()`.
        fw_compiler: As in `aot_module_simplified`: for what was not compiled when the bytes were
            made, a backward or derivatives of derivatives.
        bw_compiler: The same.
        inference_compiler: The same.
        partition_fn: The same.
        decompositions: The same.
        options: The same.
        observer: The same.

    Raises:
        primtorch.serial.Foreign: the bytes are damaged or don't fit this process.
    """
    tools = _toolchain(
        fw_compiler,
        bw_compiler,
        inference_compiler,
        partition_fn,
        decompositions,
        options,
        observer,
    )
    return restored(content, tools, restore_part)


def _flat_module(module: torch.nn.Module) -> Callable[..., Sequence[Any]]:
    def call(*args: Any) -> Sequence[Any]:
        result = module(*args)
        return result if isinstance(result, (tuple, list)) else (result,)

    return call


class AotFunction:
    """A function compiled once per kind of input it meets; made by `aot_function`."""

    def __init__(self, function: Callable[..., Any], tools: Toolchain) -> None:
        self._function = function
        self._tools = tools
        self._compiled: dict[Any, tuple[Boxed, Any]] = {}
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled version for these inputs, compiling it when it is new.

        Under a transform of `torch.func`, and where `make_fx` records, the function itself runs: its operators
        must be seen.
        """
        if transforms_active() or records_operators():
            return self._function(*args, **kwargs)
        flat, structure = pytree.tree_flatten((args, kwargs))
        key = (structure, _state_key(), *_input_keys(flat))
        known = self._compiled.get(key)
        if known is None:
            known = self._compiled[key] = self._compile(flat, structure)
        compiled, out_structure = known
        tensors = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        return pytree.tree_unflatten(compiled(tensors), out_structure[0])

    def _compile(self, flat: list[Any], structure: Any) -> tuple[Boxed, Any]:
        positions = [n for n, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
        out_structure: list[Any] = []
        # The function lives on for derivatives of derivatives; the first call's tensors must not.
        constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]

        def function(*tensors: Any) -> Sequence[Any]:
            leaves = list(constants)
            for position, tensor in zip(positions, tensors, strict=True):
                leaves[position] = tensor
            args, kwargs = pytree.tree_unflatten(leaves, structure)
            result, out = pytree.tree_flatten(self._function(*args, **kwargs))
            out_structure[:] = [out]
            return result

        compiled = compile_flat(
            function, [flat[n] for n in positions], self._tools, source=self.__name__
        )
        return compiled, list(out_structure)


def _state_key() -> tuple[Any, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        torch.get_default_dtype(),
    )


def _input_keys(flat: Sequence[Any]) -> list[Any]:
    storages: dict[int, int] = {}
    bases: dict[int, int] = {}
    return [_input_key(leaf, storages, bases) for leaf in flat]


def _input_key(leaf: Any, storages: dict[int, int], bases: dict[int, int]) -> Any:
    """What a compiled version is for; `storages` and `bases` number those that were met."""
    if not isinstance(leaf, torch.Tensor):
        return type(leaf), leaf
    base = bases.setdefault(id(base_of(leaf)), len(bases))
    if is_wrapper(leaf):
        parts: list[Any] = []
        layout = take_apart(leaf, parts)
        own = [_input_key(part, storages, bases) for part in parts]
        history = leaf.requires_grad, leaf.is_leaf, base_of(leaf).is_leaf
        same = bases.setdefault(id(leaf), len(bases))
        return layout, *history, base, same, *own
    strided = leaf.layout is torch.strided
    group = storages.setdefault(storage_identity(leaf), len(storages)) if strided else 0
    return (
        type(leaf),
        tuple(leaf.shape),
        leaf.stride() if strided else leaf.layout,
        leaf.storage_offset() if strided else 0,
        leaf.dtype,
        leaf.device,
        leaf.requires_grad,
        leaf.is_leaf,
        leaf.is_inference(),
        group,
        base if strided else 0,
    )


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    *,
    inference_compiler: Compiler | None = None,
    partition_fn: Callable[..., Partition] = min_cut_rematerialization_partition,
    decompositions: Mapping[OpOverload, Any] | None = None,
    options: AotOptions | Mapping[str, object] | None = None,
    observer: Observer | None = None,
) -> AotFunction:
    """Compile a function of tensors (in any containers) and constants.

    The function is traced once per kind of input: shapes, strides, dtypes, devices,
    `requires_grad`, sharing of storage, values of everything that is not a tensor. Arguments as in
    `aot_module_simplified`.
    """
    tools = _toolchain(
        fw_compiler,
        bw_compiler,
        inference_compiler,
        partition_fn,
        decompositions,
        options,
        observer,
    )
    verify.wire_inputs((), tools.decompositions)
    if not callable(fn):
        raise WireError(
            f"aot_function was given a {type(fn).__name__}",
            "it compiles what can be called",
            "pass the function itself, not its result",
        )
    return AotFunction(fn, tools)


class AotModule(torch.nn.Module):
    """A module whose forward is compiled, parameters and buffers as inputs; made by `aot_module`.

    The original stays reachable as `module`; its parameters are shared, not copied.
    """

    def __init__(self, module: torch.nn.Module, tools: Toolchain) -> None:
        super().__init__()
        self.module = module

        def functional(state: dict[str, torch.Tensor], args: Any, kwargs: Any) -> Any:
            return torch.func.functional_call(module, state, args, kwargs)

        functional.__name__ = type(module).__name__
        self._compiled = AotFunction(functional, tools)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the compiled forward."""
        state = dict(self.module.named_parameters(remove_duplicate=False))
        state.update(self.module.named_buffers(remove_duplicate=False))
        return self._compiled((state), args, kwargs)


def aot_module(
    mod: torch.nn.Module,
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    *,
    inference_compiler: Compiler | None = None,
    partition_fn: Callable[..., Partition] = min_cut_rematerialization_partition,
    decompositions: Mapping[OpOverload, Any] | None = None,
    options: AotOptions | Mapping[str, object] | None = None,
    observer: Observer | None = None,
) -> AotModule:
    """Compile a module's forward and backward; arguments as in `aot_module_simplified`."""
    tools = _toolchain(
        fw_compiler,
        bw_compiler,
        inference_compiler,
        partition_fn,
        decompositions,
        options,
        observer,
    )
    verify.wire_inputs((), tools.decompositions)
    if not isinstance(mod, torch.nn.Module):
        raise WireError(
            f"aot_module was given a {type(mod).__name__}",
            "it compiles modules, whose parameters it makes inputs",
            "pass a torch.nn.Module, or use aot_function",
        )
    return AotModule(mod, tools)
