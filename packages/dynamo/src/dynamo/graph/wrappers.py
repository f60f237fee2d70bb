"""Tensors made of tensors while capturing: the same class, with fake tensors for its parts.

Comes in: a wrapper from outside and its source, or a call that has wrappers among its arguments. Goes out: a wrapper
of fakes with the guards on how it is made; what the call gives, worked out by the class's own `__torch_dispatch__` on
fakes. Invariant: a graph holds the call itself; what the class makes of it is for the backend to see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from dynamo.errors import BreakReason, GraphBreak
from dynamo.graph.tensor_classes import is_traced, is_wrapper_class
from dynamo.guards import Guard, GuardKind, TensorGuard
from dynamo.source import AttributeSource
from primtorch.fake import FactoryMode, FakeTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo.graph.recorder import Recorder
    from dynamo.source import Source
    from dynamo.values.session import Session

__all__ = [
    "MadeAs",
    "call_with_wrappers",
    "fake_wrapper",
    "grown",
    "holds_wrapper",
    "last_node",
    "made_since",
    "plain_parts",
    "record_made",
    "record_whole",
    "wrapper_attribute",
]

# What fx takes as an argument as it is.
_PLAIN = (
    int,
    float,
    bool,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.memory_format,
)


@dataclass(frozen=True, slots=True, eq=False)
class MadeAs:
    """Predicate: a wrapper has these parts, and the rest of it equals this."""

    names: tuple[str, ...]
    context: Any

    def __call__(self, found: Any) -> bool:
        """Whether it is made so."""
        names, context = found.__tensor_flatten__()
        try:
            return tuple(names) == self.names and bool(context == self.context)
        except Exception:  # noqa: BLE001 - two contexts that can't be compared are two
            return False

    @property
    def text(self) -> str:
        """For messages."""
        return f"its parts are {', '.join(self.names)}, made by {_short(self.context)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def fake_wrapper(session: Session, real: Any, source: Source) -> Any:
    """The wrapper of fakes that stands for a wrapper from outside; guarded in class, parts and context.

    Raises:
        GraphBreak: its class does not say how to take it apart, or can't put it together of fakes.
    """
    kind = type(real)
    if not is_wrapper_class(kind):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_VALUE,
            f"{source.name()} is a {kind.__name__}, whose operators are its own and which has no "
            "__tensor_flatten__",
        )
    with torch._C.DisableTorchFunction():
        if real.is_nested:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_VALUE,
                f"{source.name()} is a nested tensor, whose rows have lengths that only it knows",
            )
        names, context = real.__tensor_flatten__()
        shape, stride = real.shape, real.stride()
        session.guard(GuardKind.TENSOR, source, TensorGuard.of(real))
    made = MadeAs(tuple(names), _own_copy(context))
    session.guards.setdefault(
        (GuardKind.PREDICATE, source, MadeAs),
        Guard(source, GuardKind.PREDICATE, (made, made.text), session.source_line),
    )
    inner = {
        name: _part(session, getattr(real, name), AttributeSource(source, name)) for name in names
    }
    with torch._C.DisableTorchFunction():
        try:
            fake = kind.__tensor_unflatten__(inner, context, shape, stride)
        except Exception as error:
            raise GraphBreak(
                BreakReason.UNSUPPORTED_VALUE,
                f"{source.name()}, a {kind.__name__}, is not put together by its "
                f"__tensor_unflatten__: {type(error).__name__}: {error}",
            ) from error
        if type(fake) is not kind or not is_traced(fake):
            raise GraphBreak(
                BreakReason.UNSUPPORTED_VALUE,
                f"{source.name()}, a {kind.__name__}, comes out of its __tensor_unflatten__ as "
                f"another {type(fake).__name__}",
            )
        fake.requires_grad_(real.requires_grad)
        if isinstance(real, torch.nn.Parameter):
            fake._is_param = True
        return grown(fake) if real.requires_grad and not real.is_leaf else fake


def _part(session: Session, part: Any, source: Source) -> Any:
    """A part as the capture sees it; its sizes are constants."""
    if not isinstance(part, torch.Tensor) or id(part) in session.fakes:
        return session.wrap(part, source)
    return session.recorder.tensor_input(session, part, source, static=True)


def _own_copy(context: Any) -> Any:
    """What the program can't change afterwards."""
    return context.copy() if type(context) in (dict, list, set) else context


def plain_parts(source: Source, real: Any) -> Iterator[tuple[Source, torch.Tensor]]:
    """The tensors with memory that a tensor is made of, and where they are found."""
    if not is_wrapper_class(type(real)):
        yield source, real
        return
    for name in real.__tensor_flatten__()[0]:
        part = getattr(real, name)
        if isinstance(part, torch.Tensor):
            yield from plain_parts(AttributeSource(source, name), part)


def holds_wrapper(args: Any, kwargs: Any) -> bool:
    """Whether a wrapper is among the arguments of a call."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, tuple | list):
            if holds_wrapper(value, {}):
                return True
        elif type(value) is not FakeTensor and isinstance(value, torch.Tensor) and is_traced(value):
            return True
    return False


def call_with_wrappers(
    context: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What a call gives: autograd above, the class's own operators below it."""
    with torch._C.DisableTorchFunctionSubclass(), FactoryMode(context):
        return function(*args, **kwargs)


def record_made(recorder: Recorder, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A wrapper made by its own constructor: one node, its code unseen."""
    nodes = recorder.arguments(args), recorder.arguments(kwargs)
    try:
        with torch._C.DisableTorchFunction():
            made = cls(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the class's own code
        recorder.failed(cls, error)
    recorder.made(made, recorder.new_node(cls, *nodes))
    return made


def record_whole(
    recorder: Recorder, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A library function that is one call in the graph; objects among its arguments belong to it."""
    nodes = _with_objects(recorder, args), _with_objects(recorder, kwargs)
    recorder.overrides.subclasses = recorder.overrides.wrappers = True
    try:
        with torch._C.DisableTorchFunction():
            result = call_with_wrappers(recorder.context, function, args, kwargs)
    except GraphBreak:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it raised becomes a break
        recorder.failed(function, error)
    if id(result) not in recorder.nodes and not recorder.is_input(result):
        name = str(function.__name__)
        if args and name in vars(type(args[0])):
            node = recorder.graph.call_method(name, *nodes)
            recorder.describe(node)
        else:
            node = recorder.new_node(function, *nodes)
        recorder.made(result, node)
    return result


def _with_objects(recorder: Recorder, value: Any) -> Any:
    if type(value) is dict:
        return {name: _with_objects(recorder, item) for name, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)([_with_objects(recorder, item) for item in value])
    if is_traced(value) or type(value) in _PLAIN:
        return recorder.arguments(value)
    return recorder.attribute(value, type(value).__name__.lower())


def wrapper_attribute(recorder: Recorder, owner: Any, name: str) -> Any:
    """A part or another attribute of a wrapper that was made in the graph."""
    with torch._C.DisableTorchFunction():
        value = getattr(owner, name)
    if is_traced(value) and id(value) not in recorder.nodes and not recorder.is_input(value):
        node = recorder.graph.call_function(getattr, (recorder.node_of(owner), name))
        recorder.describe(node)
        recorder.made(value, node)
    return value


def last_node(recorder: Recorder) -> torch.fx.Node:
    """The node that was recorded last, or the graph's beginning."""
    return recorder.graph._root.prev


def made_since(recorder: Recorder, value: Any, node: torch.fx.Node) -> bool:
    """Whether a tensor's own node came after this one, so that nothing else can hold the tensor."""
    own = recorder.nodes.get(id(value))
    now = last_node(recorder)
    while own is not None and now is not node and now is not recorder.graph._root:
        if now is own:
            return now.op != "placeholder"
        now = now.prev
    return False


class _Grown(torch.autograd.Function):
    """Makes a tensor the result of a computation, as an input that is no leaf is one."""

    @staticmethod
    def forward(context: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        del anchor
        context.mark_dirty(value)
        return value

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[None, ...]:  # pragma: no cover
        del context, gradients
        raise AssertionError("nothing is differentiated while capturing")


def grown(fake: Any) -> Any:
    """The same fake with a gradient function: a leaf would refuse to be written in place."""
    fake.requires_grad_(requires_grad=False)
    with torch.enable_grad():
        return _Grown.apply(torch.empty((), requires_grad=True), fake)
