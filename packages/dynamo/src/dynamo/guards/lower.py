"""From ordered guards to the flat program of the C extension.

Comes in: a `GuardProgram`'s guards, size sources and inputs. Goes out: an extension `Program`. Each
source on the way is loaded once, when the first guard needs it; a kind that C has no step for is a
call of its Python meaning. Invariant: the extension's program and `GuardProgram`'s Python
evaluation give the same answer for every call.
"""

from __future__ import annotations

import struct
from functools import partial
from sys import intern
from typing import TYPE_CHECKING, Any, assert_never

import torch

from dynamo.guards.calibrate import dtype_code, state_numbers
from dynamo.guards.kinds import (
    MISSING,
    Guard,
    GuardKind,
    TensorGuard,
    Weakly,
    as_number,
    global_hook_tables,
    memory_apart,
    same_keys,
    storage_pattern,
)
from dynamo.guards.places import ATTRIBUTE, OTHER, Place, Places
from dynamo.source import (
    AheadSource,
    ArraySource,
    AttributeSource,
    ClosureSource,
    ConstantSource,
    DictItemSource,
    DictKeySource,
    FunctionSource,
    GlobalSource,
    InstanceAttributeSource,
    ItemSource,
    LengthSource,
    LocalSource,
    ModuleMemberSource,
    ReferentSource,
    RoundedSource,
    SizeSource,
    Source,
    StorageOffsetSource,
    StrideSource,
    TypeSource,
    ahead,
    array_as_tensor,
    element,
    rounding,
)
from primtorch.symbolic import (
    And,
    Equal,
    LessThan,
    Not,
    Or,
    Real,
    RealRelation,
    RealSymbol,
    map_expression,
    predicate_symbols,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import CodeType

__all__ = ["lower_program"]

# Kinds whose step needs the operand only.
_PLAIN = (
    GuardKind.TYPE,
    GuardKind.EQUAL,
    GuardKind.CODE,
    GuardKind.HAS_ATTRIBUTE,
    GuardKind.LACKS_ATTRIBUTE,
    GuardKind.CONTAINS,
    GuardKind.LACKS,
    GuardKind.LACKS_OWN_ATTRIBUTE,
    GuardKind.NO_HOOKS,
)
_REAL_RELATIONS = {"==": "REAL_EQUAL", "<": "REAL_LESS", "<=": "REAL_LESS_EQUAL"}
_REAL_OPERATORS = {"add": "REAL_ADD", "sub": "REAL_SUBTRACT", "mul": "REAL_MULTIPLY"}
_DEEPEST = 60  # operands that a shape predicate may keep waiting in C


class _Lowering:
    """The steps so far; a place knows its register."""

    def __init__(self, fast: Any, code: CodeType, names: Sequence[str], places: Places) -> None:
        self.op: dict[str, int] = fast.STEPS
        self.postfix: dict[str, int] = fast.POSTFIX
        self.code = code
        self.names = names
        self.steps: list[tuple[Any, ...]] = []
        self.register_count = 0
        self.places = places
        self.integers: dict[Place, int] = {}
        self.reals: dict[Place, int] = {}
        self.key = self.op["LOAD_KEY"]
        self.plain = {kind: self.op[f"CHECK_{kind.name}"] for kind in _PLAIN}

    def step(
        self,
        op: str,
        *,
        source: int = -1,
        into: int = -1,
        number: int = 0,
        operand: Any = None,
        second: Any = None,
        data: tuple[Any, ...] | None = None,
    ) -> None:
        self.steps.append((self.op[op], source, into, number, operand, second, data))

    def load(self, source: Source) -> int:
        """The register that holds `source`, loaded now if it was not."""
        place = self.places.of(source)
        return place.register if place.register >= 0 else self.load_place(place)

    def load_place(self, place: Place) -> int:
        """The same of a place; a base that is loaded now comes first."""
        base = place.base
        origin = -1
        if base is not None and base.base is not None:  # all roots hang below one place
            origin = base.register if base.register >= 0 else self.load_place(base)
        place.register = found = self.register_count
        self.register_count += 1
        if place.way is OTHER:
            self._load_step(place.key, origin, found)
        else:
            number = 1 if place.way is ATTRIBUTE else 0
            self.steps.append((self.key, origin, found, number, intern(place.key), None, None))
        return found

    def _load_step(self, source: Source, origin: int, into: int) -> None:
        step = partial(self.step, source=origin, into=into)
        match source:
            case LocalSource(local, _):
                step("LOAD_ARGUMENT", number=self.names.index(local))
            case ClosureSource(variable):
                step("LOAD_CLOSURE", number=self.code.co_freevars.index(variable))
            case FunctionSource():
                step("LOAD_FUNCTION")
            case GlobalSource(variable, None):
                step("LOAD_GLOBAL", operand=variable)
            case GlobalSource(variable, namespace):
                assert namespace is not None
                step("LOAD_NAMESPACE", operand=variable, second=namespace.values)
            case ConstantSource(value, _):
                step("LOAD_CONSTANT", operand=value)
            case AttributeSource(_, attribute):
                step("LOAD_ATTRIBUTE", operand=attribute)
            case ItemSource(_, key):
                small = type(key) is int and abs(key) < 2**31
                number, second = (key, True) if small else (0, None)
                step("LOAD_ITEM", operand=key, number=number, second=second)
            case DictItemSource(_, key):
                step("LOAD_ELEMENT", operand=partial(_item_of_dict, key))
            case DictKeySource(_, index):
                step("LOAD_ELEMENT", operand=element, number=index)
            case TypeSource():
                step("LOAD_TYPE")
            case LengthSource():
                step("LOAD_LENGTH")
            case SizeSource(_, dimension):
                step("LOAD_SIZE", number=dimension)
            case StrideSource(_, dimension):
                step("LOAD_STRIDE", number=dimension)
            case StorageOffsetSource():
                step("LOAD_OFFSET")
            case ArraySource():
                step("LOAD_ELEMENT", operand=array_as_tensor)
            case AheadSource(_, index):
                step("LOAD_ELEMENT", operand=ahead, number=index)
            case ReferentSource():
                step("LOAD_ELEMENT", operand=_referent)
            case RoundedSource(_, function, real):
                step("LOAD_ELEMENT", operand=rounding(function, real))
            case ModuleMemberSource() | InstanceAttributeSource():
                raise AssertionError("a place spells these out")
            case _:
                assert_never(source)

    def load_number(self, symbol: Any, source: Source) -> int:
        """The integer register that holds a symbol; a float's bits."""
        if not isinstance(symbol, RealSymbol):
            return self.load_integer(source)
        place = self.places.of(source)
        found = self.reals.get(place)
        if found is None:
            found = self.reals[place] = len(self.integers) + len(self.reals)
            self.step("REAL_VALUE", source=self.load(source), into=found)
        return found

    def load_integer(self, source: Source) -> int:
        """The integer register that holds `source`."""
        place = self.places.of(source)
        found = self.integers.get(place)
        if found is None:
            found = len(self.integers) + len(self.reals)
            match source:
                case SizeSource(base, dimension):
                    self.step("INT_SIZE", source=self.load(base), into=found, number=dimension)
                case StrideSource(base, dimension):
                    self.step("INT_STRIDE", source=self.load(base), into=found, number=dimension)
                case StorageOffsetSource(base):
                    self.step("INT_OFFSET", source=self.load(base), into=found)
                case _:
                    self.step("INT_VALUE", source=self.load(source), into=found)
            self.integers[place] = found
        return found

    def check(self, guard: Guard, size_sources: Mapping[Any, Source]) -> None:  # one case per kind
        source = -1 if guard.source is None else self.load(guard.source)
        operand = guard.operand
        plain = self.plain.get(guard.kind)
        if plain is not None:
            self.steps.append((plain, source, -1, 0, operand, None, None))
            return
        step = partial(self.step, source=source)
        match guard.kind:
            case GuardKind.IDENTITY:
                if isinstance(operand, Weakly):
                    step("CHECK_REFERENCE", operand=operand.reference)
                else:
                    step("CHECK_IDENTITY", operand=operand)
            case GuardKind.TENSOR:
                data = _tensor_fields(operand)
                step("CHECK_TENSOR", operand=operand.matches, second=operand.type, data=data)
            case GuardKind.LENGTH:
                step("CHECK_LENGTH", number=operand)
            case GuardKind.KEYS:
                step("CHECK_KEYS", operand=operand, second=same_keys)
            case GuardKind.CLASS_ATTRIBUTE:
                name, value = operand
                if value is MISSING:
                    step("CHECK_CLASS_ATTRIBUTE", operand=name)
                else:
                    step("CHECK_CLASS_ATTRIBUTE", operand=name, second=value, number=1)
            case GuardKind.SAME_OBJECT:
                step("CHECK_SAME_OBJECT", into=self.load(operand))
            case GuardKind.DISTINCT:
                step("CHECK_DISTINCT", data=(source, *map(self.load, operand)))
            case GuardKind.STORAGES:
                sources, pattern = operand
                registers = tuple(map(self.load, sources))
                ask = partial(_has_pattern, pattern)
                step("CHECK_STORAGES", operand=ask, data=(*registers, *pattern))
            case GuardKind.APART:
                registers = tuple(map(self.load, operand))
                self.step("CHECK_CALL_MANY", operand=memory_apart, data=registers)
            case GuardKind.GLOBAL_STATE:
                step("CHECK_STATE", operand=operand.holds, data=state_numbers_or_none(operand))
            case GuardKind.NO_GLOBAL_HOOKS:
                step("CHECK_EMPTY_TABLES", operand=global_hook_tables())
            case GuardKind.SHAPE:
                self._check_shape(operand, size_sources)
            case GuardKind.PREDICATE:
                step("CHECK_CALL", operand=operand[0])
            case _:
                raise AssertionError(guard.kind)  # one of _PLAIN

    def _check_shape(self, predicate: Any, size_sources: Mapping[Any, Source]) -> None:
        writer = _PostfixWriter(
            self.postfix, lambda symbol: self.load_number(symbol, size_sources[symbol])
        )
        try:
            code = writer.predicate(predicate)
        except NotImplementedError:
            code = ()
        if code and writer.deepest(code) <= _DEEPEST:
            self.step("CHECK_SHAPE", data=code, number=len(code))
            return
        symbols = tuple(predicate_symbols(predicate))
        registers = tuple(self.load(size_sources[symbol]) for symbol in symbols)
        holds = partial(_holds_over, predicate, symbols)
        self.step("CHECK_CALL_MANY", operand=holds, data=registers)


def _item_of_dict(key: Any, found: dict[Any, Any], _: int) -> Any:
    return dict.__getitem__(found, key)


def _referent(reference: Any, _: int) -> Any:
    return reference()


def _holds_over(predicate: Any, symbols: tuple[Any, ...], values: list[Any]) -> bool:
    pairs = zip(symbols, values, strict=True)
    return bool(predicate.evaluate({symbol: as_number(symbol, value) for symbol, value in pairs}))


def state_numbers_or_none(state: Any) -> tuple[int, ...] | None:
    """The state as numbers where torch's layout is known and the state has no modes."""
    try:
        return state_numbers(state)
    except LookupError:
        return None


def _has_pattern(pattern: tuple[int, ...], tensors: list[torch.Tensor]) -> bool:
    return storage_pattern(tensors) == pattern


def _tensor_fields(guard: TensorGuard) -> tuple[Any, ...] | None:
    """What C compares in place; None where only Python can tell."""
    try:
        code = dtype_code(guard.dtype)
    except LookupError:
        return None
    if guard.type not in (torch.Tensor, torch.nn.Parameter):
        return None  # a subclass may answer for its sizes itself
    return (
        guard.type,
        guard.dispatch_keys,
        code,
        -1 if guard.device.index is None else guard.device.index,
        int(guard.requires_grad),
        -1 if guard.is_leaf is None else int(guard.is_leaf),
        guard.shape,
        guard.strides,
    )


class _PostfixWriter:
    """Writes expressions over sizes as postfix code (visitor of primtorch's expressions)."""

    def __init__(self, op: Mapping[str, int], register: Any) -> None:
        self.op = op
        self.register = register

    def deepest(self, code: tuple[int, ...]) -> int:
        """How many operands wait at most."""
        pushes = (self.op["CONSTANT"], self.op["SIZE"])
        depth = most = 0
        words = iter(code)
        for word in words:
            if word in pushes:
                next(words)
                depth += 1
                most = max(most, depth)
            elif word != self.op["NOT"]:
                depth -= 1
        return most

    def predicate(self, value: Any) -> tuple[int, ...]:
        """The code of a Predicate; NotImplementedError for what C doesn't compute."""
        if isinstance(value, bool):
            return self.integer(int(value))
        match value:
            case Equal(left, right):
                return self._chain([*map(self.expression, (left, right))], "EQUAL")
            case LessThan(left, right):
                return self._chain([*map(self.expression, (left, right))], "LESS")
            case Not(operand):
                return (*self.predicate(operand), self.op["NOT"])
            case And(operands):
                return self._chain([*map(self.predicate, operands)], "AND")
            case Or(operands):
                return self._chain([*map(self.predicate, operands)], "OR")
            case RealRelation(relation, left, right) if relation in _REAL_RELATIONS:
                op = _REAL_RELATIONS[relation]
                return self._chain([*map(self.real, (left, right))], op)
            case _:
                raise NotImplementedError(type(value).__name__)

    def real(self, value: Any) -> tuple[int, ...]:
        """The code of a number over floats that vary: it leaves the bits of a double."""
        match value:
            case RealSymbol():
                return self.symbol(value)
            case int() | float() if float(value) == value or value != value:  # noqa: PLR0124 - a NaN
                return (self.op["CONSTANT"], *struct.unpack("<q", struct.pack("<d", value)))
            case Real(name, (left, right)) if name in _REAL_OPERATORS:
                return self._chain([*map(self.real, (left, right))], _REAL_OPERATORS[name])
            case _:  # what has errors of its own, or rounds in another way
                raise NotImplementedError(value)

    def expression(self, value: Any) -> tuple[int, ...]:
        """The code of an int or an Expression."""
        if isinstance(value, int):
            return self.integer(value)
        code: tuple[int, ...] = map_expression(value, self)
        return code

    def _chain(self, parts: list[tuple[int, ...]], op: str) -> tuple[int, ...]:
        code = parts[0]
        for part in parts[1:]:
            code = (*code, *part, self.op[op])
        return code

    def integer(self, value: int) -> tuple[int, ...]:
        """A constant; NotImplementedError beyond 64 bits."""
        if not -(2**63) < value < 2**63:
            raise NotImplementedError(value)
        return (self.op["CONSTANT"], value)

    def symbol(self, symbol: Any) -> tuple[int, ...]:
        """A size."""
        return (self.op["SIZE"], self.register(symbol))

    def sum(self, constant: int, terms: tuple[tuple[Any, int], ...]) -> tuple[int, ...]:
        """Constant + sum of term * count."""
        parts = [self.integer(constant)] if constant else []
        for term, count in terms:
            code = self.expression(term)
            if count != 1:
                code = (*self.integer(count), *code, self.op["MULTIPLY"])
            parts.append(code)
        return self._chain(parts, "ADD")

    def product(self, factors: tuple[Any, ...]) -> tuple[int, ...]:
        """The product."""
        return self._chain([self.expression(factor) for factor in factors], "MULTIPLY")

    def floor_div(self, dividend: Any, divisor: Any) -> tuple[int, ...]:
        """Dividend // divisor."""
        return self._chain([*map(self.expression, (dividend, divisor))], "FLOOR_DIVIDE")

    def modulo(self, dividend: Any, divisor: Any) -> tuple[int, ...]:
        """Dividend % divisor."""
        return self._chain([*map(self.expression, (dividend, divisor))], "MODULO")

    def maximum(self, arguments: tuple[Any, ...]) -> tuple[int, ...]:
        """The greatest."""
        return self._chain([*map(self.expression, arguments)], "MAXIMUM")

    def minimum(self, arguments: tuple[Any, ...]) -> tuple[int, ...]:
        """The least."""
        return self._chain([*map(self.expression, arguments)], "MINIMUM")


def lower_program(
    fast: Any,
    code: CodeType,
    names: Sequence[str],
    guards: Sequence[Guard],
    size_sources: Mapping[Any, Source],
    inputs: Sequence[Source],
    places: Places,
) -> Any:
    """The extension's program; `places` are those of the guards."""
    lowering = _Lowering(fast, code, names, places)
    for guard in guards:
        lowering.check(guard, size_sources)
    registers = tuple(map(lowering.load, inputs))
    return fast.Program(
        lowering.steps,
        lowering.register_count,
        len(lowering.integers) + len(lowering.reals),
        registers,
    )
