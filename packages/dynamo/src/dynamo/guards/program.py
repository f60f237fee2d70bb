"""Guards in the order in which they are checked, as one program over the frame's values.

Comes in: guards, the sources that symbolic sizes are read from, and the sources whose values the
entry wants as its inputs. Goes out: `GuardProgram`, whose `match` answers for one call of the root
function: None, or the list of the inputs, already loaded. Cheap and discriminating checks come
first; a guard on something inside a value comes after the guards on that value. Invariant: both
evaluators give the same answer; no answer depends on the order, except that a guard may rely on
those before it on its own path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dynamo.guards.extension import fast
from dynamo.guards.kinds import FailedGuard, Guard, GuardKind, Weakly, check_guard, describe_guard
from dynamo.guards.lower import lower_program
from dynamo.source import (
    Scope,
    Source,
    base_of,
    normalized,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType, FunctionType

__all__ = ["GuardProgram", "argument_names", "compile_program"]

# Lower is earlier among the guards on one value.
_RANK: dict[GuardKind, int] = {
    kind: rank
    for rank, kind in enumerate(
        (
            GuardKind.TYPE,
            GuardKind.IDENTITY,
            GuardKind.TENSOR,
            GuardKind.EQUAL,
            GuardKind.LENGTH,
            GuardKind.CODE,
            GuardKind.NO_HOOKS,
            GuardKind.LACKS_OWN_ATTRIBUTE,
            GuardKind.CLASS_ATTRIBUTE,
            GuardKind.CONTAINS,
            GuardKind.LACKS,
            GuardKind.KEYS,
            GuardKind.HAS_ATTRIBUTE,
            GuardKind.LACKS_ATTRIBUTE,
            GuardKind.PREDICATE,
            # what looks at several values comes after all that looks at one
            GuardKind.GLOBAL_STATE,
            GuardKind.NO_GLOBAL_HOOKS,
            GuardKind.SAME_OBJECT,
            GuardKind.DISTINCT,
            GuardKind.STORAGES,
            GuardKind.APART,
            GuardKind.SHAPE,
        )
    )
}
_FIRST = frozenset({GuardKind.GLOBAL_STATE, GuardKind.NO_GLOBAL_HOOKS})
_LAST = frozenset(
    {
        GuardKind.SAME_OBJECT,
        GuardKind.DISTINCT,
        GuardKind.STORAGES,
        GuardKind.APART,
        GuardKind.SHAPE,
    }
)

_VARARGS, _VARKEYWORDS = 0x4, 0x8


def argument_names(code: CodeType) -> tuple[str, ...]:
    """The argument slots of a frame: positional, keyword-only, then `*args` and `**kwargs`."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    return code.co_varnames[:count]


class GuardProgram:
    """Ordered guards of one entry, ready to be evaluated. Made by `compile_program`."""

    __slots__ = ("_memo", "_native", "code", "guards", "inputs", "names", "size_sources")

    def __init__(
        self,
        code: CodeType,
        guards: tuple[Guard, ...],
        size_sources: Mapping[Any, Source],
        inputs: tuple[Source, ...],
        memo: dict[Source, Source],
    ) -> None:
        self.code = code
        self.guards = guards
        self.inputs = inputs
        self.names = argument_names(code)
        self.size_sources = dict(size_sources)
        self._native: Any = None
        self._memo = memo  # paths that ordering spelled out, for lowering

    @property
    def native(self) -> Any:
        """The extension's form of this program; None without the extension."""
        if self._native is None and fast is not None:
            self._native = lower_program(
                fast,
                self.code,
                self.names,
                self.guards,
                self.size_sources,
                self.inputs,
                self._memo,
            )
            self._memo = {}
        return self._native

    def check(self, arguments: Sequence[Any], function: FunctionType | None = None) -> bool:
        """Whether all guards hold for a call of `function` with these argument slots."""
        return self.match(arguments, function) is not None

    def match(
        self, arguments: Sequence[Any], function: FunctionType | None = None
    ) -> list[Any] | None:
        """The values of `inputs` if all guards hold, else None."""
        native = self.native
        if native is None:
            return self.match_in_python(arguments, function)
        found: list[Any] | None = native.match(tuple(arguments), function)
        return found

    def match_in_python(
        self, arguments: Sequence[Any], function: FunctionType | None = None
    ) -> list[Any] | None:
        """What `match` says, by each guard's meaning: the reference for the extension."""
        evaluation = _Evaluation(self, arguments, function)
        try:
            if all(evaluation.holds(guard) for guard in self.guards):
                return [evaluation.load(source) for source in self.inputs]
        except Exception:  # noqa: BLE001  # what cannot be loaded does not match
            return None
        return None

    def explain(
        self, arguments: Sequence[Any], function: FunctionType | None = None
    ) -> FailedGuard | None:
        """The first guard that fails, with what was expected and found; None if all hold."""
        evaluation = _Evaluation(self, arguments, function)
        for guard in self.guards:
            try:
                found = None if guard.source is None else evaluation.load(guard.source)
            except Exception as error:  # noqa: BLE001  # the message says what it was
                return FailedGuard(guard, *describe_guard(guard, error, found=False))
            try:
                if evaluation.holds(guard):
                    continue
                if guard.kind is GuardKind.SHAPE:
                    found = evaluation.named_sizes(guard.operand)
                return FailedGuard(guard, *describe_guard(guard, found))
            except Exception as error:  # noqa: BLE001  # the message says what it was
                return FailedGuard(guard, *describe_guard(guard, error, found=False))
        return None

    def text(self) -> str:
        """One line per guard, in the order of evaluation."""
        lines = []
        for guard in self.guards:
            name = "" if guard.source is None else guard.source.name() + " "
            operand = "" if guard.operand is None else f" {guard.operand!r}"
            lines.append(f"{name}{guard.kind.name}{operand}")
        return "\n".join(lines)


class _Evaluation:
    """One call's values, each source loaded at most once."""

    __slots__ = ("_loaded", "_program", "_scope")

    def __init__(
        self, program: GuardProgram, arguments: Sequence[Any], function: FunctionType | None
    ) -> None:
        names = dict(zip(program.names, arguments, strict=True))
        self._scope = Scope(function, names)  # type: ignore[arg-type]  # None: no source needs it
        self._program = program
        self._loaded: dict[Source, Any] = {}

    def load(self, source: Source) -> Any:
        loaded = self._loaded
        if source not in loaded:
            loaded[source] = value(source, self._scope)
        return loaded[source]

    def sizes(self, _predicate: Any) -> Mapping[Any, Any]:
        return _Sizes(self._program.size_sources, self)

    def named_sizes(self, predicate: Any) -> str:
        sources = self._program.size_sources
        found = {sources[s].name(): self.load(sources[s]) for s in predicate.free_symbols}
        return ", ".join(f"{name} = {size}" for name, size in sorted(found.items()))

    def holds(self, guard: Guard) -> bool:
        found = None if guard.source is None else self.load(guard.source)
        return check_guard(guard, found, self.load, self.sizes)


class _Sizes(Mapping[Any, Any]):
    """The symbols' values, each loaded when it is asked for."""

    __slots__ = ("_evaluation", "_sources")

    def __init__(self, sources: Mapping[Any, Source], evaluation: _Evaluation) -> None:
        self._sources = sources
        self._evaluation = evaluation

    def __getitem__(self, symbol: Any) -> Any:
        return self._evaluation.load(self._sources[symbol])

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._sources

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


def _ordered(guards: Iterable[Guard], memo: dict[Source, Source]) -> tuple[Guard, ...]:
    """State first, then values by path (a value before what is inside it), then relations."""
    unique: dict[tuple[Any, ...], Guard] = {}
    for guard in guards:
        unique.setdefault(_identity(guard), _holding_weakly(guard))
    first, last = [], []
    by_source: dict[Source, list[Guard]] = {}
    children: dict[Source | None, dict[Source, None]] = {None: {}}
    for guard in unique.values():
        if guard.kind in _FIRST or (guard.source is None and guard.kind not in _LAST):
            first.append(guard)
        elif guard.kind in _LAST:
            last.append(guard)
        else:
            assert guard.source is not None
            source = normalized(guard.source, memo)
            _plant(source, children)
            by_source.setdefault(source, []).append(guard)
    middle: list[Guard] = []
    # Roots with a tensor or constant of their own are cheapest to tell apart by; modules and
    # globals follow.
    roots = sorted(children[None], key=lambda root: _weight(root, children))
    todo = list(reversed(roots))
    while todo:
        source = todo.pop()
        middle += sorted(by_source.get(source, ()), key=lambda guard: _RANK[guard.kind])
        todo += reversed(list(children.get(source, ())))
    last.sort(key=lambda guard: _RANK[guard.kind])
    return (*first, *middle, *last)


def _holding_weakly(guard: Guard) -> Guard:
    if guard.kind is not GuardKind.IDENTITY:
        return guard
    return replace(guard, operand=Weakly.if_possible(guard.operand))


def _plant(source: Source, children: dict[Source | None, dict[Source, None]]) -> None:
    while True:
        base = base_of(source)
        siblings = children.setdefault(base, {})
        if source in siblings:
            return
        siblings[source] = None
        if base is None:
            return
        source = base


def _weight(root: Source, children: dict[Source | None, dict[Source, None]]) -> int:
    """How many values hang below `root`."""
    count, todo = 0, [root]
    while todo:
        below = children.get(todo.pop(), ())
        count += len(below)
        todo += below
    return count


def _identity(guard: Guard) -> tuple[Any, ...]:
    """Equal for guards that say the same."""
    operand = guard.operand
    try:
        hash(operand)
    except TypeError:
        key: Any = id(operand)
    else:
        key = (type(operand), operand) if guard.kind is not GuardKind.IDENTITY else id(operand)
        if guard.kind is GuardKind.EQUAL:
            key = (type(operand), repr(operand), id(type(operand)))
    return (guard.source, guard.kind, key)


def compile_program(
    guards: Iterable[Guard],
    sizes: Mapping[Any, Source] | None = None,
    *,
    code: CodeType,
    inputs: Sequence[Source] = (),
) -> GuardProgram:
    """The program of `guards` for calls of functions with this `code`.

    `sizes` says where each symbol of the SHAPE predicates is read from; `inputs` are the values
    that `match` hands over in order.

    Raises:
        LookupError: a predicate has a symbol that `sizes` lacks, or a local source names no
        argument.
    """
    memo: dict[Source, Source] = {}
    ordered = _ordered(guards, memo)
    size_sources = dict(sizes or {})
    for guard in ordered:
        if guard.kind is GuardKind.SHAPE:
            unknown = [s for s in guard.operand.free_symbols if s not in size_sources]
            if unknown:
                raise LookupError(f"no source for {unknown[0]} in {guard.operand.text}")
    return GuardProgram(code, ordered, size_sources, tuple(inputs), memo)
