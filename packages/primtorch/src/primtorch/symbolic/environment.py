"""The symbols, ranges and guards of one capture's sizes.

A `SizeEnvironment` creates symbols with the value they had in the traced call (the hint), answers
questions about expressions, and records each answer that is not a proof as a guard with its reason
and the user's line. It is open until `freeze`; after that only proofs are given. Facts learned
from guards (ranges, equalities, divisibility) strengthen later proofs: they are kept as
substitutions that a question is simplified by.

Invariant: every recorded guard holds for the hints, and all answers given so far follow from
ranges and guards.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from primtorch.errors import DataDependentError, FrozenEnvironmentError
from primtorch.symbolic.expression import (
    Expression,
    Modulo,
    Symbol,
    evaluate,
    maximum,
    minimum,
    substitute,
)
from primtorch.symbolic.predicate import (
    And,
    Equal,
    LessThan,
    Not,
    Predicate,
    equal,
    evaluate_predicate,
    less_than,
    negation,
    predicate_symbols,
)
from primtorch.symbolic.real import Real, RealSymbol, evaluate_real, real_symbols
from primtorch.symbolic.simplify import split_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from primtorch.symbolic.node import BooleanNode, IntegerNode

SourceLine = tuple[str, int, str, str]
_OWN_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


@dataclass(frozen=True, slots=True)
class SizeGuard:
    """A condition on the sizes under which the traced graph is valid."""

    predicate: Predicate
    reason: str
    source_line: SourceLine | None


class SizeEnvironment:
    """Symbols with hints, guards and facts of one capture; see the module."""

    __slots__ = (
        "_answers",
        "_checks",
        "_facts",
        "_guards",
        "_oblivious",
        "allow_unbacked",
        "frozen",
        "hints",
        "integer_nodes",
        "layouts",
        "operator",
        "relations",
        "source_line",
        "symints",
    )

    def __init__(self) -> None:
        self.hints: dict[Symbol | RealSymbol, float] = {}
        self.frozen = False
        self.allow_unbacked = False
        """Whether operators like `nonzero` and `item` may yield symbols known only at run time."""
        self.operator: object = None
        """The operator whose shapes are being inferred; names the reason of a guard."""
        self.source_line: SourceLine | None = None
        """The user's line that is being captured; who captures keeps it up to date."""
        self._guards: dict[Predicate, SizeGuard] = {}
        self._checks: dict[Predicate, SizeGuard] = {}
        self._facts: dict[Symbol, int | Expression] = {}
        self._oblivious: dict[Symbol, int | Expression] = {}
        self._answers: dict[Predicate, bool] = {}
        # Caches of the nodes made for this environment (see node.py).
        self.integer_nodes: dict[int | Expression, IntegerNode] = {}
        self.symints: dict[Expression, Any] = {}
        self.relations: dict[tuple[str, int | Expression, int | Expression], BooleanNode] = {}
        self.layouts: dict[tuple[Any, ...], BooleanNode] = {}

    # ---- symbols
    def create_size(
        self, name: str, hint: int, *, lower: int | None = 2, upper: int | None = None
    ) -> torch.SymInt:
        """A symbolic size whose value in the traced call is `hint`.

        Sizes 0 and 1 mean something else (empty, broadcast): by default they are not covered.
        Raises ValueError for a hint outside [lower, upper].
        """
        if (lower is not None and hint < lower) or (upper is not None and hint > upper):
            raise ValueError(
                f"size {name!r} has hint {hint} outside [{lower}, {upper}]; keep it static or "
                "widen the range"
            )
        symbol = Symbol(name, lower, upper)
        self._require_new(symbol)
        self.hints[symbol] = hint
        return self.symint(symbol)

    def create_unbacked(
        self, name: str, *, lower: int | None = 0, upper: int | None = None
    ) -> torch.SymInt:
        """A size known only at run time (`nonzero`, `item`): it has no hint and gets no guards."""
        symbol = Symbol(name, lower, upper)
        self._require_new(symbol)
        # A size is taken to be neither 0 nor 1 by size-oblivious questions; other integers aren't.
        assumed = symbol if lower is None else Symbol(name, max(2, lower), upper)
        self._oblivious[symbol] = assumed
        return self.symint(symbol)

    def unbacked(self, *, size: bool = True) -> Expression | None:
        """A new symbol for a run-time value, a size or any integer; None if not allowed."""
        if not self.allow_unbacked:
            return None
        value = self.create_unbacked(f"u{len(self._oblivious)}", lower=0 if size else None)
        return value.node.expression

    def create_float(self, name: str, hint: float) -> torch.SymFloat:
        """A float that varies from call to call."""
        from primtorch.symbolic.node import RealNode  # a node knows its environment

        symbol = RealSymbol(name)
        if symbol in self.hints:
            raise ValueError(f"a float named {name!r} exists already")
        self.hints[symbol] = hint
        return torch.SymFloat(RealNode(symbol, self))

    def create_unbacked_float(self, name: str) -> torch.SymFloat:
        """A float known only at run time (`item`): it has no hint and gets no guards."""
        from primtorch.symbolic.node import RealNode  # a node knows its environment

        return torch.SymFloat(RealNode(RealSymbol(name), self))

    def _require_new(self, symbol: Symbol) -> None:
        if any(known.name == symbol.name for known in (*self.hints, *self._oblivious)):
            raise ValueError(f"a size named {symbol.name!r} exists already")

    def symint(self, expression: int | Expression) -> Any:
        """The `torch.SymInt` of an expression over these symbols; an int stays one."""
        if isinstance(expression, int):
            return expression
        found = self.symints.get(expression)
        if found is None:
            found = self.symints[expression] = torch.SymInt(self.node(expression))
        return found

    def node(self, expression: int | Expression) -> IntegerNode:
        """The node of an expression; C++ holds nodes, not SymInts."""
        found = self.integer_nodes.get(expression)
        if found is None:
            from primtorch.symbolic.node import IntegerNode  # a node knows its environment

            found = self.integer_nodes[expression] = IntegerNode(expression, self)
        return found

    def hint(self, value: int | Expression) -> int:
        """The value in the traced call; DataDependentError if there is none."""
        if isinstance(value, int):
            return value
        missing = [s for s in value.free_symbols if s not in self.hints]
        if missing:
            raise DataDependentError(
                f"the value of {value.text()}", self.line(), operator=self.operator
            )
        return evaluate(value, self.hints)  # type: ignore[arg-type]

    def has_hint(self, value: float | Expression | Real | RealSymbol | Predicate) -> bool:
        """Whether every symbol of `value` had a value in the traced call."""
        if isinstance(value, (int, float)):
            return True
        if isinstance(value, Expression):
            return all(symbol in self.hints for symbol in value.free_symbols)
        if isinstance(value, Predicate):
            return all(symbol in self.hints for symbol in predicate_symbols(value))
        return all(symbol in self.hints for symbol in real_symbols(value))

    def real_hint(self, value: float | Expression | Real | RealSymbol) -> float:
        """The value of a real in the traced call."""
        return evaluate_real(value, self.hints)

    def rounded(self, function: str, value: Real | RealSymbol) -> int | Expression | None:
        """A float made an int by `function` ("round", "int", "math.floor", "math.ceil"), as a symbol of its own.

        None where nobody reckons it anew at each call: then the number is taken for a constant.
        """
        del function, value
        return None

    # ---- questions
    @property
    def guards(self) -> tuple[SizeGuard, ...]:
        """All guards, in the order in which they were recorded."""
        return tuple(self._guards.values())

    @property
    def checks(self) -> tuple[SizeGuard, ...]:
        """Conditions on run-time sizes that the compiled code must check where they are known."""
        return tuple(self._checks.values())

    def freeze(self) -> None:
        """Record no guard from now on."""
        self.frozen = True

    def simplify(self, value: int | Expression) -> int | Expression:
        """`value` by what is known, over strengthened symbols: for proofs only."""
        return substitute(value, self._facts) if self._facts else value

    def statically_known(self, predicate: bool | Predicate) -> bool:
        """Whether the predicate is proved true; never records a guard."""
        return self.proof(predicate) is True

    def proof(self, predicate: bool | Predicate) -> bool | None:
        """True or False if proved, else None; never records a guard."""
        if isinstance(predicate, bool):
            return predicate
        known = self._answers.get(predicate)
        if known is not None:
            return known
        match predicate:
            case Not(operand):
                inner = self.proof(operand)
                return None if inner is None else not inner
            case And(operands):
                proofs = [self.proof(operand) for operand in operands]
                return False if False in proofs else (None if None in proofs else True)
            case _:
                pass
        if self._facts:
            simplified = predicate.substitute(self._facts)
            if isinstance(simplified, bool):
                self._answers[predicate] = simplified
                return simplified
        return None

    def decide(self, predicate: bool | Predicate) -> bool:
        """Whether the predicate holds; an answer that isn't proved becomes a guard.

        Raises:
            DataDependentError: it depends on a size known only at run time.
            FrozenEnvironmentError: the environment takes no further guards.
        """
        known = self.proof(predicate)
        if known is not None:
            return known
        assert isinstance(predicate, Predicate)
        if not self.has_hint(predicate):
            raise DataDependentError(
                f"whether {predicate.text}", self.line(), operator=self.operator
            )
        if self.frozen:
            raise FrozenEnvironmentError(predicate.text, self.operator)
        answer = evaluate_predicate(predicate, self.hints)  # type: ignore[arg-type]
        self._record(predicate if answer else negation(predicate), self._guards)
        self._answers[predicate] = answer
        return answer

    def decide_or(self, predicate: bool | Predicate, default: bool) -> bool:
        """As `decide`, but `default` where only run time can tell or no guard is taken."""
        known = self.proof(predicate)
        if known is not None:
            return known
        assert isinstance(predicate, Predicate)
        if self.frozen or not self.has_hint(predicate):
            return default
        return self.decide(predicate)

    def decide_obliviously(self, predicate: bool | Predicate, default: bool) -> bool:
        """As `decide_or`, but `default` without a guard where it is right for all sizes but 1.

        Who asks so is right with the default in any case: that a size is not 1 shall not be a condition
        of a graph that doesn't need it.
        """
        known = self.proof(predicate)
        if known is not None:
            return known
        assert isinstance(predicate, Predicate)
        wider = {
            symbol: Symbol(symbol.name, 2, symbol.upper)
            for symbol in predicate.free_symbols
            if symbol.lower == 1 and self.hints.get(symbol, 0) > 1
        }
        if wider and predicate.substitute(wider) is default:
            return default
        return self.decide_or(predicate, default)

    def decide_size_oblivious(self, predicate: bool | Predicate) -> bool:
        """As `decide`, where sizes known only at run time are taken to be neither 0 nor 1."""
        known = self.proof(predicate)
        if known is None and isinstance(predicate, Predicate) and self._oblivious:
            assumed = predicate.substitute(self._oblivious)
            if isinstance(assumed, bool):
                return assumed
        return self.decide(predicate)

    def expect(self, predicate: bool | Predicate) -> bool:
        """State that it holds: a guard where the hints tell, else a check at run time."""
        known = self.proof(predicate)
        if known is not None:
            return known
        assert isinstance(predicate, Predicate)
        if self.has_hint(predicate) and not self.frozen:
            return self.decide(predicate)
        self._record(predicate, self._checks)
        return True

    # The questions that shape rules ask; ints take the short road.
    def same(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left == right, by proof or guard."""
        if left is right:
            return True
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        return self.decide(equal(left, right))

    def must_be_same(self, left: int | Expression, right: int | Expression) -> bool:
        """As `same`, for what is an error otherwise: at run time the operator checks it."""
        if left is right:
            return True
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        return self.expect(equal(left, right))

    def less(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether left < right, by proof or guard."""
        if isinstance(left, int) and isinstance(right, int):
            return left < right
        return self.decide(less_than(left, right))

    def alike(self, left: int | Expression, right: int | Expression) -> bool:
        """Whether two numbers are equal in the traced call: no guard, and no promise for others."""
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        question = equal(left, right)
        if isinstance(question, bool):
            return question
        return self.has_hint(question) and evaluate_predicate(question, self.hints)  # type: ignore[arg-type]

    def is_one(self, value: int | Expression) -> bool:
        """Whether a size is 1; a size known only at run time is taken not to be."""
        if isinstance(value, int):
            return value == 1
        return self.decide_or(equal(value, 1), default=False)

    def smaller(self, left: int | Expression, right: int | Expression) -> int | Expression:
        """The smaller of two: one of them by proof or guard, else their minimum in symbols."""
        if self._can_decide(left, right):
            return right if self.less(right, left) else left
        return minimum(left, right)

    def larger(self, left: int | Expression, right: int | Expression) -> int | Expression:
        """The larger of two: one of them by proof or guard, else their maximum in symbols."""
        if self._can_decide(left, right):
            return right if self.less(left, right) else left
        return maximum(left, right)

    def _can_decide(self, left: int | Expression, right: int | Expression) -> bool:
        question = less_than(left, right)
        if self.proof(question) is not None:
            return True
        return not self.frozen and self.has_hint(left) and self.has_hint(right)

    def constant(self, value: int | Expression) -> int:
        """The value as a number, specialising on it with a guard."""
        if isinstance(value, int):
            return value
        known = self.simplify(value)  # over other symbols, which have no values
        if isinstance(known, int):
            return known
        hint = self.hint(value)
        self.decide(equal(value, hint))
        return hint

    # ---- recording
    def line(self) -> SourceLine | None:
        """The user's line: as told, else the innermost Python frame outside torch and primtorch."""
        if self.source_line is not None:
            return self.source_line
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith((*_OWN_FOLDERS, "<frozen")):
                return (code.co_filename, frame.f_lineno, code.co_name, "")
            frame = frame.f_back  # type: ignore[assignment]
        return None

    def _record(self, predicate: bool | Predicate, into: dict[Predicate, SizeGuard]) -> None:
        assert isinstance(predicate, Predicate), predicate
        reason = "asked while tracing" if self.operator is None else f"shape of {self.operator}"
        into.setdefault(predicate, SizeGuard(predicate, reason, self.line()))
        self._answers[predicate] = True
        self._learn(predicate)

    def _learn(self, predicate: bool | Predicate) -> None:
        """Turn a true predicate into substitutions that prove more."""
        if isinstance(predicate, Predicate) and self._facts:
            predicate = predicate.substitute(self._facts)
        match predicate:
            case And(operands):
                for operand in operands:
                    self._learn(operand)
            case Equal(Symbol() as symbol, value) if not _occurs(symbol, value):
                self._replace(symbol, value)
            case Equal(value, Symbol() as symbol) if not _occurs(symbol, value):
                self._replace(symbol, value)
            case Equal(Modulo(Symbol() as symbol, int(step)), 0):
                low, high = symbol.bounds()
                quotient = Symbol(
                    f"{symbol.name}_by_{step}",
                    None if low is None else -(-low // step),
                    None if high is None else high // step,
                )
                self._replace(symbol, quotient * step)
            case LessThan(left, right):
                self._narrow(left, right)
            case Not(Equal(Symbol() as symbol, int(value))):
                if symbol.lower == value:
                    self._replace(symbol, Symbol(symbol.name, value + 1, symbol.upper))
                elif symbol.upper == value:
                    self._replace(symbol, Symbol(symbol.name, symbol.lower, value - 1))
            case _:
                pass

    def _narrow(self, left: int | Expression, right: int | Expression) -> None:
        """Use left < right to narrow the range of a symbol that stands alone in the difference."""
        constant, terms = split_sum(right - left)
        if len(terms) != 1:
            return
        symbol, count = terms[0]
        if not isinstance(symbol, Symbol):
            return
        # The fact is that count times the symbol plus constant is at least one.
        if count > 0:
            low = -((constant - 1) // count)
            if symbol.lower is None or low > symbol.lower:
                self._replace(symbol, Symbol(symbol.name, low, symbol.upper))
        else:
            high = (constant - 1) // -count
            if symbol.upper is None or high < symbol.upper:
                self._replace(symbol, Symbol(symbol.name, symbol.lower, high))

    def _replace(self, symbol: Symbol, value: int | Expression) -> None:
        step: Mapping[Symbol, int | Expression] = {symbol: value}
        self._facts = {key: substitute(old, step) for key, old in self._facts.items()}
        if symbol in self.hints or symbol in self._oblivious:
            self._facts[symbol] = value


def _occurs(symbol: Symbol, value: int | Expression) -> bool:
    return isinstance(value, Expression) and symbol in value.free_symbols


__all__ = ["SizeEnvironment", "SizeGuard", "SourceLine"]
