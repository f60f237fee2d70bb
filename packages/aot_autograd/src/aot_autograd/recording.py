"""The recording context: what happens when an operator meets a fake tensor during a trace.

Comes in: every ATen call below C++ autograd, as `handle(operator, args, kwargs)`. Goes out: fresh
fake tensors, and one light node per primitive call in `nodes`. Each call is sorted once per
overload (view, mutation, random, pure); views become chains, mutations become values
(`functional.py`), random operators become functions of a seed (`random.py`), pure operators are
decomposed by the table that the caller passed, or recorded. Equal pure calls are recorded once.
"""

from __future__ import annotations

import operator as python_operator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from aot_autograd import functional, random, rewriting
from aot_autograd._torch import (
    OpOverload,
    checkpoint_hook,
    current_autograd_node,
    has_composite_implicit,
    is_kept_by_policy,
    next_autograd_number,
    run_composite_implicit,
)
from aot_autograd.errors import TraceError
from aot_autograd.functional import Storage, Value
from aot_autograd.graph import Node
from aot_autograd.known import known_result
from aot_autograd.metadata import ViewStep
from aot_autograd.seeds import Seeds
from aot_autograd.selected import gradient_of_written
from aot_autograd.sizes import SizeNodes, is_symbolic, symbol_of
from aot_autograd.stated import states_a_check
from primtorch.errors import DataDependentError
from primtorch.fake import FactoryMode, FakeTensor, TensorMeta, infer, meta_of
from primtorch.symbolic import Expression

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aot_autograd.errors import SourceLine
    from aot_autograd.standing import Standing

aten = torch.ops.aten

DRAW_SEED = torch.ops.primtorch.draw_seed.default

_ALIASES = frozenset((aten.detach.default, aten.alias.default, aten.lift_fresh.default))
_MULTIPLE_VIEWS = frozenset((aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int))
_CPU = torch.device("cpu")


@cache
def kind_of(operator: OpOverload) -> str:
    """Which rule an overload follows: alias, views, view, hidden, mutation, random, or pure."""
    if operator in _ALIASES:
        return "alias"
    if operator in _MULTIPLE_VIEWS:
        return "views"
    if operator in functional.INVERSES:
        return "view"
    if operator in rewriting.HIDDEN_MUTATIONS:
        return "hidden"
    if operator._schema.is_mutable:
        return "mutation"
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return "random"
    return "pure"


@cache
def _is_composite(operator: OpOverload) -> bool:
    # ATen has this prim in terms of `_conj_physical`, which is decomposed into it.
    return has_composite_implicit(operator) and operator is not torch.ops.aten.conj_physical.default


@cache
def _may_alias(operator: OpOverload) -> bool:
    if has_composite_implicit(operator):
        return True
    return any(result.alias_info is not None for result in operator._schema.returns)


def made_like(is_inference: bool) -> AbstractContextManager[Any]:
    """Inside, tensors are made that autograd doesn't save and nobody changes; any tensors if there is no such need."""
    return torch.inference_mode() if is_inference else _AS_EVER


_AS_EVER: AbstractContextManager[None] = nullcontext()


class RecordingContext:
    """Records what fake tensors go through. One object per trace.

    Args:
        table: Decompositions by overload.
        fallback_random: Leave random operators to ATen, in program order.
        environment: The size environment of the inputs, or None when all sizes are numbers.
    """

    def __init__(
        self,
        table: Mapping[OpOverload, Any],
        *,
        fallback_random: bool = False,
        environment: Any = None,
    ) -> None:
        self.table = table
        self.fallback_random = fallback_random
        self.environment = environment
        self.nodes: list[Node] = []
        self.sizes = SizeNodes(self._append_pure)
        self.writes = 0
        self.backward_errors: tuple[str, ...] = ()
        self.standing: list[Standing] = []
        self.ending = False
        self.views_of_tangents: dict[int, tuple[int, tuple[ViewStep, ...]]] = {}
        self.phase = "forward"
        self.region_number = 0
        self.source_line: SourceLine | None = None
        self.module_path: str | None = None
        self.seeds = Seeds()
        self._factories = FactoryMode(self)
        self._serial = 0
        self._regions = 0
        self._checkpoints: dict[Any, int] = {}
        self._equal: dict[Any, Any] = {}
        self._places: dict[int, tuple[SourceLine, str | None]] = {}
        self._constants: dict[int, tuple[torch.Tensor, Node]] = {}

    # ------------------------------------------------------------------ making tensors

    def placeholder(self, name: str, meta: Any, tag: dict[str, Any] | None = None) -> Node:
        """Append a placeholder node."""
        node = Node("placeholder", None, (), {}, meta, self.phase)
        node.name = name
        node.tag = tag
        self.nodes.append(node)
        return node

    def fresh(self, meta: TensorMeta, node: Node) -> FakeTensor:
        """A fake tensor with a storage of its own whose value is `node`."""
        tensor = FakeTensor.create(meta, self, environment=self.environment)
        self._serial += 1
        storage = Storage(node, meta, self._serial)
        storage.root = tensor
        tensor.record = Value(storage, (), node)
        return tensor

    def bind(self, tensor: FakeTensor, node: Node, number: int | None) -> FakeTensor:
        """Give a fake that was made elsewhere a storage of its own; returns it."""
        self._serial += 1
        storage = Storage(node, tensor.meta, self._serial, number)
        storage.root = tensor
        tensor.record = Value(storage, (), node)
        return tensor

    def value_now(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with the value that another one has now, whatever is written into that one later."""
        return self.fresh(meta_of(tensor), self.node_of(tensor))

    def alias(self, tensor: FakeTensor) -> FakeTensor:
        """Another fake tensor for the same memory, without a graph node."""
        value = tensor.record
        value.storage.aliases += 1
        with made_like(tensor.is_inference()):
            result = FakeTensor.create(tensor.meta, self, environment=self.environment)
        result.record = made = Value(value.storage, value.chain, value.node)
        made.generation = value.generation
        if value.chain:
            made.born = value.born
        return result

    @contextmanager
    def recomputed(self) -> Iterator[None]:
        """Nodes recorded inside are computed again in the backward instead of being saved."""
        outer = self.region_number
        self._regions += 1
        self.region_number = outer or self._regions
        try:
            yield
        finally:
            self.region_number = outer

    @contextmanager
    def region(self, kind: str, options: dict[str, Any]) -> Iterator[None]:
        """A region of `primtorch.regions`.

        `preserve_rng_state` of a checkpoint holds by itself: random numbers are values of the
        graph. Its context of the forward is entered; a selective policy is seen in `handle`.
        """
        if kind != "checkpoint":
            yield
            return
        contexts = options.get("context_fn")
        forward: AbstractContextManager[Any] = nullcontext()
        if contexts is not None:
            forward, _ = contexts()
        with self.recomputed(), forward:
            yield

    def _region_now(self) -> int:
        """The checkpoint that an operator of the forward belongs to, or 0."""
        if self.region_number:
            return self.region_number
        hook = checkpoint_hook()
        if hook is None:
            return 0
        number = self._checkpoints.get(hook)
        if number is None:
            self._regions += 1
            number = self._checkpoints[hook] = self._regions
        return number

    def constant(self, tensor: torch.Tensor | complex) -> FakeTensor:
        """A fake tensor that starts with the value of a real one.

        Autograd conjugates the complex number that a tensor was multiplied by: it comes as a number of Python.
        """
        if isinstance(tensor, (int, float, complex)):
            dtype = torch.complex128 if isinstance(tensor, complex) else None
            return self.operate(aten.full.default, [], tensor, dtype=dtype, device=_CPU)
        return self.fresh(meta_of(tensor), self._constant_node(tensor))

    def lifted(self, tensor: torch.Tensor) -> FakeTensor:
        """What `torch.tensor` made: a number is filled in, where kernels see it; more is a constant."""
        if tensor.dim() or tensor.dtype.is_complex or tensor.device.type != "cpu":
            return self.constant(tensor)
        return self.operate(
            aten.full.default, [], tensor.item(), dtype=tensor.dtype, device=tensor.device
        )

    def operate(self, operator: OpOverload, *args: Any, **kwargs: Any) -> FakeTensor:
        """Record one pure operator or view; used by the rewriting of mutations."""
        result: FakeTensor = self.handle(operator, args, kwargs)
        return result

    def apply(self, step: ViewStep, tensor: FakeTensor) -> FakeTensor:
        """Apply a recorded view, as autograd sees it, to another tensor."""
        arguments = [self._argument_in_cpp(argument) for argument in step.arguments]
        result: FakeTensor = step.operator(tensor, *arguments, **dict(step.keywords))
        return result

    def _argument_in_cpp(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return [self._argument_in_cpp(item) for item in value]
        return self._number(value)

    # ------------------------------------------------------------------ the one entry

    def handle(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What every fake tensor calls for every operator below autograd."""
        match kind_of(operator):
            case "pure":
                return self._pure(operator, args, kwargs)
            case "view":
                return self._view(operator, args, kwargs)
            case "alias":
                tensor = args[0]
                if not isinstance(tensor, FakeTensor):
                    return self.constant(tensor)
                if self.phase == "forward" and self._region_now() and is_kept_by_policy():
                    self.node_of(tensor).kept = True
                return self.alias(tensor)
            case "views":
                return self._views(operator, args, kwargs)
            case "hidden":
                return rewriting.hidden_mutation(self, operator, args, kwargs)
            case "mutation":
                return rewriting.mutation(self, operator, args, kwargs)
            case "random":
                return self._random(operator, args, kwargs)
            case kind:
                raise AssertionError(f"unknown kind {kind!r}")

    # ------------------------------------------------------------------ one method per kind

    def _pure(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self.decomposed(operator, args, kwargs)
        if result is not NotImplemented:
            return result
        if operator is aten.size.default:  # asked by C++ that reads numbers
            return [int(size) for size in args[0].shape]
        if _is_composite(operator):
            return run_composite_implicit(operator, args, kwargs)
        return self.record(operator, args, kwargs, impure=not operator._schema.returns)

    def decomposed(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the operator's decomposition gives, as tensors of their own; NotImplemented without."""
        decomposition = self.table.get(operator)
        if decomposition is None:
            return NotImplemented
        start = self._serial
        with self._factories:
            result = decomposition(*args, **kwargs)
        if result is NotImplemented or _may_alias(operator):
            return result
        return self._owned(result, start)

    def record(
        self,
        operator: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        impure: bool = False,
    ) -> Any:
        """Append the call itself, or find an equal one, and return its results as fresh fakes."""
        node_args = tuple([self._argument(arg) for arg in args])
        node_kwargs = {key: self._argument(arg) for key, arg in kwargs.items()} if kwargs else {}
        key = None
        if not impure:
            key = (operator, _key(node_args), _key_of_mapping(node_kwargs) if kwargs else None)
            known = self._equal.get(key)
            if known is not None:
                return self._results(known)
        try:
            meta = infer(operator, args, kwargs, self.environment)
        except DataDependentError:
            if operator is aten.index.Tensor and self.phase == "backward":
                gradient = gradient_of_written(self, args[0], args[1], node_args[1])
                if gradient is not None:
                    return gradient
            if self.phase == "backward" and states_a_check(self, operator, args):
                return True
            found = known_result(operator, node_args, node_kwargs)
            if found is None:
                raise
            return tree_map_only(torch.Tensor, self.constant, found)
        node = self._append(operator, node_args, node_kwargs, meta)
        node.impure = impure
        known = node
        if type(meta) is not TensorMeta and isinstance(meta, (tuple, list)):
            known = self._items(node, meta)
        if key is not None:
            self._equal[key] = known
        return self._results(known)

    def _view(
        self,
        operator: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        several: bool = False,
    ) -> Any:
        tensor = args[0]
        if not isinstance(tensor, FakeTensor):
            tensor = self.constant(tensor)
        rest = args[1:]
        source = functional.node_of(self, tensor)
        node_args = (source, *[self._argument(arg) for arg in rest])
        node_kwargs = {key: self._argument(arg) for key, arg in kwargs.items()} if kwargs else {}
        key = (operator, _key(node_args), _key_of_mapping(node_kwargs) if kwargs else None)
        node = self._equal.get(key)
        if node is None:
            meta = infer(operator, (tensor, *rest), kwargs, self.environment)
            node = self._append(operator, node_args, node_kwargs, meta)
            self._equal[key] = node
        meta = node.meta
        value = tensor.record
        frozen = tuple([tuple(arg) if type(arg) is list else arg for arg in rest])
        step = ViewStep(
            operator,
            frozen,
            tuple(kwargs.items()),
            tensor.meta,
            grad_mode=torch.is_grad_enabled(),
            several=several,
        )
        # The storage offset of a view is relative to its base, not to the node it came from.
        with made_like(tensor.is_inference()):
            result = FakeTensor.create(meta, self, environment=self.environment)
        value.storage.aliases += 1
        result.record = made = Value(value.storage, (*value.chain, step), node)
        made.generation = value.generation
        if value.chain:
            made.born = value.born
        return result

    def _views(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Several views at once, each recorded as the slice or the selection that it is."""
        given = dict(zip(("self", "size", "dim"), args, strict=False)) | kwargs
        tensor = args[0]
        if operator is aten.unbind.int:
            axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            axis %= tensor.dim()
            return [
                self._view(aten.select.int, (tensor, axis, index), {}, several=True)
                for index in range(int(tensor.shape[axis]))
            ]
        axis = given.get("dim", 0) % tensor.dim()
        extent = tensor.shape[axis]
        if operator is aten.split.Tensor:
            size = args[1] if len(args) > 1 else kwargs["split_size"]
            # Only the number of pieces must be known.
            pieces = int((extent + size - 1) // size) if size else 1
            bounds = [
                (number * size, extent if number == pieces - 1 else (number + 1) * size)
                for number in range(max(pieces, 1))
            ]
        else:
            sizes = args[1] if len(args) > 1 else kwargs["split_sizes"]
            bounds, start = [], 0
            for size in sizes:
                bounds.append((start, start + size))
                start = start + size
        return [
            self._view(aten.slice.Tensor, (tensor, axis, begin, end), {}, several=True)
            for begin, end in bounds
        ]

    def _random(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if operator is DRAW_SEED:
            return self.record(operator, args, kwargs, impure=True)
        key = (operator, self.seeds.ticket())
        known = self.seeds.results.get(key)
        if known is not None:
            return self._results(known)
        result = self._first_random(operator, args, kwargs)
        self.seeds.results[key] = self._argument(result)
        return result

    def _first_random(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not self.fallback_random:
            rule = random.RULES.get(operator)
            if rule is not None and kwargs.get("generator") is None:
                result = rule(self, *args, **kwargs)
                if result is not NotImplemented:
                    return result
            decomposition = self.table.get(operator)
            if decomposition is not None and kwargs.get("generator") is None:
                start = self._serial
                with self._factories:
                    result = decomposition(*args, **kwargs)
                if result is not NotImplemented:
                    return self._owned(result, start)
        if operator is aten.size.default:  # asked by C++ that reads numbers
            return [int(size) for size in args[0].shape]
        if _is_composite(operator):
            return run_composite_implicit(operator, args, kwargs)
        return self.record(operator, args, kwargs, impure=True)

    # ------------------------------------------------------------------ nodes

    def _append(self, target: Any, args: Any, kwargs: Any, meta: Any) -> Node:
        node = Node("call", target, args, kwargs, meta, self.phase)
        if self.phase == "backward":
            self._place_in_backward(node)
        else:
            node.region = self._region_now()
            node.source_line = self.source_line
            node.module_path = self.module_path
            if self.source_line is not None:
                # Autograd made its node, if any, right before it called the operator.
                self._places[next_autograd_number() - 1] = (self.source_line, self.module_path)
        self.nodes.append(node)
        return node

    def _place_in_backward(self, node: Node) -> None:
        """Give a node of the backward the line whose derivative it is."""
        if self._places:
            number = current_autograd_node()
            if number is not None:
                place = self._places.get(number)
                if place is not None:
                    node.source_line, node.module_path = place

    def _append_pure(self, target: Any, args: tuple[Any, ...], meta: Any) -> Node:
        return self._append(target, args, {}, meta)

    def _items(self, node: Node, metas: Any) -> tuple[Any, ...]:
        items: list[Any] = []
        for index, meta in enumerate(metas):
            if meta is None:
                items.append(None)
                continue
            item = self._append(python_operator.getitem, (node, index), {}, meta)
            if isinstance(meta, (tuple, list)):
                items.append(self._items(item, meta))
            else:
                items.append(item)
        return tuple(items)

    def _results(self, known: Any) -> Any:
        if type(known) is Node:
            if type(known.meta) is TensorMeta:
                return self.fresh(known.meta, known)
            return known.meta if self.environment is None else self._number(known.meta)
        if type(known) is tuple:
            return tuple([self._results(item) for item in known])
        return known

    def _number(self, meta: Any) -> Any:
        """A symbolic number as C++ takes it."""
        return self.environment.symint(meta) if isinstance(meta, Expression) else meta

    def _owned(self, result: Any, start: int) -> Any:
        """Results of a decomposition as tensors of their own, whatever they were computed from."""
        if isinstance(result, FakeTensor):
            value = result.record
            if not value.chain and value.storage.serial > start:
                return result
            return self.fresh(result.meta, functional.node_of(self, result))
        if isinstance(result, (tuple, list)):
            return type(result)([self._owned(item, start) for item in result])
        if isinstance(result, torch.Tensor):
            return self.constant(result)
        return result

    def _constant_node(self, tensor: torch.Tensor) -> Node:
        known = self._constants.get(id(tensor))
        if known is not None:
            return known[1]
        node = Node("constant", tensor, (), {}, meta_of(tensor), self.phase)
        self.nodes.append(node)
        self._constants[id(tensor)] = (tensor, node)
        return node

    def node_of(self, tensor: torch.Tensor) -> Node:
        """The node of a tensor's current value; a real tensor becomes a constant."""
        if isinstance(tensor, FakeTensor):
            if tensor.context is not self:
                raise TraceError(
                    "a fake tensor of another trace reached this one",
                    "tensors made while tracing must not outlive the trace",
                    "do not keep tensors of one compiled call in globals used by another",
                    self.source_line,
                )
            return functional.node_of(self, tensor)
        return self._constant_node(tensor)

    def _argument(self, value: Any) -> Any:
        kind = type(value)
        if kind is FakeTensor:
            record: Value = value.record
            if record.generation == record.storage.generation and value.context is self:
                return record.node
            return self.node_of(value)
        if kind is int or kind is float or kind is bool or value is None:
            return value
        if kind is tuple or kind is list:
            return tuple([self._argument(item) for item in value])
        if isinstance(value, torch.Tensor):
            return self.node_of(value)
        if isinstance(value, torch.SymBool):
            return bool(value)
        if is_symbolic(value):
            return self.sizes.node(symbol_of(value))
        return value


def _key(value: Any) -> Any:
    """A hashable stand-in that tells 1, 1.0 and True apart, and 0.0 from -0.0."""
    kind = type(value)
    if kind is tuple:
        return tuple([_key(item) for item in value])
    if kind is float:
        return ("float", value.hex())
    if kind is bool:
        return ("bool", value)
    if kind is complex:
        return ("complex", value.real.hex(), value.imag.hex())
    if kind is dict:
        return _key_of_mapping(value)
    return value


def _key_of_mapping(mapping: dict[str, Any]) -> Any:
    return tuple([(name, _key(item)) for name, item in mapping.items()])
