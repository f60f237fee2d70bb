"""What a traced function does to its inputs and what its outputs are: frozen data, computed once.

Comes in: the fakes after the trace (`joint.py`). Goes out: `FunctionMetadata`, the only thing the
runtime (`runtime.py`) and the printed signature (`text.py`) know about the function. Invariant:
every index is a position in the caller's flat inputs or outputs, never in a graph's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aot_autograd.sizes import evaluated

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from aot_autograd._torch import OpOverload
    from aot_autograd.connections import Connections
    from aot_autograd.sparse import SparseOf
    from aot_autograd.subclasses import MadeOf
    from primtorch.fake import TensorMeta


@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator on the way from a base tensor to an alias of it.

    `base` is the metadata of the tensor that the step is applied to. Arguments are plain values
    (symbolic sizes included), never tensors. `grad_mode` is the mode in which the view was made,
    `several` whether together with others (`split`): autograd remembers both.
    """

    operator: OpOverload
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    base: TensorMeta
    grad_mode: bool = True
    several: bool = False

    def __call__(self, tensor: Any, sizes: Mapping[Any, Any] | None = None) -> Any:
        """Apply the step to a tensor; `sizes` are the values of symbols in this call."""
        arguments: Any = self.arguments
        if sizes:
            arguments = evaluated(arguments, sizes)
        return self.operator(tensor, *arguments, **dict(self.keywords))


ViewChain = tuple[ViewStep, ...]

Making = Literal["view", "detached", "severed", "then detached", "then severed"]
"""Whether an alias belongs to its base's autograd history, was cut from it by `detach`, or from its version counter
too by `.data`: before its views were made, or after them (then it is no view in autograd's eyes)."""


@dataclass(frozen=True, slots=True)
class InputAlias:
    """The output is input number `input` itself (`identical`) or another tensor on its memory.

    `-1 - k` means the k-th shared storage. `version` is the count of a severed alias's own counter. `earlier`: it was
    made before the input, itself a view, was written: its history is that of the input's base then, not the input's.
    `of`: the output, a view by the beginning of the chain, that it was made from, where autograd knows it so.
    """

    input: int
    chain: ViewChain
    making: Making
    identical: bool
    version: int = 0
    earlier: bool = False
    of: int | None = None


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """The output is value number `position` of the graph's user values, or lies on its memory.

    `direct`: it is that value itself; otherwise it is made from it by `chain` (an empty chain is
    another tensor on the same memory, such as `detach` gives). `version` and `of` as in `InputAlias`.
    """

    position: int
    chain: ViewChain
    making: Making
    direct: bool
    version: int = 0
    of: int | None = None


@dataclass(frozen=True, slots=True)
class SameAs:
    """The output is the same Python object as an earlier output."""

    output: int


@dataclass(frozen=True, slots=True)
class Constant:
    """The output is not a tensor of the graph: None, a number, or a tensor made outside."""

    value: Any


OutputKind = InputAlias | GraphOutput | SameAs | Constant


@dataclass(frozen=True, slots=True)
class InputMutation:
    """Input `input` gets a new value, a new layout, or both.

    Attributes:
        input: Position among the flat inputs.
        position: Position of the new value among the graph's mutation values; None when only the
            metadata changed.
        through_autograd: The write is part of the autograd graph (`x.add_(w)` with w requiring
            gradient); otherwise it happens under `no_grad`.
        version_increment: How often eager counts the change.
        detached: `detach_` cut the input from its history.
        layout: The in-place operators (`t_`, `unsqueeze_` and the like) that gave it a new layout;
            each counts in the version by itself.
    """

    input: int
    position: int | None
    through_autograd: bool
    version_increment: int
    layout: ViewChain = ()
    detached: bool = False


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """Inputs that lie in one storage, at least one of them mutated: the graph gets the storage.

    Attributes:
        members: Positions among the flat inputs.
        length: Number of elements of the flat tensor that the runtime makes with `as_strided`.
        one_base: Whether autograd knows all members as views of one tensor (or as that tensor).
        requires_grad: Whether that tensor, and so each member, requires a gradient.
        is_leaf: Whether that tensor is a leaf.
    """

    members: tuple[int, ...]
    length: Any
    one_base: bool = True
    requires_grad: bool = False
    is_leaf: bool = True


@dataclass(frozen=True, slots=True)
class FunctionMetadata:
    """The contract between a compiled graph and its caller.

    Attributes:
        inputs: Number of flat inputs of the caller.
        graph_inputs: For each placeholder of the forward its flat input position, or
            `-1 - k` for the k-th shared storage.
        differentiable: Positions in `graph_inputs` of the inputs that get a gradient.
        mutations: In the order in which the writes must happen.
        outputs: One per user output.
        value_requires_grad: For each value that the graph returns to the user (mutations first,
            then user values), whether it is part of the autograd graph.
        value_versions: For each of these values its version counter in eager.
        view_values: Those of these values that are views in the graph. A compiled callable that
            runs the graph by ATen returns them as views of its own temporaries.
        tangents: Metadata of the gradients that the backward takes, one per value that requires
            grad, in that order.
        shared: Inputs that share storage.
        grad_mode: The grad mode under which the function was traced.
        autocast: The kinds of devices for which autocast was on when the call began, with the dtypes.
        source: The function's name, for messages.
        rewritten: Positions in `graph_inputs` of the inputs that the function changes.
        read_before: Those of them whose value before the change is part of a result that can be
            differentiated: derivatives of derivatives need it again.
        draws: Devices whose default generators the graph's own random operators draw from.
        symbols: (flat input, symbol) of the sizes and scalars that vary from call to call.
        backward_errors: For each tangent what eager's backward from that output raises, empty
            where it does not; no entries where all of it is well.
        made_of: For each differentiable input how its gradient is put together of several of the
            backward's results; None for one that is a result. No entries where all are.
        connections: What is behind each value that requires grad; None where one node is what eager's
            graph amounts to.
        points: Outputs that are views of values, or of arguments, and -1 - arguments that are written, which eager has
            on the way from other outputs, and which are made between these (`Connections` numbers them).
        beside: The same that can't be made between them, and are made after a call.
        read_results: The tangents of values that gradients may be computed of, and the numbers of all points.
        inference_values: Those of the graph's values that the function makes in inference mode.
        runs_once: Whether eager's backward frees something, of a graph that has one autograd node.
        unsaved: Flat inputs that autograd refuses to save: they were made in inference mode. In eager no backward
            reads them (the trace raises else); what the graph saves of them is an alias.
        passed_on: Of gradients that are views of one that flows in: (place among `differentiable`, tangent, views).
    """

    inputs: int
    graph_inputs: tuple[int, ...]
    differentiable: tuple[int, ...]
    mutations: tuple[InputMutation, ...]
    outputs: tuple[OutputKind, ...]
    value_requires_grad: tuple[bool, ...]
    value_versions: tuple[int, ...]
    view_values: tuple[int, ...]
    tangents: tuple[TensorMeta, ...]
    shared: tuple[SharedStorage, ...] = ()
    grad_mode: bool = True
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    source: str = "function"
    backward_errors: tuple[str, ...] = ()
    rewritten: tuple[int, ...] = ()
    read_before: tuple[int, ...] = ()
    draws: tuple[str, ...] = ()
    symbols: tuple[tuple[int, Any], ...] = ()
    made_of: tuple[MadeOf | SparseOf | None, ...] = ()
    connections: Connections | None = None
    points: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()
    read_results: tuple[int, ...] = ()
    inference_values: tuple[int, ...] = ()
    runs_once: bool = False
    unsaved: tuple[int, ...] = ()
    passed_on: tuple[tuple[int, int, tuple[ViewStep, ...]], ...] = ()

    @property
    def replaced(self) -> tuple[tuple[int, int], ...]:
        """The graph's outputs that may be computed in an input's memory, each with its placeholder."""
        return tuple(
            (mutation.position, self.graph_inputs.index(mutation.input))
            for mutation in self.mutations
            if mutation.position is not None
            and mutation.input in self.graph_inputs
            and not (mutation.through_autograd or mutation.layout or mutation.detached)
        )

    @property
    def mutation_values(self) -> int:
        """Number of leading graph outputs that are new values of inputs."""
        return sum(mutation.position is not None for mutation in self.mutations)

    @property
    def interior(self) -> tuple[int, ...]:
        """The tangents of results that others are made of, and the numbers of such points."""
        return () if self.connections is None else self.connections.interior

    @property
    def backward_results(self) -> int:
        """Number of values that the backward returns for the inputs."""
        if not self.made_of:
            return len(self.differentiable)
        return sum(1 if one is None else len(one.metas) for one in self.made_of)
