"""What a graph of loops is: buffers, views, loop nodes, operator calls, the graph.

Everything is immutable data. A `LoopNode` says what is computed, over which ranges; how it is
grouped with others and run is said by `inductor.ir.kernel`. Sizes and strides are ints or
`primtorch.symbolic` expressions over size symbols.

Invariant of a `Graph` (checked by `inductor.ir.verify`): nodes stand in an order in which every
buffer is written before it is read, every buffer that is not an input is written by exactly one
node (scatters also write the buffer that another node initialised), and no input is written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from inductor.ir.operations import EFFECTS, Operation, Size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from inductor.ir.counters import Counters

SourceLine = tuple[str, int, str, str]


@dataclass(frozen=True, slots=True)
class View:
    """A strided window onto a buffer's storage: how operator calls and outputs see it.

    `dtype` is the element type that the window reads as; it differs from the buffer's only for
    `view.dtype` reinterpretations of equal width.
    """

    buffer: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor's memory.

    Element `c` lies `sum(c[d] * stride[d])` elements from its first one; the data pointer of an
    input already points there, whatever its storage offset.
    """

    name: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def view(self) -> View:
        """The whole buffer."""
        return View(self.name, self.shape, self.stride, 0, self.dtype)


@dataclass(frozen=True, slots=True)
class Origin:
    """The graph node that something was lowered from, and the user's line that caused it."""

    node: str
    target: str
    source_line: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A straight run of operations at one loop level.

    `level` is "outer" (once for each point of the outer ranges) or "inner" (for each point of the
    reduction ranges within it). `start` is the position of the first operation: positions number
    all operations of all stages of a body consecutively. Values of outer stages and of `reduce` and
    `part` are visible in all later stages; other values of an inner stage only within it.
    """

    level: Literal["outer", "inner"]
    start: int
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class LoopBody:
    """Loops and what runs in them.

    `ranges` and `reduction_ranges` are extents, outermost first; the loop variables are the symbols
    `outer_symbol(k, extent)` and `inner_symbol(k, extent)` of `inductor.ir.index`.
    """

    ranges: tuple[Size, ...]
    reduction_ranges: tuple[Size, ...]
    stages: tuple[Stage, ...]

    def operations(self) -> Iterator[tuple[int, Operation, Stage]]:
        """All operations in order, each with its position and stage."""
        for stage in self.stages:
            position = stage.start
            for operation in stage.operations:
                yield position, operation, stage
                position += 1

    @cached_property
    def reads(self) -> frozenset[str]:
        """Buffers that are loaded."""
        return frozenset(
            operation.buffer
            for stage in self.stages
            for operation in stage.operations
            if operation.name == "load" and operation.buffer is not None
        )

    @cached_property
    def writes(self) -> frozenset[str]:
        """Buffers that are stored or accumulated to."""
        return frozenset(
            operation.buffer
            for stage in self.stages
            for operation in stage.operations
            if operation.name in EFFECTS and operation.buffer is not None
        )


LoopKind = Literal["pointwise", "reduction", "scan", "scatter"]


@dataclass(frozen=True, slots=True)
class LoopNode:
    """One computation as a loop nest.

    Kinds: "pointwise" has no reduction ranges; "reduction" ends its inner stage in `reduce` and
    stores outside of it; "scan" stores inside; "scatter" stores to indirect places or adds, into a
    buffer initialised before.
    """

    name: str
    kind: LoopKind
    body: LoopBody
    device: torch.device
    origins: tuple[Origin, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        """Buffers read."""
        return self.body.reads

    @property
    def writes(self) -> frozenset[str]:
        """Buffers written."""
        return self.body.writes


@dataclass(frozen=True, slots=True)
class WithNumbers:
    """An operator some of whose numbers lie in memory: it takes tensors of one float64 in their place.

    `places` are positions among the arguments, `names` keywords.
    """

    operator: torch._ops.OpOverload
    places: tuple[int, ...]
    names: tuple[str, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the operator with the numbers."""
        numbers = [_item(one) if i in self.places else one for i, one in enumerate(args)]
        named = {key: _item(one) if key in self.names else one for key, one in kwargs.items()}
        return self.operator(*numbers, **named)

    def __str__(self) -> str:
        """The operator's name."""
        return str(self.operator)

    @property
    def _schema(self) -> torch._C.FunctionSchema:
        return self.operator._schema

    @property
    def tags(self) -> list[torch.Tag]:
        """The operator's."""
        return self.operator.tags

    @property
    def namespace(self) -> str:
        """The operator's."""
        return self.operator.namespace


def _item(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_item(one) for one in value]
    return value.item() if isinstance(value, torch.Tensor) else value


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An ATen (or user library's) operator run as it is.

    `kind` "vendor": deliberately the library's (matrix products, convolutions, attention), `reason`
    says why; "fallback": nobody lowers it. `args` and `kwargs` mirror the operator's schema,
    tensors replaced by `View`, symbolic integers by expressions. `outputs[k]` names the buffer of
    the k-th result of the flattened return value; None where that result is no tensor or is used by
    nobody. Each output buffer's layout is what the operator returns; the executor copies when it
    doesn't.
    """

    name: str
    kind: Literal["vendor", "fallback"]
    operator: torch._ops.OpOverload | WithNumbers | Counters
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[str | None, ...]
    reason: str
    origins: tuple[Origin, ...] = ()

    @property
    def is_untried(self) -> bool:
        """Whether a rule alone says what it returns: one of ATen that is on no list, which tests go through."""
        return self.kind == "fallback" and getattr(self.operator, "namespace", "") == "aten"

    @property
    def reads(self) -> frozenset[str]:
        """Buffers read."""
        return frozenset(view.buffer for view in self.views())

    @property
    def writes(self) -> frozenset[str]:
        """Buffers written."""
        return frozenset(name for name in self.outputs if name is not None)

    def views(self) -> Iterator[View]:
        """All tensor arguments in order."""
        stack: list[Any] = [*reversed(tuple(self.kwargs.values())), *reversed(self.args)]
        while stack:
            value = stack.pop()
            if isinstance(value, View):
                yield value
            elif isinstance(value, tuple | list):
                stack.extend(reversed(value))


Node = LoopNode | OperatorCall


@dataclass(frozen=True, slots=True)
class GraphInput:
    """One entry of the boxed argument list.

    "tensor": buffer `name` with the layout promised by the wire. "size": an integer bound to
    `symbol` (None when nothing uses it). "scalar": a Python number of `dtype`, read in bodies by
    `argument`.
    """

    name: str
    kind: Literal["tensor", "size", "scalar"]
    symbol: Size | None = None
    dtype: torch.dtype | None = None
    static: bool = False


@dataclass(frozen=True)
class Graph:
    """A functional graph as loops and operator calls.

    `outputs[k]` is a `View`, an integer or expression, a float, or None; what the boxed callable
    returns. Views of two outputs may show one buffer (the executor returns tensors of their own,
    strided over a shared storage only where that cannot be seen: it clones otherwise). `constants`
    are tensors of the traced graph that the bodies read. `written` pairs an output that is the new value
    of an input with that input: it may be computed in the input's memory.
    """

    name: str
    inputs: tuple[GraphInput, ...]
    buffers: Mapping[str, Buffer]
    nodes: tuple[Node, ...]
    outputs: tuple[Any, ...]
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    role: str = "inference"
    written: tuple[tuple[int, int], ...] = ()
