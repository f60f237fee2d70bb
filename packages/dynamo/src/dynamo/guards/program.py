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
from typing import TYPE_CHECKING, Any

from dynamo.guards.extension import fast
from dynamo.guards.kinds import (
    FailedGuard,
    Guard,
    GuardKind,
    as_number,
    check_guard,
    describe_guard,
)
from dynamo.guards.lower import lower_program
from dynamo.guards.places import Places
from dynamo.source import Scope, Source, value
from primtorch.symbolic import predicate_symbols

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType, FunctionType

__all__ = ["GuardProgram", "argument_names", "compile_program"]

_VARARGS, _VARKEYWORDS = 0x4, 0x8


def argument_names(code: CodeType) -> tuple[str, ...]:
    """The argument slots of a frame: positional, keyword-only, then `*args` and `**kwargs`."""
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & _VARARGS) + bool(code.co_flags & _VARKEYWORDS)
    return code.co_varnames[:count]


class GuardProgram:
    """Ordered guards of one entry, ready to be evaluated. Made by `compile_program`."""

    __slots__ = ("_native", "_places", "code", "guards", "inputs", "names", "size_sources")

    def __init__(
        self,
        code: CodeType,
        guards: tuple[Guard, ...],
        size_sources: Mapping[Any, Source],
        inputs: tuple[Source, ...],
        places: Places,
    ) -> None:
        self.code = code
        self.guards = guards
        self.inputs = inputs
        self.names = argument_names(code)
        self.size_sources = dict(size_sources)
        self._native: Any = None
        # Places hold their guards' operands strongly; only the extension's form is made from them.
        self._places = places if fast is not None else Places()

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
                self._places,
            )
            self._places = Places()
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
        symbols = predicate_symbols(predicate)
        found = {sources[s].name(): self.load(sources[s]) for s in symbols}
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
        return as_number(symbol, self._evaluation.load(self._sources[symbol]))

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._sources

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)


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
    places = Places()
    ordered = places.order(guards)
    size_sources = dict(sizes or {})
    for guard in ordered:
        if guard.kind is GuardKind.SHAPE:
            unknown = [s for s in predicate_symbols(guard.operand) if s not in size_sources]
            if unknown:
                raise LookupError(f"no source for {unknown[0]} in {guard.operand.text}")
    return GuardProgram(code, ordered, size_sources, tuple(inputs), places)
