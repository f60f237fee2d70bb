"""What a traced function returned and changed, sorted into graph values and metadata.

Comes in: the arguments and outputs of a trace, as fakes that C++ autograd knows. Goes out: mutations of inputs in
the order in which the runtime makes them, one kind per output, and the values that the graph must return. Invariant:
what can't be rebuilt exactly on real tensors is refused by name here, before anything is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd import functional
from aot_autograd._torch import shares_version, version_of
from aot_autograd.aliasing import base_of
from aot_autograd.connections import edge_of, is_view_by_autograd
from aot_autograd.errors import TraceError, UnsupportedAliasing, UnsupportedOperator
from aot_autograd.metadata import (
    Constant,
    GraphOutput,
    InputAlias,
    InputMutation,
    Making,
    OutputKind,
    SameAs,
)
from aot_autograd.rewriting import IN_PLACE_LAYOUTS, undoing
from aot_autograd.sizes import symbol_of
from aot_autograd.subclasses import ReturnedError, is_wrapper
from primtorch.fake import FakeTensor, TensorMeta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aot_autograd.functional import Storage
    from aot_autograd.graph import Node
    from aot_autograd.inputs import InputSpec
    from aot_autograd.metadata import SharedStorage, ViewChain
    from aot_autograd.recording import RecordingContext

aten = torch.ops.aten


@dataclass(slots=True)
class GraphValue:
    """One value that the graph returns: its node, and the tensor that C++ autograd knows it by."""

    node: Any
    tensor: FakeTensor | None
    requires_grad: bool


class Observation:
    """Sorts what a traced function returned and changed into graph values and metadata."""

    def __init__(
        self,
        context: RecordingContext,
        specs: Sequence[InputSpec],
        arguments: Sequence[Any],
        shared: Sequence[SharedStorage] = (),
    ) -> None:
        self.context = context
        self.specs = specs
        self.arguments = arguments
        self._shared = shared
        self._initial = {
            number: (version_of(argument), argument.record.storage.root.grad_fn)
            for number, argument in enumerate(arguments)
            if isinstance(argument, FakeTensor)
        }
        self._argument_ids = {
            id(argument): specs[number].position
            for number, argument in enumerate(arguments)
            if isinstance(argument, FakeTensor)
        }
        self.values: list[GraphValue] = []
        self.mutations: list[InputMutation] = []
        self.outputs: list[OutputKind] = []
        self.beside: dict[int, FakeTensor] = {}
        """What the caller gets that is made of values, or arguments, after a call, and has a history: by the output's
        number, or -1 - that of the argument that is written."""

    def observe(self, outputs: Sequence[Any]) -> None:
        """Fill `mutations`, `outputs` and `values` (mutations first)."""
        self._observe_mutations()
        self._observe_outputs(outputs)
        self._observe_beside(outputs)
        self._observe_views_of_views()
        self._refuse_history_of_detached()

    def _observe_beside(self, outputs: Sequence[Any]) -> None:
        for number, (output, kind) in enumerate(zip(outputs, self.outputs, strict=True)):
            match kind:
                case GraphOutput(direct=direct):
                    itself = direct
                case InputAlias(identical=identical):
                    itself = identical
                case _:
                    itself = True
            if not itself and output.grad_fn is not None:
                self.beside[number] = output
        for number in self._initial:
            argument, position = self.arguments[number], self.specs[number].position
            for mutation in self.mutations:
                if not mutation.through_autograd or argument.grad_fn is None:
                    continue
                group = self._shared[-1 - mutation.input].members if mutation.input < 0 else ()
                if mutation.input == position or position in group:
                    self.beside[-1 - position] = argument

    def _observe_views_of_views(self) -> None:
        """Let a view be made from another that is returned, where autograd has that between it and its base."""
        views = [key for key in self.beside if key >= 0]
        for key in views:
            of, longest = None, -1
            for other in views:
                length = self._length_of_beginning(other, key)
                if length > longest and is_view_by_autograd(self.beside[key], self.beside[other]):
                    of, longest = other, length
            view = self.outputs[key]
            if of is not None and isinstance(view, (GraphOutput, InputAlias)):
                self.outputs[key] = replace(view, of=of)

    def _length_of_beginning(self, one: int, other: int) -> int:
        """The length of an output's views, if those of another begin with them; else -1."""
        first, second = self.outputs[one], self.outputs[other]
        match first, second:
            case GraphOutput(position=place), GraphOutput(position=same):
                pass
            case InputAlias(input=place, earlier=False), InputAlias(input=same, earlier=False):
                pass
            case _:
                return -1
        chain = first.chain
        if place != same or first.making != "view" or second.making != "view":
            return -1
        begins = len(chain) < len(second.chain) and second.chain[: len(chain)] == chain
        return len(chain) if begins else -1

    def made_alike(self) -> tuple[int, ...]:
        """Those of `beside` that the runtime makes as autograd has them here, so that they can be on ways."""
        return tuple([key for key in self.beside if self._is_made_alike(key)])

    def _is_made_alike(self, key: int) -> bool:
        tensor = self.beside[key]
        if key < 0:
            return any(
                mutation.input == -1 - key
                and mutation.through_autograd
                and not (mutation.layout or mutation.detached)
                and value.tensor is not None
                and edge_of(value.tensor) == edge_of(tensor)
                for mutation, value in zip(self.mutation_values, self.values, strict=False)
            )
        match self.outputs[key]:
            case GraphOutput(position=position) as output:
                base = self.values[len(self.mutation_values) + position].tensor
            case InputAlias(input=number, earlier=False) as output:
                numbers = [n for n in self._initial if self.specs[n].position == number]
                base = self.arguments[numbers[0]] if numbers else tensor.record.storage.root
            case _:
                return False
        plain = output.making == "view" and all(step.grad_mode for step in output.chain)
        return plain and base is not None and is_view_by_autograd(tensor, base)

    def edges(self, points: Sequence[int]) -> list[FakeTensor]:
        """The tensors at whose edges backwards end: of the values with a gradient, then of these of `beside`."""
        values = [value.tensor for value in self.values if value.requires_grad]
        return [one for one in values if one is not None] + [self.beside[key] for key in points]

    def _layout_of(self, number: int) -> ViewChain:
        """The views that in-place changes of an input's own layout have put on it."""
        value = self.arguments[number].record
        if value.storage.input < 0:
            return tuple(value.chain[1:])  # the first makes the member of its storage
        return tuple(value.storage.layout)

    def _detached(self) -> set[int]:
        """The inputs that `detach_` cut from their history."""
        return {
            number
            for number in self._initial
            if self.specs[number].requires_grad
            and self.arguments[number].record.storage.input >= 0
            and (
                not self.arguments[number].requires_grad
                # Written through autograd, and what it was before has no part in it.
                or not _comes_from(self.arguments[number].grad_fn, self._initial[number][1])
            )
        }

    def _observe_mutations(self) -> None:
        changed: dict[Any, int] = {}
        detached = self._detached()
        layouts = {number: self._layout_of(number) for number in self._initial}
        steps: dict[Any, int] = {}
        for number, layout in layouts.items():
            storage = self.arguments[number].record.storage
            steps[storage] = steps.get(storage, 0) + len(layout)
            if storage.generation:
                changed.setdefault(storage, number)
        for storage, number in sorted(changed.items(), key=lambda item: item[0].written_at):
            version, grad_fn = self._initial[number]
            root = storage.root
            through_autograd = root.requires_grad and root.grad_fn is not grad_fn
            alone = storage.input >= 0
            layout = layouts.pop(number) if alone else ()
            position = None
            if storage.node is not storage.first_node:
                if alone and functional.may_overlap(self.specs[number].meta):
                    raise UnsupportedAliasing(
                        "an input is changed in place of which several elements lie in one place of memory",
                        "the change of one is a change of the others, which no functional graph follows",
                        "expand() inside the function, or pass a clone",
                        self.context.source_line,
                    )
                position = len(self.values)
                value = root
                if through_autograd:
                    self._refuse_untracked(root, storage)
                    if not alone and steps[storage]:
                        raise UnsupportedAliasing(
                            "an input whose layout changes in place",
                            "other inputs lie in the same memory, and autograd follows a write",
                            "use the out-of-place view, or pass clones",
                            self.context.source_line,
                        )
                    value = self._in_first_layout(root, layout)
                self.values.append(GraphValue(storage.node, value, through_autograd))
            where = self.specs[number].position if alone else storage.input
            self.mutations.append(
                InputMutation(
                    where,
                    position,
                    through_autograd,
                    version_of(self.arguments[number]) - version - steps[storage],
                    layout=_in_place(layout),
                    detached=number in detached,
                )
            )
            detached.discard(number)
        written = {self.specs[number].position for number in changed.values()}
        for number, layout in layouts.items():
            where = self.specs[number].position
            storage = self.arguments[number].record.storage
            increment = version_of(self.arguments[number]) - self._initial[number][0]
            increment = 0 if storage in changed else increment - steps[storage]
            if layout:
                # Made on the real tensor by the same operators, which autograd sees there; on a
                # member of a storage while nothing is tracked yet.
                change = InputMutation(
                    where,
                    None,
                    False,
                    increment,
                    layout=_in_place(layout),
                    detached=number in detached,
                )
                if storage.input < 0:
                    self.mutations.insert(0, change)
                else:
                    self.mutations.append(change)
            elif number in detached:
                self.mutations.append(InputMutation(where, None, False, increment, detached=True))
            elif increment and where not in written and self._owns(number):
                self.mutations.append(InputMutation(where, None, False, increment))

    def _refuse_untracked(self, root: FakeTensor, storage: Storage) -> None:
        """Leave to eager what autograd's own kernels follow, and no compiled graph can."""
        if not (root.dtype.is_floating_point or root.dtype.is_complex):
            raise UnsupportedOperator(
                f"a tensor of {root.dtype} that gets a gradient by an in-place change",
                "numbers of this dtype have no gradients",
                "detach() what is written into it",
                self.context.source_line,
            )
        if storage.input is not None and storage.input < 0:
            if self._shared[-1 - storage.input].one_base:
                return
            raise UnsupportedAliasing(
                "a change in place that autograd follows",
                "inputs lie in the memory that is written without being views of one base",
                "pass clones",
                self.context.source_line,
            )

    def _in_first_layout(self, tensor: FakeTensor, layout: ViewChain) -> FakeTensor:
        """A view of an input whose layout changed in place, in the layout in which it came."""
        if not layout:
            return tensor
        if any(step.operator is aten.as_strided.default or not step.grad_mode for step in layout):
            raise UnsupportedAliasing(
                "an input that is written, and whose layout as_strided_ or no_grad code changes",
                "autograd follows the change of its value",
                "use the out-of-place view",
                self.context.source_line,
            )
        with torch.enable_grad():
            for step in undoing(layout):
                tensor = self.context.apply(step, tensor)
        return tensor

    def _refuse_history_of_detached(self) -> None:
        """Leave to eager a view from before `detach_` of an input whose layout changes too."""
        both = {one.input for one in self.mutations if one.detached and one.layout}
        for output in self.outputs:
            if isinstance(output, InputAlias) and output.input in both and not output.identical:
                raise UnsupportedAliasing(
                    "a view of an input that is detached in place and given another layout",
                    "the view has the history that the input no longer has",
                    "use detach() and the out-of-place view",
                    self.context.source_line,
                )

    def _owns(self, number: int) -> bool:
        """Whether no earlier input lies in the same storage, so that its count is the storage's."""
        storage = self.arguments[number].record.storage
        if storage.generation:
            return False
        return all(
            self.arguments[other].record.storage is not storage
            for other in self._initial
            if other < number
        )

    def _observe_outputs(self, outputs: Sequence[Any]) -> None:
        seen: dict[int, int] = {}
        sharing: dict[Any, int] = {}
        for output in outputs:
            if isinstance(output, FakeTensor) and id(output) not in seen:
                seen[id(output)] = -1
                storage = output.record.storage
                sharing[storage] = sharing.get(storage, 0) + 1
        seen.clear()
        bases: dict[Any, int] = {}
        for number, output in enumerate(outputs):
            known = seen.get(id(output)) if isinstance(output, torch.Tensor) else None
            if known is not None:
                self.outputs.append(SameAs(known))
                continue
            if isinstance(output, FakeTensor):
                seen[id(output)] = number
                self.outputs.append(self._fake_output(output, sharing, bases))
            elif isinstance(output, (torch.SymInt, torch.SymFloat)):
                node = self.context.sizes.node(symbol_of(output))
                if isinstance(node, (int, float)):
                    self.outputs.append(Constant(node))
                else:
                    position = self._add(GraphValue(node, None, False))
                    self.outputs.append(GraphOutput(position, (), "view", direct=True))
            elif is_wrapper(output):
                raise ReturnedError
            else:
                self.outputs.append(Constant(output))

    def _fake_output(
        self, output: FakeTensor, sharing: dict[Any, int], bases: dict[Any, int]
    ) -> OutputKind:
        value = output.record
        storage = value.storage
        requires_grad = output.requires_grad
        if storage.input is not None:
            position = self._argument_ids.get(id(output))
            if position is not None:
                return InputAlias(position, (), "view", identical=True)
            return self._alias_of_input(output)
        if requires_grad:
            self._refuse_untracked(output, storage)
        root = storage.root
        making, version = making_of(output, root)
        made_in_no_grad = any(not step.grad_mode for step in value.chain)
        if requires_grad and not made_in_no_grad and output.is_leaf:
            raise TraceError(
                "a tensor made inside with requires_grad=True is returned",
                "a leaf of the caller's autograd graph cannot come out of a compiled graph",
                "make the tensor outside and pass it in",
                self.context.source_line,
            )
        shares = (
            sharing[storage] > 1
            or not _fills_its_block(output.meta)
            or (made_in_no_grad and requires_grad)
        )
        if sharing[storage] > 1 and root is not None and requires_grad and not root.requires_grad:
            raise UnsupportedAliasing(
                "an output with a history that lies in the memory of one without",
                "it was detached and then changed in place through autograd",
                "clone() it before the change",
                self.context.source_line,
            )
        if not shares or root is None or (requires_grad and not root.requires_grad):
            node = functional.node_of(self.context, output)
            if value.chain and node.meta.stride != output.meta.stride:
                # Strides along single elements: only the view itself has them.
                value.generation = -1
                node = functional.node_of(self.context, output)
            position = self._add(GraphValue(node, output, requires_grad))
            return GraphOutput(position, (), "view", direct=True)
        position = bases.get(storage, -1)
        if position < 0:
            node = functional.node_of(self.context, root)
            position = bases[storage] = self._add(GraphValue(node, root, root.requires_grad))
        if requires_grad and base_of(output) is not base_of(root):
            raise UnsupportedAliasing(
                "an output that lies in another's memory with a history of its own",
                "it was detached and then changed in place through autograd",
                "clone() it before the change",
                self.context.source_line,
            )
        chain = self._after_layout(output, root)
        return GraphOutput(position, chain, making, direct=output is root, version=version)

    def _alias_of_input(self, output: FakeTensor) -> OutputKind:
        """An output that is another tensor on an input's memory."""
        storage = output.record.storage
        number = storage.input
        where = number if number < 0 else self.specs[number].position
        base = storage.root if number < 0 else self.arguments[number]
        tracked = output.requires_grad
        making, version = making_of(output, base)
        if tracked and (
            making != "view"
            or base_of(output) is not base_of(base)
            or not (base.requires_grad or (number >= 0 and self.specs[number].requires_grad))
        ):
            raise UnsupportedAliasing(
                "an output that lies in an input's memory with a history of its own",
                "it was detached from the input and then changed in place through autograd",
                "clone() the input before the change",
                self.context.source_line,
            )
        if making == "view" and not tracked and number >= 0 and self.specs[number].requires_grad:
            making = "detached"
        chain = self._after_layout(output, base)
        earlier = (
            tracked
            and number >= 0
            and self.specs[number].is_view
            and not storage.layout
            and output.record.born < storage.generation
            and all(step.grad_mode for step in chain)
        )
        return InputAlias(where, chain, making, identical=False, version=version, earlier=earlier)

    def _after_layout(self, output: FakeTensor, base: FakeTensor) -> ViewChain:
        """The views from the base, in the layout that it has at the end, to an alias of it."""
        value = output.record
        layout: ViewChain = value.storage.layout
        if value.chain[: len(layout)] == layout:
            return tuple(value.chain[len(layout) :])
        if output.requires_grad and any(s.operator is aten.as_strided.default for s in layout):
            raise UnsupportedAliasing(
                "a view of a tensor whose layout changed in place later",
                "the tensor no longer shows where the view begins",
                "use the out-of-place view",
                self.context.source_line,
            )
        assert base is value.storage.root, "only a root has a layout of its own"
        return (*undoing(layout), *value.chain)

    def _add(self, value: GraphValue) -> int:
        self.values.append(value)
        return len(self.values) - 1 - len(self.mutation_values)

    @property
    def mutation_values(self) -> list[InputMutation]:
        """The mutations that have a value in the graph."""
        return [mutation for mutation in self.mutations if mutation.position is not None]

    def versions(self) -> tuple[int, ...]:
        """How often eager has changed each value in place by the time it is returned."""
        first = len(self.mutation_values)
        return tuple(
            0 if number < first or value.tensor is None else version_of(value.tensor)
            for number, value in enumerate(self.values)
        )

    def separate(self) -> None:
        """Give each value that lies in an input's or another value's memory a copy of its own."""
        used: set[Node] = set()
        for value in self.values:
            node = value.node
            if value.tensor is None:
                continue
            root = _memory_of(node)
            if root in used or root.kind != "call":
                copy = self.context.record(
                    aten.clone.default, (self.context.fresh(node.meta, node),), {}, impure=True
                )
                value.node = copy.record.node
                value.node.impure = False
                if _is_apart(node.meta):
                    value.node.meta = node.meta  # eager's strides, gaps and all
                root = value.node
            used.add(root)


def _is_apart(meta: Any) -> bool:
    """Whether no two elements of a tensor with these sizes and strides can share memory."""
    return meta.is_static and not functional.may_overlap(meta)


def _memory_of(node: Node) -> Node:
    """The node whose result a view node looks at, through any number of views."""
    while node.kind == "call" and node.operator in functional.INVERSES:
        node = node.args[0]
    return node


def making_of(output: FakeTensor, base: FakeTensor | None) -> tuple[Making, int]:
    """How an alias of `base` was made, and its version counter where it has one of its own."""
    if base is None or output is base:
        return "view", 0
    is_view = output._is_view()
    if not shares_version(output, base):
        return ("severed" if is_view else "then severed"), version_of(output)
    if not is_view:
        return "then detached", 0
    return ("detached" if base.requires_grad and not output.requires_grad else "view"), 0


def _comes_from(node: Any, origin: Any) -> bool:
    """Whether one autograd node is made from another; a leaf has none."""
    if node is origin or origin is None:
        return node is origin
    pending, seen = [node], {node}
    while pending:
        for following, _ in pending.pop().next_functions:
            if following is origin:
                return True
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return False


def _fills_its_block(meta: TensorMeta) -> bool:
    return functional.is_dense(meta) or 0 in meta.shape


def _in_place(layout: ViewChain) -> ViewChain:
    """The same changes of layout, as the in-place operators that the program called."""
    return tuple(replace(step, operator=IN_PLACE_LAYOUTS[step.operator]) for step in layout)
