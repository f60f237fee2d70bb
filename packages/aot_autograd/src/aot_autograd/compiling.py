"""From a function and example inputs to a callable: trace, cut, compile, wrap.

Comes in: a flat callable, example inputs, compilers. Goes out: a boxed callable for exactly these
shapes. This module is the order of the stages and nothing else; each stage is a module of its own.
Invariant: nothing is kept between two calls of `compile_flat` but what the returned callable needs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from aot_autograd import subclasses, verify
from aot_autograd._torch import has_own_operators
from aot_autograd.absent import without_tangents
from aot_autograd.aliasing import is_lazy, mutated_groups, share, storage_groups
from aot_autograd.backwards import Backwards, likely_absent
from aot_autograd.deferred import Deferred
from aot_autograd.double import DoubleBackward
from aot_autograd.errors import (
    AotError,
    CompilerContractError,
    UnsupportedAliasing,
    UnsupportedOperator,
)
from aot_autograd.inputs import InputSpec, with_constant_layout
from aot_autograd.joint import Trace, trace
from aot_autograd.packed import in_layout
from aot_autograd.runtime import Boxed, as_boxed
from aot_autograd.spared import watched
from aot_autograd.stored import Origin, storable_inference, storable_training
from aot_autograd.text import text
from aot_autograd.training import Compiled
from primtorch.fake import FakeTensor, TensorMeta, meta_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aot_autograd._torch import OpOverload
    from aot_autograd.metadata import SharedStorage
    from aot_autograd.options import AotOptions
    from aot_autograd.partition import Partition

Compiler = Callable[..., Any]
Observer = Callable[[str, str], None]
FlatFunction = Callable[..., Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What the user passed: compilers, partition, decompositions, options."""

    fw_compiler: Compiler
    bw_compiler: Compiler
    inference_compiler: Compiler
    partition_fn: Callable[..., Partition]
    decompositions: Mapping[OpOverload, Any]
    options: AotOptions
    observer: Observer | None = None

    def saw(self, stage: str, module: fx.GraphModule) -> None:
        """Show a graph to the observer, where there is one."""
        if self.observer is not None:
            self.observer(stage, text(module))

    def deferred(
        self, *, load: Callable[[], fx.GraphModule] | None = None, made: Boxed | None = None
    ) -> Deferred:
        """A backward that is compiled later from the graph that `load` gives, or was before."""

        def compile_graph(graph: fx.GraphModule) -> Boxed:
            return as_boxed(_run_compiler(self.bw_compiler, "bw_compiler", graph), "bw_compiler")

        # An observer is told of the stages in their order, by the thread that it knows.
        in_worker = self.options.backward_worker and self.observer is None
        return Deferred(compile_graph, load=load, made=made, in_worker=in_worker)


def describe_inputs(
    example_inputs: Sequence[Any],
    *,
    values: Sequence[Any] | None = None,
    tags: Sequence[Mapping[str, Any]] | None = None,
    in_inference_mode: bool = False,
) -> list[InputSpec]:
    """One `InputSpec` per distinct input; a tensor passed twice is described once.

    Args:
        example_inputs: Real (or fake) tensors, numbers, symbolic sizes.
        values: For each input what a captured graph says it is (symbolic shapes), or None.
        tags: For each input its `meta["input"]`.
        in_inference_mode: Whether they are for calls in inference mode, where tensors made in it are like others.
    """
    specs: list[InputSpec] = []
    seen: set[int] = set()
    for position, example in enumerate(example_inputs):
        tag = tags[position] if tags is not None else _default_tag(position, example)
        value = values[position] if values is not None else None
        if not isinstance(example, torch.Tensor):
            meta = value if isinstance(value, (torch.SymInt, torch.SymFloat)) else example
            specs.append(InputSpec(position, meta, False, True, tag))
            continue
        if id(example) in seen:
            continue
        seen.add(id(example))
        _refuse_strange(example, tag)
        meta = meta_of(value if isinstance(value, FakeTensor) else example)
        specs.append(
            InputSpec(
                position,
                meta,
                example.requires_grad,
                example.is_leaf,
                tag,
                example._is_view(),
                is_inference=example.is_inference() and not in_inference_mode,
            )
        )
    return specs


def _refuse_strange(example: torch.Tensor, tag: Mapping[str, Any]) -> None:
    """Leave to eager what has no memory that strides describe.

    Raises:
        UnsupportedOperator: for sparse tensors, and for subclasses with operators of their own.
    """
    kind = type(example)
    if example.layout is not torch.strided:
        what, why = f"a sparse input, {tag['name']}", f"its layout is {example.layout}"
    elif has_own_operators(kind) and not isinstance(example, FakeTensor):
        what = f"an input of the tensor subclass {kind.__name__}, {tag['name']}"
        why = "what its operators do is decided by its __torch_dispatch__"
    else:
        return
    raise UnsupportedOperator(what, why, "compile the code that works on its parts")


def _default_tag(position: int, example: Any) -> dict[str, Any]:
    if isinstance(example, torch.nn.Parameter):
        kind = "parameter"
    elif isinstance(example, torch.Tensor):
        kind = "argument"
    else:
        kind = "size" if isinstance(example, (int, torch.SymInt)) else "scalar"
    return {"kind": kind, "name": f"input_{position}", "static": kind == "parameter"}


def environment_of_inputs(specs: Sequence[InputSpec], values: Sequence[Any] | None) -> Any:
    """The size environment that travels in symbolic inputs, or None."""
    for spec in specs:
        if isinstance(spec.meta, (torch.SymInt, torch.SymFloat)):
            return spec.meta.node.environment
    for value in values or ():
        if isinstance(value, FakeTensor) and value.context.environment is not None:
            return value.context.environment
    return None


def duplicates(example_inputs: Sequence[Any]) -> dict[int, int]:
    """For each input that is the same tensor as an earlier one, the earlier position."""
    first: dict[int, int] = {}
    repeated: dict[int, int] = {}
    for position, example in enumerate(example_inputs):
        if isinstance(example, torch.Tensor):
            earlier = first.setdefault(id(example), position)
            if earlier != position:
                repeated[position] = earlier
    return repeated


def compile_flat(
    function: FlatFunction,
    example_inputs: Sequence[Any],
    tools: Toolchain,
    *,
    values: Sequence[Any] | None = None,
    tags: Sequence[Mapping[str, Any]] | None = None,
    seeds: int = 0,
    source: str = "function",
    in_inference_mode: bool = False,
) -> Boxed:
    """Compile a flat function for the given inputs.

    Returns:
        A boxed callable that takes all of the flat inputs and returns a tuple.
    """
    if torch.is_inference_mode_enabled():
        # Tensors made in inference mode count no changes, by which a trace knows them.
        with torch.inference_mode(mode=False), torch.no_grad():
            return compile_flat(
                function,
                example_inputs,
                tools,
                values=values,
                tags=tags,
                seeds=seeds,
                source=source,
                in_inference_mode=True,
            )
    if any(map(subclasses.is_wrapper, example_inputs)):
        return _compile_translated(function, example_inputs, tools, seeds, source)
    if any(is_lazy(example) for example in example_inputs):
        tools = replace(
            tools,
            fw_compiler=_computing_first(tools.fw_compiler, "fw_compiler"),
            bw_compiler=_computing_first(tools.bw_compiler, "bw_compiler"),
            inference_compiler=_computing_first(tools.inference_compiler, "inference_compiler"),
        )
    specs = describe_inputs(
        example_inputs, values=values, tags=tags, in_inference_mode=in_inference_mode
    )
    called = _with_duplicates(function, specs, example_inputs)
    environment = environment_of_inputs(specs, values)

    def traced(shared: Sequence[SharedStorage]) -> Trace:
        return trace(
            called,
            specs,
            table=tools.decompositions,
            options=tools.options,
            inputs=len(example_inputs),
            environment=environment,
            seeds=seeds,
            source=source,
            shared=shared,
        )

    with _collection_paused():
        try:
            recorded = traced(())
        except subclasses.ReturnedError:
            return _compile_translated(function, example_inputs, tools, seeds, source)
        groups = storage_groups(example_inputs, specs)
        if groups and recorded.metadata.mutations:
            touched = mutated_groups(groups, recorded.metadata, tracks=recorded.has_backward)
            if touched:
                shared = [share(example_inputs, one, recorded.metadata, source) for one in touched]
                specs = with_constant_layout(specs, shared, environment)
                recorded = _traced_again(traced, shared, source)
        if not recorded.has_backward:
            return _compile_inference(recorded, specs, tools)
        origin = Origin(getattr(function, "graph_module", None), _order_of(specs, example_inputs))
        return _compile_training(recorded, called, specs, tools, origin)


def _compile_translated(
    function: FlatFunction,
    example_inputs: Sequence[Any],
    tools: Toolchain,
    seeds: int,
    source: str,
) -> Boxed:
    """Compile a function that takes or returns tensors made of tensors, as one of their parts.

    Where inputs share memory and one of them is changed, a part's history is passed beside its memory.
    """

    def compiled(apart: bool) -> Boxed:
        translation = subclasses.translated(function, example_inputs, apart=apart)
        parts = translation.parts(example_inputs)
        callable_of_parts = compile_flat(translation, parts, tools, seeds=seeds, source=source)
        return subclasses.callable_of(translation, callable_of_parts)

    try:
        return compiled(apart=False)
    except UnsupportedAliasing:
        if not subclasses.histories_are_apart(example_inputs):
            raise
    return compiled(apart=True)


def _traced_again(
    traced: Callable[[Sequence[SharedStorage]], Trace],
    shared: Sequence[SharedStorage],
    source: str,
) -> Trace:
    """The trace in which inputs are views of the storages that they share."""
    try:
        return traced(shared)
    except AotError:
        raise
    except RuntimeError as error:
        # The first trace raised nothing: the program does what only a base or a leaf may do.
        raise UnsupportedAliasing(
            f"compiling {source}",
            f"inputs share storage, and one of them is treated as if it did not: {error}",
            "pass clones, or make the change outside",
        ) from error


def _computing_first(compiler: Compiler, name: str) -> Compiler:
    """A compiler whose graphs are given tensors that hold their own values, in the same layout."""

    def compile_part(module: fx.GraphModule, example_inputs: Sequence[Any]) -> Boxed:
        compiled = as_boxed(compiler(module, example_inputs), name)

        def run(inputs: list[Any]) -> Any:
            inputs[:] = [
                in_layout(value, value.stride(), value.dtype) if is_lazy(value) else value
                for value in inputs
            ]
            return compiled(inputs)

        run.boxed = True  # type: ignore[attr-defined]
        run.output_layouts = getattr(compiled, "output_layouts", None)  # type: ignore[attr-defined]
        return run

    return compile_part


@contextmanager
def _collection_paused() -> Iterator[None]:
    """No cyclic garbage collection inside.

    A graph makes tens of thousands of objects that all live on, so that every collection is for
    nothing, and a full one in a process that has loaded models takes longer than the trace.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _order_of(specs: Sequence[InputSpec], example_inputs: Sequence[Any]) -> list[int]:
    """For each input which of the distinct ones it is."""
    repeated = duplicates(example_inputs)
    number = {spec.position: index for index, spec in enumerate(specs)}
    return [number[repeated.get(position, position)] for position in range(len(example_inputs))]


def _with_duplicates(
    function: FlatFunction, specs: Sequence[InputSpec], example_inputs: Sequence[Any]
) -> FlatFunction:
    if len(specs) == len(example_inputs):
        return function
    order = _order_of(specs, example_inputs)

    def with_duplicates(*distinct: Any) -> Sequence[Any]:
        return function(*[distinct[index] for index in order])

    return with_duplicates


def _example_values(module: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]


def _run_compiler(compiler: Compiler, name: str, module: fx.GraphModule) -> Any:
    compiled = compiler(module, _example_values(module))
    if not callable(compiled):
        raise CompilerContractError(
            f"{name} returned {type(compiled).__name__}",
            "a compiler must return a callable",
            "return the compiled function, or make_boxed_func(function)",
        )
    return compiled


def _compile_inference(recorded: Trace, specs: Sequence[InputSpec], tools: Toolchain) -> Boxed:
    module = recorded.module()
    module.meta["written"] = recorded.metadata.replaced
    if tools.options.verify:
        verify.functional_graph(module)
    tools.saw("04_forward.py", module)
    compiled = _run_compiler(tools.inference_compiler, "inference_compiler", module)
    tracks = recorded.metadata.grad_mode and any(spec.requires_grad for spec in specs)
    return storable_inference(
        as_boxed(compiled, "inference_compiler"), recorded.metadata, tracks=tracks
    )


def _compile_training(
    recorded: Trace,
    function: FlatFunction,
    specs: Sequence[InputSpec],
    tools: Toolchain,
    origin: Origin,
) -> Boxed:
    metadata = recorded.metadata
    joint = recorded.module()
    joint.meta["mutated_inputs"] = metadata.rewritten
    if tools.options.verify:
        verify.functional_graph(joint)
    tools.saw("03_joint.py", joint)
    forward_outputs = len(metadata.value_requires_grad)
    cut = tools.partition_fn(joint, forward_outputs=forward_outputs, options=tools.options)
    verify.partition(joint, forward_outputs, cut)
    tools.saw("04_forward.py", cut.forward)
    if tools.observer is not None:
        first = without_tangents(cut.backward, likely_absent(metadata))
        tools.saw("05_backward.py", cut.backward if first is None else first.module)
    if not _restrides(cut.backward):
        cut.forward.meta["visible_outputs"] = forward_outputs
    compiled = _run_compiler(tools.fw_compiler, "fw_compiler", cut.forward)
    _adopt_layouts(cut, getattr(compiled, "output_layouts", None))
    backward = Backwards(tools.deferred, metadata, partial(_given, cut.backward))
    if not tools.options.lazy_backward:
        backward.of(backward.likely).deferred()
    placeholders = [node for node in cut.backward.graph.nodes if node.op == "placeholder"]
    seeds = tuple(
        slot
        for slot, node in enumerate(placeholders[: len(cut.saved)])
        if node.meta.get("draws_seed")
    )
    double = None
    if tools.options.double_backward:
        double = DoubleBackward(function, specs, metadata, tools, compile_flat)
    whole = Compiled(
        forward=as_boxed(compiled, "fw_compiler"),
        backward=backward,
        saved=cut.saved,
        metadata=metadata,
        forward_outputs=forward_outputs,
        total_outputs=_count_outputs(cut.forward),
        double=double,
        seeds=seeds,
        watched=watched(cut, forward_outputs),
    )
    return storable_training(whole, origin)


def _given(module: fx.GraphModule) -> fx.GraphModule:
    return module


def _count_outputs(module: fx.GraphModule) -> int:
    output = next(iter(reversed(module.graph.nodes)))
    return len(output.args[0])


def _restrides(backward: fx.GraphModule) -> bool:
    """Whether the backward reads memory by strides that are meant for eager's layouts."""
    return any(
        getattr(node.target, "overloadpacket", None)
        in (torch.ops.aten.as_strided, torch.ops.aten.as_strided_scatter)
        for node in backward.graph.nodes
    )


def _adopt_layouts(cut: Partition, layouts: Sequence[Any] | None) -> None:
    """Write the strides that the compiled forward gives saved values into the backward."""
    if layouts is None:
        return
    placeholders = [node for node in cut.backward.graph.nodes if node.op == "placeholder"]
    for item, node in zip(cut.saved, placeholders, strict=False):
        if item.origin != "output" or not item.is_tensor or item.index >= len(layouts):
            continue
        stride = layouts[item.index]
        value = node.meta["val"]
        if stride is not None and tuple(stride) != tuple(value.meta.stride):
            meta = value.meta
            changed = TensorMeta(meta.shape, tuple(stride), meta.dtype, meta.device)
            node.meta["val"] = FakeTensor.create(
                changed, value.context, environment=value.context.environment
            )
