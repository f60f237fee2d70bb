"""A function of tensor subclasses as one of their parts.

Comes in: a flat function, some of whose inputs are subclasses. Goes out: a `Translation`, which is traced as a function
of plain tensors and rebuilds the subclasses for the program, and, from what was compiled of it, the callable that
takes parts out of real inputs and rebuilds real outputs, views of inputs as views.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from aot_autograd._torch import (
    is_made_without_grad,
    is_one_of_several_views,
    mark_several_views,
    shares_version,
    view_maker,
)
from aot_autograd.subclasses.changes import (
    Change,
    Leaf,
    State,
    apply_change,
    changed_in_place,
    count_up,
    leaf_of,
    require_whole,
    version_of,
)
from aot_autograd.subclasses.crossing import (
    Anchored,
    History,
    has_gradient,
    tangent_layout,
    unwrapped,
    wrapped,
)
from aot_autograd.subclasses.layouts import (
    Layout,
    is_wrapper,
    part_count,
    parts_of,
    put_together,
    take_apart,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aot_autograd.runtime import Boxed

    FlatFunction = Callable[..., Sequence[Any]]

__all__ = [
    "ReturnedError",
    "Translation",
    "View",
    "callable_of",
    "histories_are_apart",
    "translated",
]


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
                    parts = unwrapped(value, self.gradients[position])
                    if self.apart and self.tracked[position]:
                        flat.extend(part.detach() for part in parts_of(value))
                        flat.extend(History.apply(part) for part in parts if has_gradient(part))
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
                    args.append(wrapped(layout, parts, self.gradients[position]))
                    if layout is not None:
                        require_whole(layout, args[-1])
        before = [State.of(arg) for arg in args]
        outputs = self.function(*args)
        results: list[Any] = []
        self.changes = {}
        for position, (layout, arg) in enumerate(zip(self.inputs, args, strict=True)):
            if isinstance(layout, Layout):
                change = changed_in_place(
                    layout, arg, before[position], self.leaves[position], results
                )
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
        parts = [next(values) for _ in range(part_count(layout))]
        if self.apart and self.tracked[position]:
            parts = [
                Anchored.apply(part, next(values)) if has_gradient(part) else part for part in parts
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
                plain: list[Any] = []
                layout = take_apart(output, plain)
                assert layout is not None, "it is a wrapper"
                require_whole(layout, put_together(layout, iter(plain)))
                tangent = tangent_layout(output, layout)
                self.outputs.append(layout)
                with torch.enable_grad():
                    results.extend(unwrapped(output, [tangent]))
            else:
                self.outputs.append(None)
                results.append(output)
            self.tangents.append(tangent)
            self.versions.append(version_of(output) if tangent is not None else 0)

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
            apply_change(change, args[position], remaining)
        pairs = zip(self.outputs, self.tangents, self.versions, strict=True)
        for number, (output, tangent, versions) in enumerate(pairs):
            if isinstance(output, int):
                made[number] = args[output]
            elif not isinstance(output, View):
                made[number] = wrapped(output, remaining, expected=tangent)
                count_up(made[number], versions)
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
        leaves.append(leaf_of(value))
    tracked = [is_wrapper(value) and value.requires_grad for value in example_inputs]
    gradients: list[list[Layout]] = [[] for _ in layouts]
    return Translation(function, layouts, leaves, tracked, gradients=gradients, apart=apart)


def histories_are_apart(example_inputs: Sequence[Any]) -> bool:
    """Whether a change of one subclass among the inputs leaves the history of each other as it is."""
    distinct = {id(value): value for value in example_inputs if is_wrapper(value)}.values()
    tracked = [value for value in distinct if value.requires_grad]
    bases = {id(value if value._base is None else value._base) for value in tracked}
    return bool(tracked) and len(bases) == len(tracked)


def callable_of(translation: Translation, compiled: Boxed) -> Boxed:
    """The boxed callable that takes and gives subclasses, from the one that does with parts."""

    def call(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return translation.rebuilt(given, compiled(translation.parts(given)))

    call.boxed = True  # type: ignore[attr-defined]
    return call
