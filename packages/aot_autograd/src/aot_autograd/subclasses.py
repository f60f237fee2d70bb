"""Tensor subclasses that are made of tensors: compiled as the tensors that they are made of.

Comes in: a flat function, some of whose inputs have `__tensor_flatten__` (nested ones too). Goes out: a function of
their parts, which rebuilds the subclasses for the program, and a callable that takes parts out of real inputs and
rebuilds real outputs. `Unwrap` and `Wrap` carry gradients across: a gradient of a subclass is a subclass, or rides in
a `Carrier` where it is made in another way. `Rewritten` gives an input that was changed in place its new history.
What the subclass's own `__torch_dispatch__` does with its parts is recorded operator by operator. Invariant: graphs
and compilers see plain tensors only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from aot_autograd._torch import (
    has_own_operators,
    increment_version,
    is_made_without_grad,
    is_one_of_several_views,
    is_sole_owner,
    mark_several_views,
    preserve_version,
    shares_version,
    view_maker,
)
from aot_autograd.carried import carried, carrier_of
from aot_autograd.errors import UnsupportedOperator
from aot_autograd.sizes import zeros_of
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot_autograd.runtime import Boxed
    from aot_autograd.sparse import SparseOf
    from primtorch.fake import TensorMeta

    FlatFunction = Callable[..., Sequence[Any]]

Leaf = Literal["", "leaf", "view"]
"""Whether autograd refuses in-place changes of an input: a leaf that requires a gradient, or a view of one."""


@dataclass(frozen=True, slots=True)
class Given:
    """A part that is no tensor: the same object in every call."""

    value: Any

    def __hash__(self) -> int:
        """Of its type: the value may have no hash."""
        return hash(type(self.value))


@dataclass(frozen=True, slots=True)
class Layout:
    """How a subclass is made: its type, its parts by name (None: a plain tensor), and the rest."""

    kind: Any
    names: tuple[str, ...]
    parts: tuple[Layout | Given | None, ...]
    context: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] = field(compare=False)

    def __hash__(self) -> int:
        """Without the context, which may have no hash."""
        return hash((self.kind, self.names, self.parts, self.shape))


@dataclass(frozen=True, slots=True)
class View:
    """An output that is a view of an input: made of the real one, so that autograd knows it as such.

    `input` is its position, `-1 - k` that of the k-th output or hidden base.
    `then` is a view of the first one. `grad_mode` is the mode in which it was made, `several` whether together with
    others: autograd remembers both. An `early` one must be there before the input gets its new history.
    """

    input: int
    make: Callable[[torch.Tensor], torch.Tensor]
    then: Callable[[torch.Tensor], torch.Tensor] | None = None
    grad_mode: bool = False
    several: bool = False
    early: bool = False

    def of(self, base: torch.Tensor) -> torch.Tensor:
        """The view of a real tensor; one that was made under `no_grad` has no history."""
        with torch.set_grad_enabled(self.grad_mode):
            made = self.make(base)
            if self.then is not None:
                made = self.then(made)
        if self.several and made.requires_grad:
            mark_several_views(made)
        return made


class ReturnedError(Exception):
    """A function without subclasses among its inputs returns one: it must be translated."""


def is_wrapper(value: Any) -> bool:
    """Whether a value is a tensor made of tensors that says how to take it apart."""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, FakeTensor)
        and has_own_operators(type(value))
        and hasattr(value, "__tensor_flatten__")
        and hasattr(type(value), "__tensor_unflatten__")
    )


def take_apart(tensor: Any, parts: list[Any]) -> Layout | None:
    """The layout of a tensor, whose plain parts are appended; None for a plain tensor."""
    if not is_wrapper(tensor):
        parts.append(tensor)
        return None
    with torch._C.DisableTorchFunctionSubclass():  # its class must not answer for it
        names, context = tensor.__tensor_flatten__()
        inner = tuple(_part_of(getattr(tensor, name), parts) for name in names)
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    return Layout(type(tensor), tuple(names), inner, context, shape, stride)


def _part_of(value: Any, parts: list[Any]) -> Layout | Given | None:
    return take_apart(value, parts) if isinstance(value, torch.Tensor) else Given(value)


def put_together(layout: Layout | Given | None, parts: Iterator[Any]) -> Any:
    """A tensor of this layout from its plain parts."""
    if layout is None:
        return next(parts)
    if isinstance(layout, Given):
        return layout.value
    inner = {
        name: put_together(part, parts)
        for name, part in zip(layout.names, layout.parts, strict=True)
    }
    with torch._C.DisableTorchFunctionSubclass():
        return layout.kind.__tensor_unflatten__(inner, layout.context, layout.shape, layout.stride)


def _for_one_owner(part: Any) -> Any:
    """A gradient's part that only this gradient holds.

    Autograd copies a gradient that several tensors get, or somebody else holds, before it adds to it in place;
    inside of a subclass it would not see that.
    """
    if isinstance(part, FakeTensor):
        return part
    if hasattr(part, "_has_owner") or not is_sole_owner(part):
        return part.clone()
    part._has_owner = True
    return part


def _has_gradient(part: torch.Tensor) -> bool:
    return part.dtype.is_floating_point or part.dtype.is_complex


class Unwrap(torch.autograd.Function):
    """A subclass -> its plain parts; the gradients of the parts make the subclass's gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, gradient: list[Layout]) -> Any:
        """The parts, as tensors of their own on the same memory.

        `gradient` holds the layout of the gradient; while it is empty, it is the tensor's.
        """
        parts: list[Any] = []
        ctx.layout, ctx.gradient = take_apart(tensor, parts), gradient
        made = tuple(part.detach() for part in parts)
        ctx.metas = [(part.shape, part.dtype, part.device) for part in made]
        ctx.mark_non_differentiable(*[part for part in made if not _has_gradient(part)])
        ctx.set_materialize_grads(False)
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The subclass's gradient; an absent part is zeros."""
        if all(gradient is None for gradient in gradients):
            return None, None
        whole = carried(gradients)
        if whole is not None:
            return whole, None
        filled = [
            torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient
            for gradient, (shape, dtype, device) in zip(gradients, ctx.metas, strict=True)
        ]
        if not torch.is_grad_enabled():
            filled = list(map(_for_one_owner, filled))
        layout = ctx.gradient[0] if ctx.gradient else ctx.layout
        return Wrap.apply(layout, None, layout, *filled), None


class Wrap(torch.autograd.Function):
    """Plain parts -> a subclass; its gradient is taken apart."""

    @staticmethod
    def forward(
        ctx: Any, layout: Layout, gradient: list[Layout] | None, expected: Layout, *parts: Any
    ) -> Any:
        """The subclass; the layout of its gradient is put into `gradient` when it is known.

        Without such a list the gradient must have the layout `expected`.
        """
        ctx.expected, ctx.gradient = expected, gradient
        ctx.metas = _metas(parts)
        ctx.set_materialize_grads(False)
        return put_together(layout, iter([part.detach() for part in parts]))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of the parts."""
        return (None, None, None, *_taken_apart(gradient, ctx))


class Rewritten(torch.autograd.Function):
    """A subclass whose parts' memory was written -> itself, as the result of what made its new parts."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, expected: Layout, *histories: Any) -> Any:
        """The tensor itself.

        `histories` have the shapes of its parts, and stand for how their values came about.
        """
        ctx.mark_dirty(tensor)
        ctx.expected, ctx.gradient, ctx.is_view = expected, None, tensor._is_view()
        ctx.metas = _metas(histories)
        ctx.set_materialize_grads(False)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        """The gradients of the parts; the tensor's former value has no share."""
        # What a view gives for itself is handed to its base, with the rest of the base's gradient.
        nothing = torch.zeros_like(gradient) if ctx.is_view and gradient is not None else None
        return (nothing, None, *_taken_apart(gradient, ctx))


class History(torch.autograd.Function):
    """A part -> a tensor of its shape that has its history and no memory."""

    @staticmethod
    def forward(_ctx: Any, part: torch.Tensor) -> torch.Tensor:
        """One zero, repeated."""
        return part.new_zeros(()).expand(part.shape)

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """The gradient as it is."""
        return gradient


class Anchored(torch.autograd.Function):
    """A part without a history and a tensor that has it -> the part with that history."""

    @staticmethod
    def forward(_ctx: Any, part: torch.Tensor, _history: torch.Tensor) -> torch.Tensor:
        """Another tensor on the part's memory."""
        return part.detach()

    @staticmethod
    def backward(_ctx: Any, gradient: Any) -> Any:
        """The gradient, for the history."""
        return None, gradient


def _metas(parts: Sequence[Any]) -> list[Any]:
    return [
        (tuple(part.shape), part.dtype, part.device) if _has_gradient(part) else None
        for part in parts
    ]


def _taken_apart(gradient: Any, ctx: Any) -> list[Any]:
    """For each part its gradient.

    `ctx` holds the layout that is expected, or a list for the one that is found first; one that
    is made in another way is carried by the first part's.
    """
    if gradient is None:
        return [None for _ in ctx.metas]
    found = take_apart(gradient, [])
    if ctx.gradient is not None and not ctx.gradient and found is not None:
        ctx.gradient[:] = [found]
    expected = ctx.gradient[0] if ctx.gradient else ctx.expected
    if found != expected:
        gradient = _as_expected(gradient, expected)
    fits = take_apart(gradient, []) == expected
    if not fits or len(_parts_of(gradient)) != len(ctx.metas):
        first = next(number for number, meta in enumerate(ctx.metas) if meta is not None)
        carrier = carrier_of(gradient, ctx.metas[first])
        return [carrier if number == first else None for number in range(len(ctx.metas))]
    parts = _unwrapped(gradient)
    return [None if meta is None else part for part, meta in zip(parts, ctx.metas, strict=True)]


def _as_expected(gradient: Any, layout: Layout) -> Any:
    """A gradient in the layout that was traced, where the subclass has a conversion; else as it is."""
    if not hasattr(gradient, "__coerce_same_metadata_as_tangent__"):
        return gradient
    # The wanted type is named only where it is another one.
    wanted = () if type(gradient) is layout.kind else (layout.kind,)
    converted = gradient.__coerce_same_metadata_as_tangent__(layout.context, *wanted)
    return gradient if converted is None else converted


def _parts_of(tensor: Any) -> list[Any]:
    parts: list[Any] = []
    take_apart(tensor, parts)
    return parts


def _unwrapped(tensor: Any, gradient: list[Layout] | None = None) -> Sequence[Any]:
    if tensor.requires_grad and torch.is_grad_enabled():
        parts: Sequence[Any] = Unwrap.apply(tensor, [] if gradient is None else gradient)
        return parts
    return [part.detach() for part in _parts_of(tensor)]


@dataclass(frozen=True, slots=True)
class Change:
    """How the program changes an input that is a subclass in place.

    Attributes:
        versions: How often.
        histories: Number of its new parts that have a history; 0 where autograd does not follow the change.
        tangent: The layout of its gradient, where autograd follows it.
        detached: Whether the program cuts it from its history.
        replaced: The parts that the class puts in the place of others: the way to each, by names.
    """

    versions: int
    histories: int = 0
    tangent: Layout | None = None
    detached: bool = False
    replaced: tuple[tuple[str, ...], ...] = ()


@dataclass(slots=True)
class Translation:
    """A function of parts, and what is needed to call it with subclasses.

    Attributes:
        inputs: For each of the caller's inputs its layout; None for a plain value, a number for
            one that is the same tensor as an earlier one.
        leaves: For each input whether it is a leaf that requires a gradient, or a view of one.
        tracked: For each input whether it is a subclass that requires a gradient.
        outputs: For each output of the program its layout, the input that it is or views, or
            None; known once the function was traced.
        changes: By input how the program changes it in place.
        versions: How often each output was changed in place since it was made.
        count: Number of the program's outputs; what follows them are bases that several are views of.
        tangents: For each output that is a subclass the layout in which its gradient comes in.
        gradients: For each input the layout of its gradient, once it is known.
        tracks: Whether a result of the function has a history.
        apart: Whether the histories of the parts are passed beside the parts, which other inputs may share memory with.
    """

    function: FlatFunction
    inputs: list[Layout | int | None]
    leaves: list[Leaf]
    tracked: list[bool]
    outputs: list[Layout | View | int | None] = field(default_factory=list)
    changes: dict[int, Change] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    tangents: list[Layout | None] = field(default_factory=list)
    gradients: list[list[Layout]] = field(default_factory=list)
    count: int = 0
    tracks: bool = True
    apart: bool = False

    def parts(self, args: Sequence[Any]) -> list[Any]:
        """The caller's inputs as plain values."""
        flat: list[Any] = []
        # The program may turn grad mode on by itself.
        with torch.set_grad_enabled(self.tracks):
            for position, (layout, value) in enumerate(zip(self.inputs, args, strict=True)):
                if isinstance(layout, Layout):
                    parts = _unwrapped(value, self.gradients[position])
                    if self.apart and self.tracked[position]:
                        flat.extend(part.detach() for part in _parts_of(value))
                        flat.extend(History.apply(part) for part in parts if _has_gradient(part))
                    else:
                        flat.extend(parts)
                elif layout is None:
                    flat.append(value)
        return flat

    def __call__(self, *flat: Any) -> Sequence[Any]:
        """Traced: rebuild the subclasses, run the program, take its outputs apart."""
        values = iter(flat)
        args: list[Any] = []
        with torch.enable_grad():
            for position, layout in enumerate(self.inputs):
                if isinstance(layout, int):
                    args.append(args[layout])
                else:
                    parts = self._with_histories(position, values)
                    args.append(_rebuilt(layout, parts, self.gradients[position]))
        before = [_State.of(arg) for arg in args]
        outputs = self.function(*args)
        results: list[Any] = []
        self.changes = {}
        for position, (layout, arg) in enumerate(zip(self.inputs, args, strict=True)):
            if isinstance(layout, Layout):
                change = _changed(layout, arg, before[position], self.leaves[position], results)
                if change is not None:
                    self.changes[position] = change
        self._observe_outputs(outputs, args, results)
        self.tracks = self.apart or any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in results
        )
        return results

    def _with_histories(self, position: int, values: Iterator[Any]) -> Iterator[Any]:
        """An input's parts; where their histories are passed apart, these follow them."""
        layout = self.inputs[position]
        assert not isinstance(layout, int), "a repeated input has no parts of its own"
        parts = [next(values) for _ in range(_count(layout))]
        if self.apart and self.tracked[position]:
            parts = [
                Anchored.apply(part, next(values)) if _has_gradient(part) else part
                for part in parts
            ]
        return iter(parts)

    def _observe_outputs(
        self, outputs: Sequence[Any], args: Sequence[Any], results: list[Any]
    ) -> None:
        self.outputs, self.tangents, self.versions = [], [], []
        bases = _shared_bases(outputs, args)
        self.count = len(outputs)
        for output in (*outputs, *bases[self.count :]):
            position = next((n for n, arg in enumerate(args) if arg is output), None)
            tangent = None
            view = self._view_of_input(output, args, bases) if position is None else None
            if position is not None and self.inputs[position] is not None:
                self.outputs.append(position)
            elif view is not None:
                self.outputs.append(view)
            elif is_wrapper(output):
                layout = take_apart(output, [])
                tangent = _tangent_layout(output, layout)
                self.outputs.append(layout)
                with torch.enable_grad():
                    results.extend(_unwrapped(output, [tangent]))
            else:
                self.outputs.append(None)
                results.append(output)
            self.tangents.append(tangent)
            self.versions.append(_version(output) if tangent is not None else 0)

    def _view_of_input(self, output: Any, args: Sequence[Any], bases: Sequence[Any]) -> View | None:
        """How an output is made of an input or output that is a subclass, where autograd knows it as its view."""
        if not is_wrapper(output):
            return None
        if not output._is_view():
            return self._detached_input(output, args)
        base = output._base
        position = next((n for n, arg in enumerate(args) if arg is base), None)
        if position is None:
            position = next((-1 - n for n, one in enumerate(bases) if one is base), None)
        elif self.inputs[position] is None:
            position = None
        if position is None:
            found = None if output.requires_grad else self._detached_input(base, args)
            return None if found is None else replace(found, then=view_maker(output))
        if output.requires_grad is not base.requires_grad:
            return None
        return View(
            position,
            view_maker(output),
            grad_mode=not is_made_without_grad(output),
            several=is_one_of_several_views(output),
            early=_is_forbidden(output),
        )

    def _detached_input(self, output: Any, args: Sequence[Any]) -> View | None:
        """The input that an output is by `detach()`: they count their changes together."""
        if output.requires_grad or output.is_inference():
            return None
        for position, (arg, layout) in enumerate(zip(args, self.inputs, strict=True)):
            if layout is not None and shares_version(output, arg):
                same = output.shape == arg.shape and output.stride() == arg.stride()
                return View(position, torch.Tensor.detach) if same else None
        return None

    def rebuilt(self, args: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
        """The program's effects on its inputs, and its outputs, from those of the compiled parts."""
        remaining = iter(values)
        made: dict[int, Any] = {}
        for number, output in enumerate(self.outputs):
            if isinstance(output, View) and output.early and output.input >= 0:
                made[number] = output.of(args[output.input])
        for position, change in self.changes.items():
            _apply(change, args[position], remaining)
        pairs = zip(self.outputs, self.tangents, self.versions, strict=True)
        for number, (output, tangent, versions) in enumerate(pairs):
            if isinstance(output, int):
                made[number] = args[output]
            elif not isinstance(output, View):
                made[number] = _rebuilt(output, remaining, expected=tangent)
                _count_up(made[number], versions)
        for number, output in enumerate(self.outputs):
            if isinstance(output, View) and number not in made:
                where = output.input
                made[number] = output.of(args[where] if where >= 0 else made[-1 - where])
        return tuple([made[number] for number in range(self.count)])


def _shared_bases(outputs: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The outputs, then what several of them are views of that is neither among them nor an input."""
    found: list[Any] = list(outputs)
    known = {id(one) for one in (*outputs, *args)}
    met: set[int] = set()
    for output in outputs:
        if is_wrapper(output) and output._is_view():
            base = output._base
            if id(base) in met and id(base) not in known:
                known.add(id(base))
                found.append(base)
            met.add(id(base))
    return found


def _is_forbidden(view: torch.Tensor) -> bool:
    """Whether autograd refuses to tell a view's history: made under `no_grad`, and its base was written since."""
    try:
        view.grad_fn  # noqa: B018 - asking is what raises
    except RuntimeError:
        return True
    return False


@dataclass(frozen=True, slots=True)
class _State:
    """What tells whether an input was changed: its version, its history, its parts."""

    version: int
    grad_fn: Any
    parts: tuple[tuple[tuple[str, ...], Any, Any], ...]

    @staticmethod
    def of(arg: Any) -> _State:
        if not is_wrapper(arg):
            return _State(0, None, ())
        parts = tuple((way, part, _geometry(part)) for way, part in _paths(arg, ()))
        return _State(_version(arg), arg.grad_fn, parts)


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _paths(tensor: Any, way: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The parts of a tensor at all depths, and the names that lead to them."""
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):
            yield (*way, name), part
            if is_wrapper(part):
                yield from _paths(part, (*way, name))


def _changed(
    layout: Layout, arg: Any, before: _State, leaf: Leaf, results: list[Any]
) -> Change | None:
    """How the program changed an input; the histories of its new parts are appended to the results.

    Raises:
        RuntimeError: eager's own, where a leaf was written that requires a gradient.
        UnsupportedOperator: it is made in another way than before, or has another layout.
    """
    changed = _version(arg) - before.version
    through_autograd = arg.requires_grad and arg.grad_fn is not before.grad_fn
    if through_autograd and leaf:
        _write_to_a_leaf("view" if arg.grad_fn.name().endswith("CopySlices") else leaf)
    if take_apart(arg, []) != layout or tuple(arg.stride()) != layout.stride:
        raise _remade(layout)
    replaced = _replaced(before, arg, layout)
    detached = before.grad_fn is not None and not arg.requires_grad
    if not (changed or through_autograd or detached or replaced):
        return None
    results.extend(part for _, part in replaced)
    histories: list[Any] = []
    tangent = None
    if through_autograd:
        tangent = _tangent_layout(arg, layout)
        with torch.enable_grad():
            parts = _unwrapped(arg, [tangent])
            histories = [History.apply(part) for part in parts if part.requires_grad]
        results.extend(histories)
    ways = tuple(way for way, _ in replaced)
    return Change(changed, len(histories), tangent, detached, ways)


def _replaced(before: _State, arg: Any, layout: Layout) -> list[tuple[tuple[str, ...], Any]]:
    """The plain parts that are other tensors than before, and the names that lead to them."""
    former = {way: (part, geometry) for way, part, geometry in before.parts}
    found: list[tuple[tuple[str, ...], Any]] = []
    for way, part in _paths(arg, ()):
        if is_wrapper(part):
            continue
        was, geometry = former[way]
        if part is not was:
            found.append((way, part))
        elif _geometry(part) != geometry:
            raise _remade(layout)
    return found


def _remade(layout: Layout) -> UnsupportedOperator:
    return UnsupportedOperator(
        f"a change of the shape or the make of a {layout.kind.__name__} in place",
        "the caller's own would have to be taken apart and put together as another",
        "use the out-of-place operator",
    )


def _write_to_a_leaf(leaf: Leaf) -> None:
    """Raise what eager raises."""
    with torch.enable_grad():
        one = torch.zeros(1, requires_grad=True)
        (one[0] if leaf == "view" else one).mul_(1)


def _apply(change: Change, arg: Any, values: Iterator[Any]) -> None:
    """Make an input what the program made of it; its parts' memory is written already."""
    for way in change.replaced:
        owner = arg
        for name in way[:-1]:
            owner = getattr(owner, name)
        setattr(owner, way[-1], next(values))
    histories = [next(values) for _ in range(change.histories)]
    if change.detached:
        arg.detach_()
    if histories:
        with torch.enable_grad(), preserve_version(arg):
            Rewritten.apply(arg, change.tangent, *histories)
    _count_up(arg, change.versions)


def _count_up(tensor: Any, changes: int) -> None:
    for _ in range(changes):
        increment_version(tensor)


def _tangent_layout(output: Any, layout: Any) -> Layout:
    """How the gradient of an output is made: as the output, unless its class says otherwise."""
    found = None
    if hasattr(output, "__coerce_tangent_metadata__"):
        ours: list[Any] = []
        theirs: list[Any] = []
        take_apart(output, ours)
        with torch.no_grad():
            found = take_apart(output.detach().__coerce_tangent_metadata__(), theirs)
        if [part.shape for part in ours] != [part.shape for part in theirs]:
            found = None  # the parts' gradients have the parts' shapes
    return layout if found is None else found


def _version(value: Any) -> int:
    """How often a tensor was changed in place; 0 where nobody counts."""
    return value._version if isinstance(value, torch.Tensor) and not value.is_inference() else 0


def _rebuilt(
    layout: Layout | None,
    values: Iterator[Any],
    gradient: list[Layout] | None = None,
    expected: Layout | None = None,
) -> Any:
    if layout is None:
        return next(values)
    parts = [next(values) for _ in range(_count(layout))]
    if any(part.requires_grad for part in parts):
        with torch.enable_grad():
            return Wrap.apply(layout, gradient, expected or layout, *parts)
    return put_together(layout, iter([part.detach() for part in parts]))


def _count(layout: Layout | Given | None) -> int:
    match layout:
        case None:
            return 1
        case Given():
            return 0
        case Layout():
            return sum(_count(part) for part in layout.parts)


def translated(
    function: FlatFunction, example_inputs: Sequence[Any], *, apart: bool = False
) -> Translation:
    """The function of the parts of its inputs; `apart` as in `Translation`."""
    layouts: list[Layout | int | None] = []
    leaves: list[Leaf] = []
    first: dict[int, int] = {}
    for position, value in enumerate(example_inputs):
        if not is_wrapper(value):
            layouts.append(None)
            leaves.append("")
            continue
        earlier = first.setdefault(id(value), position)
        layouts.append(take_apart(value, []) if earlier == position else earlier)
        leaves.append(_leaf(value))
    tracked = [is_wrapper(value) and value.requires_grad for value in example_inputs]
    gradients: list[list[Layout]] = [[] for _ in layouts]
    return Translation(function, layouts, leaves, tracked, gradients=gradients, apart=apart)


def histories_are_apart(example_inputs: Sequence[Any]) -> bool:
    """Whether a change of one subclass among the inputs leaves the history of each other as it is."""
    distinct = {id(value): value for value in example_inputs if is_wrapper(value)}.values()
    tracked = [value for value in distinct if value.requires_grad]
    bases = {id(value if value._base is None else value._base) for value in tracked}
    return bool(tracked) and len(bases) == len(tracked)


def _leaf(value: torch.Tensor) -> Leaf:
    if not value.requires_grad:
        return ""
    if value.is_leaf:
        return "leaf"
    base = value._base
    return "view" if base is not None and base.is_leaf and base.requires_grad else ""


def callable_of(translation: Translation, compiled: Boxed) -> Boxed:
    """The boxed callable that takes and gives subclasses, from the one that does with parts."""

    def call(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return translation.rebuilt(given, compiled(translation.parts(given)))

    call.boxed = True  # type: ignore[attr-defined]
    return call


@dataclass(frozen=True, slots=True)
class MadeOf:
    """How a gradient that a graph returns is put together: its layout, and what its parts are like."""

    layout: Layout
    metas: tuple[TensorMeta, ...]

    def __call__(self, parts: Sequence[Any], sizes: Any) -> Any:
        """The gradient; None where no part is there, and zeros for a part that is not."""
        if all(part is None for part in parts):
            return None
        filled = [
            zeros_of(meta, sizes) if part is None else part
            for part, meta in zip(parts, self.metas, strict=True)
        ]
        return put_together(self.layout, iter(list(map(_for_one_owner, filled))))


def gradients_of_results(
    made_of: Sequence[MadeOf | SparseOf | None],
) -> Callable[[Sequence[Any], Any], list[Any]]:
    """A function that makes the gradients of what a backward graph returns."""

    def made(results: Sequence[Any], sizes: Any) -> list[Any]:
        remaining = iter(results)
        return [
            next(remaining) if one is None else one([next(remaining) for _ in one.metas], sizes)
            for one in made_of
        ]

    return made
