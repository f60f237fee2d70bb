"""Sizes and numbers that stay symbolic (`dynamic=`): which, their symbols, placeholders and arithmetic.

`History` belongs to a code object and remembers what each source held in earlier captures; what changed is
dynamic from then on. `Sizes` belongs to one capture: it makes symbols, and turns a symbolic number that reaches a
node into arithmetic over size placeholders. Sizes 0 and 1 are specialised unless marked, but a graph
that was made for another size serves 1 too if nothing in it depended on that. Invariant: an expression has one
node, and every symbol one source.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from typing import TYPE_CHECKING, Any

import torch

from dynamo.emit.drawn import is_drawn
from dynamo.errors import BreakReason, GraphBreak, Restart, UsageError
from dynamo.graph.inputs import size_placeholder
from dynamo.guards import Guard, GuardKind, same_constant
from dynamo.source import (
    DictItemSource,
    ItemSource,
    LocalSource,
    ModuleMemberSource,
    RoundedSource,
    SizeSource,
    Source,
    StrideSource,
    rounding,
)
from primtorch.errors import DataDependentError
from primtorch.fake import FakeTensor
from primtorch.symbolic import (
    Equal,
    Expression,
    LessThan,
    Not,
    RealRelation,
    RealSymbol,
    SizeEnvironment,
    equal,
    evaluate,
    expression_of,
    real_symbols,
    text,
    text_real,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dynamo.emit.reconstruct import Emitter
    from dynamo.graph.recorder import Recorder

__all__ = ["SYMBOLIC", "History", "Sizes"]

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)

_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.Not: torch.sym_not,
    ast.And: operator.and_,
    ast.Or: operator.or_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Any] = {
    "max": torch.sym_max,
    "min": torch.sym_min,
    "float": torch.sym_float,
    "int": torch.sym_int,
    "abs": abs,
    "round": round,
}


class History:
    """What sources held when a code object was captured before."""

    __slots__ = ("counters", "dynamic", "former", "relayed", "seen")

    def __init__(self) -> None:
        self.seen: dict[Source, Any] = {}
        self.dynamic: set[Source] = set()
        self.counters: set[Source] = set()  # numbers that a call itself changes
        self.former: set[int] = set()
        self.relayed: set[Source] = set()  # strides of tensors that a call itself replaces

    def changed(self, source: Source, value: Any) -> bool:
        """Whether the source held something else in an earlier capture; remembers the value."""
        if source in self.dynamic:
            return True
        if source not in self.seen:
            self.seen[source] = value
            # What a cache holds now is as long as what came in before: it grows as that varies.
            new = type(source) is SizeSource and value in self.former
            if new:
                self.dynamic.add(source)
            return new
        before = self.seen[source]
        if not same_constant(before, value):
            self.dynamic.add(source)
            if type(source) is SizeSource and before > 1:
                self.former.add(before)
            return True
        return False

    def varies(self, sizes: frozenset[int]) -> None:
        """Arguments' sizes of these values are dynamic, those met already and those to come."""
        self.former |= sizes
        self.dynamic.update(
            place
            for place, value in self.seen.items()
            if type(place) is SizeSource and _is_argument(place.base) and value in sizes
        )

    def learn(self, guards: Iterable[Guard]) -> None:
        """Take an entry of a former process for a capture of this one: by its guards."""
        for guard in guards:
            source, operand = guard.source, guard.operand
            if source is None or isinstance(source, ModuleMemberSource):
                continue
            if guard.kind is GuardKind.TENSOR:
                for dimension, size in enumerate(operand.shape):
                    place = SizeSource(source, dimension)
                    if size is None:
                        self.dynamic.add(place)
                    else:
                        self.changed(place, size)
                for dimension, step in enumerate(operand.strides or ()):
                    self.changed(StrideSource(source, dimension), step)
            elif guard.kind is GuardKind.EQUAL and type(operand) in (int, float):
                self.changed(source, operand)

    def counts(self, sources: Iterable[Source]) -> bool:
        """The call changes these numbers: dynamic from now on. Whether that is news of one of them."""
        news = set(sources) - self.counters
        self.counters |= news
        self.dynamic |= news
        return bool(news)


class _Environment(SizeEnvironment):
    """Guards are recorded with the line that is being interpreted."""

    __slots__ = ("location", "round")

    def __init__(self) -> None:
        super().__init__()
        self.location: Callable[[], tuple[str, int, str, str] | None] | None = None
        self.round: Callable[[str, Any], Any] | None = None

    def line(self) -> tuple[str, int, str, str] | None:
        """The user's line."""
        found = None if self.location is None else self.location()
        return super().line() if found is None else found

    def freeze(self) -> None:
        """Ask no more; the capture, and the tensors of its call, need not live as long as the graph."""
        super().freeze()
        self.location = self.round = None

    def rounded(self, function: str, value: Any) -> int | Expression | None:
        """A symbol read anew at each call."""
        return None if self.round is None else self.round(function, value)


class Sizes:
    """The symbolic part of one capture; `dynamic` as in `optimize`."""

    def __init__(
        self, history: History, *, dynamic: bool | None, numbers: bool = False, shapes: bool = False
    ) -> None:
        self.history = history
        self.dynamic = dynamic
        self.run_time_numbers = numbers  # may `item()` stay in the graph?
        self.run_time_shapes = shapes  # may `nonzero()`?
        self.run_time: dict[str, tuple[torch.fx.Node, int | None]] = {}
        self.producers: set[torch.fx.Node] = set()
        self.environment = _Environment()
        self.environment.round = self._rounded
        self.sources: dict[str, Source] = {}
        self.symbols: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.hints: dict[str, Any] = {}
        self.guards: list[Guard] = []
        self.specialised: set[Source] = set()  # numbers that this capture takes for constants
        self.marked: dict[Source, tuple[int | None, int | None]] = {}
        self._nodes: dict[str, torch.fx.Node] = {}
        self._strides: dict[Any, Source] = {}
        self._whole: dict[Source, Any] = {}
        self._follows: dict[Source, int | Expression] = {}  # strides, by the sizes

    # -- what is symbolic --------------------------------------------------------------------------

    def shape_of(self, source: Source, tensor: torch.Tensor) -> tuple[Any, tuple[int, ...]]:
        """Symbolic sizes for an input (None if all are static), and which dimensions are symbolic."""
        marked = getattr(tensor, "_dynamo_dynamic_indices", None) or set()
        unbacked = getattr(tensor, "_dynamo_unbacked_indices", None) or set()
        fixed = getattr(tensor, "_dynamo_static_indices", None) or set()
        if isinstance(source, ModuleMemberSource) and not (marked or unbacked):
            return None, ()
        sizes: list[Any] = list(tensor.shape)
        dynamic: list[int] = []
        together = self._changed_together(source, tensor, {*marked, *unbacked, *fixed})
        for dimension, size in enumerate(tensor.shape):
            place = SizeSource(source, dimension)
            if dimension in unbacked:
                name = f"s{len(self.sources)}"
                sizes[dimension] = self.environment.create_unbacked(name)
                self._register(name, place, sizes[dimension], size)
                dynamic.append(dimension)
                continue
            if dimension in marked:
                symbolic = True
            elif dimension in fixed or self.dynamic is False:
                continue
            else:
                changed = together or self.history.changed(place, size)
                symbolic = (changed or self.dynamic is True) and size > 1
            if symbolic:
                limits = _range(tensor, dimension)
                sizes[dimension] = self._size(place, size, limits)
                if dimension in marked:
                    self.marked[place] = limits
                dynamic.append(dimension)
        return (sizes, tuple(dynamic)) if dynamic else (None, ())

    def _changed_together(self, source: Source, tensor: torch.Tensor, spoken_for: set[int]) -> bool:
        """Whether all sizes of an argument are taken for dynamic because one of them changed.

        So it is with indices and masks of several dimensions, text in batches: both sizes change, and
        nothing is made faster by keeping one. Of other tensors each dimension is taken by itself:
        channels of images stay what they are.
        """
        if self.dynamic is False or not _are_indices(tensor) or not _is_argument(source):
            return False
        places = [
            (SizeSource(source, dimension), size)
            for dimension, size in enumerate(tensor.shape)
            if dimension not in spoken_for
        ]
        changed = [self.history.changed(place, size) for place, size in places]
        if not any(changed):
            return False
        self.history.dynamic.update(place for place, _ in places)
        return True

    def divides(self, number: int, arguments: Iterable[tuple[Source, torch.Tensor]]) -> None:
        """The program asks for the remainder of a number: is it the length of a text?

        Who pads to multiples, or cuts into windows, is made for any length, so that a graph for this one alone would
        only be the first of several. Not so where gradients are: training has batches of one length, and a graph for it
        takes less memory.

        Raises:
            Restart: indices that are an argument have this size; it is symbolic from now on, with their other sizes.
        """
        if self.dynamic is not None or abs(number) < 2 or torch.is_grad_enabled():
            return
        for source, real in arguments:
            sizes = frozenset(size for size in real.shape if size > 1)
            if abs(number) not in sizes or not _is_argument(source) or not _are_indices(real):
                continue
            places = {SizeSource(source, d) for d, size in enumerate(real.shape) if size > 1}
            fixed = getattr(real, "_dynamo_static_indices", None)
            if not fixed and not places <= self.history.dynamic:
                self.history.varies(sizes)
                raise Restart

    def stride_of(
        self, source: Source, strides: Sequence[int | Expression]
    ) -> tuple[Sequence[Any], tuple[int, ...]]:
        """The strides, and which of them are symbols of their own: windows of tensors whose sizes vary.

        `strides` are numbers where they don't follow from symbolic sizes.
        """
        if self.dynamic is False or isinstance(source, ModuleMemberSource):
            return strides, ()
        found: list[Any] = list(strides)
        own: list[int] = []
        for dimension, step in enumerate(strides):
            place = StrideSource(source, dimension)
            changed = self.history.changed(place, step if type(step) is int else None)
            varies = (changed and type(step) is int) or place in self.history.relayed
            hint = self._hint(step) if varies else None
            if hint is not None and hint > 1:
                found[dimension] = self._size(place, hint, (2, None))
                own.append(dimension)
        return found, tuple(own)

    def outgrown(self, replaced: Iterable[tuple[Source, Any, Any]]) -> bool:
        """Whether the call puts tensors where it found some that this capture's guards say are others.

        Their sizes are other ones in the next call, as those of a cache that grows, or their strides don't follow from
        the sizes any more: a cache that has just become as long as its window is a part of a longer one. What differs
        is symbolic from now on.
        """
        sizes: set[Source] = set()
        steps: set[Source] = set()
        for source, before, now in replaced:
            if type(now) is not FakeTensor or not isinstance(before, torch.Tensor):
                continue
            found = [self._hint(size) for size in now.meta.shape]
            if self.dynamic is None and len(found) == before.dim():
                for dimension, (old, new) in enumerate(zip(before.shape, found, strict=True)):
                    place = SizeSource(source, dimension)
                    if new not in (old, None) and old > 1 and place in self.history.seen:
                        sizes.add(place)
            if None not in found:
                steps.update(self._strides_left(source, now, found))
        news = (sizes - self.history.dynamic) | (steps - self.history.relayed)
        self.history.dynamic |= sizes
        self.history.relayed |= steps
        return bool(news)

    def _hint(self, value: int | Expression) -> int | None:
        """What a size or stride is in this call; None where only run time tells."""
        try:
            return self.environment.hint(value)
        except DataDependentError:
            return None

    def _strides_left(self, source: Source, now: Any, sizes: Sequence[Any]) -> Iterator[Source]:
        """The strides that would have to follow from `sizes`, and don't."""
        hints: dict[Any, Any] = dict(self.environment.hints)
        for name, place in self.sources.items():
            if not isinstance(place, SizeSource) or place.base != source:
                continue
            if place.dimension < len(sizes):
                hints[expression_of(self.values[name])] = sizes[place.dimension]
        for dimension, step in enumerate(now.meta.stride):
            left = StrideSource(source, dimension)
            expected = self._follows.get(left)
            if expected is not None and evaluate(expected, hints) != self._hint(step):
                yield left

    def guard_strides(
        self,
        source: Source,
        tensor: torch.Tensor,
        strides: Sequence[int | Expression],
        own: tuple[int, ...],
    ) -> tuple[int, ...]:
        """The dimensions whose strides follow from sizes, not on their `own`; guards that they still do so.

        A graph made for a contiguous tensor must not be given a window of a wider one: it reads
        by the strides that it was made for.
        """
        symbolic = [
            d for d, step in enumerate(strides) if isinstance(step, Expression) and d not in own
        ]
        for dimension in symbolic:
            name = f"t{len(self._strides)}"
            hint = tensor.stride(dimension)
            found = expression_of(self.environment.create_size(name, hint, lower=0))
            place = self._strides[found] = StrideSource(source, dimension)
            self._follows[place] = strides[dimension]
            self.guards.append(Guard(None, GuardKind.SHAPE, equal(found, strides[dimension])))
        return tuple(symbolic)

    def scalar(self, source: Source, value: float) -> Any:
        """A symbol for a number from outside, or None if it is specialised."""
        if self.dynamic is False:
            return None
        if type(source) is LocalSource and is_drawn(source.name()):
            return self._drawn(source, value)
        known = source in self.history.seen
        changed = self.history.changed(source, value)
        if type(value) is int:
            counts = source in self.history.counters
            if not counts and (
                not (changed or (self.dynamic is True and _is_argument(source))) or value in (0, 1)
            ):
                self.specialised.add(source)
                return None
            return self._size(source, value, (None, None))
        if known and not changed and _is_rate(source):
            self.history.dynamic.add(source)
            changed = True
        if not changed or not math.isfinite(value):
            return None
        name = f"f{len(self.sources)}"
        symbol = self.environment.create_float(name, value)
        self._register(name, source, symbol, value)
        return symbol

    def _drawn(self, source: Source, value: float) -> Any:
        """A symbol for a number that was drawn before the call: another one each time."""
        if type(value) is int:
            return self._size(source, value, (None, None))
        if not math.isfinite(value):
            return None
        name = f"f{len(self.sources)}"
        symbol = self.environment.create_float(name, value)
        self._register(name, source, symbol, value)
        return symbol

    def _rounded(self, function: str, value: Any) -> Any:
        """The symbol of a float over one number from outside, made an int; None for more numbers, or odd floats."""
        symbols = real_symbols(value)
        if len(symbols) != 1:
            return None
        name = next(iter(symbols)).name
        source = self.sources.get(name)
        if source is None:
            return None
        place = RoundedSource(source, function, re.sub(rf"\b{name}\b", "n", text_real(value)))
        found = self._whole.get(place)
        if found is None:
            try:
                hint = rounding(function, place.real)(self.hints[name])
            except (ValueError, OverflowError, ZeroDivisionError):
                return None
            if hint in (0, 1):
                self.guards.append(Guard(place, GuardKind.EQUAL, hint))
                found = hint
            else:
                limits = (2, None) if hint > 1 else (None, None)
                found = expression_of(self._size(place, hint, limits))
            self._whole[place] = found
        return found

    def branched_on_draws(self) -> int:
        """How many of the numbers drawn before the call have decided something in it."""
        names = {
            name
            for name, source in self.sources.items()
            if type(source) is LocalSource and is_drawn(source.name())
        }
        if not names:
            return 0
        said = " ".join(_predicate_text(guard.predicate) for guard in self.environment.guards)
        return len(names & set(re.findall(r"\w+", said)))

    def _size(self, source: Source, hint: int, limits: tuple[int | None, int | None]) -> Any:
        lower, upper = limits
        if lower is None and isinstance(source, SizeSource):
            lower = 1 if hint > 1 else 0
        name = f"s{len(self.sources)}"
        symbol = self.environment.create_size(name, hint, lower=lower, upper=upper)
        self._register(name, source, symbol, hint)
        size = expression_of(symbol)
        if lower is not None and lower > 0:
            self.guards.append(Guard(None, GuardKind.SHAPE, Not(LessThan(size, lower))))
        if upper is not None:
            self.guards.append(Guard(None, GuardKind.SHAPE, LessThan(size, upper + 1)))
        return symbol

    def _register(self, name: str, source: Source, value: Any, hint: Any) -> None:
        self.sources[name] = source
        self.values[name] = value
        self.hints[name] = hint

    # -- arithmetic --------------------------------------------------------------------------------

    def node_of(self, recorder: Recorder, value: Any) -> Any:
        """The node that computes a symbolic number; a plain number for a constant."""
        return self._build(recorder, ast.parse(_text(value), mode="eval").body, value)

    def _build(self, recorder: Recorder, tree: ast.expr, value: Any) -> Any:
        match tree:
            case ast.Constant(constant):
                return constant
            case ast.Name(name):
                return self.placeholder(recorder, name)
            case ast.Attribute(_, name):  # math.inf, math.nan
                return getattr(math, name)
        key = ast.unparse(tree)
        node = self._nodes.get(key)
        if node is not None:
            return node
        match tree:
            case ast.UnaryOp(op, operand):
                args: list[Any] = [operand]
                function = _OPERATORS[type(op)]
            case ast.BinOp(left, op, right):
                args, function = [left, right], _OPERATORS[type(op)]
            case ast.BoolOp(op, [left, *others]):
                right = others[0] if len(others) == 1 else ast.BoolOp(op, others)
                args, function = [left, right], _OPERATORS[type(op)]
            case ast.Compare(left, [op], [right]):
                args, function = [left, right], _OPERATORS[type(op)]
            case ast.Call(ast.Name(name), args):
                function = _FUNCTIONS[name]
            case ast.Call(ast.Attribute(_, name), args):
                function = getattr(math, name)
            case _:
                raise AssertionError(f"unknown arithmetic: {key}")
        parts = tuple(self._build(recorder, part, None) for part in args)
        node = recorder.graph.call_function(function, parts)
        plain = [p.meta["val"] if isinstance(p, torch.fx.Node) else p for p in parts]
        node.meta["val"] = value if value is not None else function(*plain)
        recorder.describe(node)
        self._nodes[key] = node
        return node

    def forget(self, nodes: set[torch.fx.Node]) -> None:
        """These nodes are no longer in the graph: what they computed is computed anew."""
        for key in [key for key, node in self._nodes.items() if node in nodes]:
            del self._nodes[key]

    # -- what is known only at run time ------------------------------------------------------------

    def new_number(self, node: torch.fx.Node, *, real: bool) -> Any:
        """The number that a node reads from a tensor."""
        environment = self.environment
        if real:
            value: Any = environment.create_unbacked_float(f"r{len(self.run_time)}")
            name = value.node.value.name
        else:
            environment.allow_unbacked = True
            expression: Any = environment.unbacked(size=False)
            environment.allow_unbacked = False
            value, name = environment.symint(expression), expression.name
        self.run_time[name] = (node, None)
        self.producers.add(node)
        return value

    def note_sizes(
        self, node: torch.fx.Node, producer: torch.fx.Node, shape: Sequence[Any]
    ) -> None:
        """A tensor was made; sizes of it that no input has are known once it is there."""
        for dimension, size in enumerate(shape):
            if not isinstance(size, torch.SymInt):
                continue
            expression = expression_of(size)
            for symbol in _symbols(expression):
                if symbol.name not in self.sources and symbol.name not in self.run_time:
                    if symbol != expression:
                        raise GraphBreak(
                            BreakReason.DATA_DEPENDENT_SHAPE, "a size is computed at run time"
                        )
                    self.run_time[symbol.name] = (node, dimension)
                    self.producers.add(producer)

    def _run_time_node(self, recorder: Recorder, name: str) -> torch.fx.Node:
        node, dimension = self.run_time[name]
        if node.graph is not recorder.graph:
            raise GraphBreak(
                BreakReason.DATA_DEPENDENT_VALUE, "a number made in a region is used outside of it"
            )
        if dimension is None:
            return node
        size = recorder.graph.call_function(torch.ops.aten.sym_size.int, (node, dimension))
        recorder.describe(size)
        size.meta["val"] = node.meta["val"].shape[dimension]
        return size

    def placeholder(self, recorder: Recorder, name: str) -> torch.fx.Node:
        """The placeholder of a symbol, or the node that tells a number of run time."""
        node = self._nodes.get(name)
        if node is None and name in self.run_time:
            node = self._nodes[name] = self._run_time_node(recorder, name)
        if node is None:
            source = self.sources[name]
            kind = "size" if isinstance(source, SizeSource | StrideSource) else "scalar"
            meta = {"kind": kind, "name": source.name(), "static": False}
            node = size_placeholder(recorder, source, self.values[name], self.hints[name], meta)
            self._nodes[name] = node
        return node

    def require_placeholders(self, recorder: Recorder) -> None:
        """Every symbol in the shape or the strides of a tensor input gets a placeholder."""
        for entry in list(recorder.inputs):
            for size in (*entry.value.shape, *entry.value.stride()):
                if isinstance(size, torch.SymInt):
                    for symbol in _symbols(expression_of(size)):
                        self.placeholder(recorder, symbol.name)

    def text_of(self, emitter: Emitter, value: Any) -> str:
        """Python text that computes a symbolic number in an entry."""
        written = _text(value)
        names = {n.id for n in ast.walk(ast.parse(written)) if isinstance(n, ast.Name)}
        for name in sorted(names & self.sources.keys()):
            emitter.bind(name, self.sources[name])
        for name in sorted(names & self.run_time.keys()):
            node, dimension = self.run_time[name]
            number = node.meta["val"] if dimension is None else node.meta["val"].shape[dimension]
            emitter.bind_output(name, number)
        if "math." in written:
            emitter.constants["math"] = math
        return f"({written})"

    # -- guards ------------------------------------------------------------------------------------

    def frozen_guards(self) -> Iterator[Guard]:
        """The conditions on sizes and numbers under which the graph is valid; asks no more afterwards."""
        self.environment.freeze()
        self._keep_promises()
        yield from self.guards
        for guard in self.environment.guards:
            match guard.predicate:
                case RealRelation("is", RealSymbol(name), float(value)):
                    source = self.sources[name]
                    yield Guard(source, GuardKind.EQUAL, value, guard.source_line)
                case predicate:
                    yield Guard(None, GuardKind.SHAPE, predicate, guard.source_line)

    def _keep_promises(self) -> None:
        """A size that the user marked dynamic must not have become one number, nor left its range."""
        for name, source in self.sources.items():
            if source not in self.marked:
                continue
            symbol: Any = expression_of(self.values[name])
            about = [
                guard
                for guard in self.environment.guards
                if guard.predicate.free_symbols == {symbol}
            ]
            if not about:
                continue
            low, high = self.marked[source]
            hint = self.hints[name]
            for guard in about:
                pinned = isinstance(guard.predicate, Equal) and not any(
                    guard.predicate.evaluate({symbol: other})
                    for other in (*range(2, hint), *range(hint + 1, 2 * hint + 64), 3 * hint)
                )
                outside = next(
                    (
                        limit
                        for limit in (low, high)
                        if limit is not None and not guard.predicate.evaluate({symbol: limit})
                    ),
                    None,
                )
                if not pinned and outside is None:
                    continue
                why = (
                    f"the program holds for {hint} only"
                    if pinned
                    else f"the program does not hold for {outside}"
                )
                at = guard.source_line
                line = "" if at is None else f"\n  {at[0]}:{at[1]}: {at[3].strip()}"
                raise UsageError(
                    f"{source.name()} is marked dynamic, but {why}: it needs "
                    f"{_spelled(guard.predicate, name, source)}{line}\n"
                    "  try: change the statement, or don't mark the dimension"
                )

    def symbol_sources(self) -> dict[Any, Source]:
        """Where each symbol is read from."""
        sizes = {
            RealSymbol(name) if name[0] == "f" else expression_of(self.values[name]): source
            for name, source in self.sources.items()
        }
        return {**sizes, **self._strides}


def _is_argument(source: Source) -> bool:
    """Whether the user passes the number, alone or in containers: no attribute leads to it."""
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, LocalSource)


def _are_indices(tensor: torch.Tensor) -> bool:
    """Whether it is of the kind that holds texts in batches, or their masks."""
    kind = tensor.dtype
    return tensor.dim() > 1 and not (kind.is_floating_point or kind.is_complex)


def _is_rate(source: Source) -> bool:
    """Whether it is an optimizer's learning rate: a schedule will change it, if not at the first steps."""
    return isinstance(source, ItemSource | DictItemSource) and source.key == "lr"


def _symbols(expression: Any) -> Any:
    return getattr(expression, "free_symbols", ())


def _spelled(predicate: Any, name: str, source: Source) -> str:
    return re.sub(rf"\b{name}\b", lambda _: source.name(), _predicate_text(predicate))


def _predicate_text(predicate: Any) -> str:
    found = predicate.text
    return found() if callable(found) else str(found)


def _text(value: Any) -> str:
    if isinstance(value, torch.SymInt):
        return text(expression_of(value))
    return str(value.node)


def _range(tensor: torch.Tensor, dimension: int) -> tuple[int | None, int | None]:
    ranges = getattr(tensor, "_dynamo_ranges", None) or {}
    return ranges.get(dimension, (None, None))
