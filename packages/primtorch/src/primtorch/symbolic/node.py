"""What `torch.SymInt`, `SymFloat` and `SymBool` carry: nodes over our expressions.

C++ and `torch.SymInt`'s Python operators call the methods below on the node; their names and
signatures are torch's private protocol, pinned by a test per torch version. A node is an
expression and its environment; arithmetic makes new nodes, comparisons make `BooleanNode`s, and
only `guard_*` asks the environment, where an answer becomes a guard. Invariant: nodes are
immutable, and an environment has one IntegerNode per expression and one BooleanNode per
comparison, so that the thousands of equal questions that C++ asks cost one dict look-up each.
"""

# ruff: noqa: D102, ARG002 - torch's protocol, the same everywhere; arguments that we don't need
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from primtorch.symbolic.expression import Expression, maximum, minimum, text
from primtorch.symbolic.layout import LAYOUT_QUESTIONS
from primtorch.symbolic.predicate import (
    Predicate,
    RealRelation,
    conjunction,
    disjunction,
    equal,
    less_equal,
    less_than,
    negation,
    text_predicate,
)
from primtorch.symbolic.real import REAL_FUNCTIONS, Real, RealSymbol, real, text_real

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Sequence

    from primtorch.symbolic.environment import SizeEnvironment

RealLike = float | Expression | Real | RealSymbol
_EXACT = 2**20  # a size times a number of so few bits has no digits to round


class Node:
    """What the three kinds of node share."""

    __slots__ = ("environment",)

    environment: SizeEnvironment

    # ---- kind
    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def nested_int(self) -> int | None:
        return None

    def nested_int_coeff(self) -> int | None:
        return None

    @property
    def constant(self) -> Any:
        return None

    @property
    def shape_env(self) -> None:
        """Torch's own environment, which doesn't exist here."""
        return

    def has_hint(self) -> bool:
        raise NotImplementedError

    def maybe_as_int(self) -> int | None:
        return None

    def maybe_as_float(self) -> float | None:
        return None

    def maybe_as_bool(self) -> bool | None:
        return None

    def clone(self) -> Node:
        return self

    def str(self) -> builtins.str:
        raise NotImplementedError

    def __str__(self) -> builtins.str:
        return self.str()

    __repr__ = __str__

    def _graph_repr(self) -> builtins.str:
        return self.str()

    # ---- constants beside this node
    def wrap_int(self, value: int) -> IntegerNode:
        return self.environment.node(value)

    def wrap_float(self, value: float) -> RealNode:
        return RealNode(value, self.environment)

    def wrap_bool(self, value: bool) -> BooleanNode:
        return BooleanNode(value, self.environment)


class IntegerNode(Node):
    """A symbolic integer; `expression` is the public face of it."""

    __slots__ = ("expression",)

    expression: int | Expression

    def __init__(self, expression: int | Expression, environment: SizeEnvironment) -> None:
        self.expression = expression
        self.environment = environment

    def is_int(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return not isinstance(self.expression, int)

    def is_constant(self) -> bool:
        return isinstance(self.expression, int)

    def has_hint(self) -> bool:
        return self.environment.has_hint(self.expression)

    @property
    def hint(self) -> int | None:
        return self.environment.hint(self.expression) if self.has_hint() else None

    def require_hint(self, fallback: int | None = None) -> int:
        if fallback is not None and not self.has_hint():
            return fallback
        return self.environment.hint(self.expression)

    def maybe_as_int(self) -> int | None:
        value = self.expression
        return value if isinstance(value, int) else None

    def str(self) -> builtins.str:
        return text(self.expression)

    # ---- arithmetic
    def _integer(self, value: int | Expression) -> IntegerNode:
        return self.environment.node(value)

    def add(self, other: IntegerNode) -> IntegerNode:
        return self._integer(self.expression + other.expression)

    def sub(self, other: IntegerNode) -> IntegerNode:
        return self._integer(self.expression - other.expression)

    def mul(self, other: IntegerNode) -> IntegerNode:
        return self._integer(self.expression * other.expression)

    def floordiv(self, other: IntegerNode) -> IntegerNode:
        return self._integer(self.expression // other.expression)

    int_floordiv = floordiv

    def mod(self, other: IntegerNode) -> IntegerNode:
        return self._integer(self.expression % other.expression)

    def pow_by_natural(self, other: IntegerNode) -> IntegerNode:
        exponent = self.environment.constant(other.expression)
        return self._integer(self.expression**exponent)

    pow = pow_by_natural

    def neg(self) -> IntegerNode:
        return self._integer(-self.expression)

    def pos(self) -> IntegerNode:
        return self

    def abs(self) -> IntegerNode:
        return self._integer(maximum(self.expression, -self.expression))

    def sym_max(self, other: IntegerNode) -> IntegerNode:
        return self._integer(maximum(self.expression, other.expression))

    def sym_min(self, other: IntegerNode) -> IntegerNode:
        return self._integer(minimum(self.expression, other.expression))

    def sym_sum(self, nodes: Sequence[IntegerNode]) -> IntegerNode:
        total: int | Expression = 0
        for node in nodes:
            total = total + node.expression
        return self._integer(total)

    def floor(self) -> IntegerNode:
        return self

    ceil = trunc = floor

    def round(self, digits: int | None = None) -> IntegerNode:
        return self

    def sym_int(self) -> IntegerNode:
        return self

    def lshift(self, other: IntegerNode) -> IntegerNode:
        return self._integer(self.expression * 2 ** self.environment.constant(other.expression))

    def rshift(self, other: IntegerNode) -> IntegerNode:
        return self._integer(self.expression // 2 ** self.environment.constant(other.expression))

    def _low_bits(self, other: IntegerNode) -> IntegerNode | None:
        """This number and a constant that is all ones at its end: a remainder, of negative numbers too."""
        mask = other.expression
        if isinstance(mask, int) and mask >= 0 and not mask & (mask + 1):
            return self._integer(self.expression % (mask + 1))
        return None

    def _bitwise(self, other: IntegerNode, function: Callable[[int, int], int]) -> IntegerNode:
        constant = self.environment.constant
        return self._integer(function(constant(self.expression), constant(other.expression)))

    def bitwise_and(self, other: IntegerNode) -> IntegerNode:
        return self._low_bits(other) or other._low_bits(self) or self._bitwise(other, int.__and__)

    def bitwise_or(self, other: IntegerNode) -> IntegerNode:
        return self._bitwise(other, int.__or__)

    def bitwise_xor(self, other: IntegerNode) -> IntegerNode:
        return self._bitwise(other, int.__xor__)

    and_ = bitwise_and
    or_ = bitwise_or

    # ---- to reals
    def sym_float(self) -> RealNode:
        return RealNode(real("float", self.expression), self.environment)

    def truediv(self, other: IntegerNode) -> RealNode:
        return RealNode(real("truediv", self.expression, other.expression), self.environment)

    int_truediv = truediv

    # ---- comparisons
    def _compare(self, question: builtins.str, other: Node) -> BooleanNode:
        if not isinstance(other, IntegerNode):
            return self.sym_float()._compare(question, other)
        key = (question, self.expression, other.expression)
        relations = self.environment.relations
        found = relations.get(key)
        if found is None:
            predicate = _RELATIONS[question](self.expression, other.expression)
            found = relations[key] = BooleanNode(predicate, self.environment)
        return found

    def eq(self, other: Node) -> BooleanNode:
        return self._compare("eq", other)

    def ne(self, other: Node) -> BooleanNode:
        return self._compare("ne", other)

    def lt(self, other: Node) -> BooleanNode:
        return self._compare("lt", other)

    def le(self, other: Node) -> BooleanNode:
        return self._compare("le", other)

    def gt(self, other: Node) -> BooleanNode:
        return self._compare("gt", other)

    def ge(self, other: Node) -> BooleanNode:
        return self._compare("ge", other)

    # ---- asking
    def guard_int(self, file: builtins.str, line: int) -> int:
        return self.environment.constant(self.expression)

    def int_(self) -> int:
        return self.environment.constant(self.expression)

    def guard_float(self, file: builtins.str, line: int) -> float:
        return float(self.int_())

    def guard_bool(self, file: builtins.str, line: int) -> bool:
        return self.ne(self.wrap_int(0)).guard_bool(file, line)

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def expect_size(self, file: builtins.str, line: int) -> bool:
        return self.environment.expect(less_than(-1, self.expression))

    def is_non_overlapping_and_dense_indicator(
        self, sizes: Sequence[IntegerNode], strides: Sequence[IntegerNode]
    ) -> IntegerNode:
        return self.wrap_int(int(self.is_non_overlapping_and_dense(sizes, strides).bool_()))

    # ---- layout
    def _layout(
        self, question: builtins.str, sizes: Sequence[IntegerNode], strides: Sequence[IntegerNode]
    ) -> BooleanNode:
        shape = tuple([node.expression for node in sizes])
        steps = tuple([node.expression for node in strides])
        key = (question, shape, steps)
        layouts = self.environment.layouts
        found = layouts.get(key)
        if found is None:
            found = layouts[key] = LayoutNode(question, shape, steps, self.environment)
        return found

    def is_contiguous(
        self, sizes: Sequence[IntegerNode], strides: Sequence[IntegerNode]
    ) -> BooleanNode:
        return self._layout("contiguous", sizes, strides)

    def is_channels_last_contiguous_2d(
        self, sizes: Sequence[IntegerNode], strides: Sequence[IntegerNode]
    ) -> BooleanNode:
        return self._layout("channels_last_contiguous_2d", sizes, strides)

    def is_channels_last_contiguous_3d(
        self, sizes: Sequence[IntegerNode], strides: Sequence[IntegerNode]
    ) -> BooleanNode:
        return self._layout("channels_last_contiguous_3d", sizes, strides)

    def is_channels_last_strides_2d(
        self, sizes: Sequence[IntegerNode], strides: Sequence[IntegerNode]
    ) -> BooleanNode:
        return self._layout("channels_last_strides_2d", sizes, strides)

    def is_channels_last_strides_3d(
        self, sizes: Sequence[IntegerNode], strides: Sequence[IntegerNode]
    ) -> BooleanNode:
        return self._layout("channels_last_strides_3d", sizes, strides)

    def is_non_overlapping_and_dense(
        self, sizes: Sequence[IntegerNode], strides: Sequence[IntegerNode]
    ) -> BooleanNode:
        return self._layout("non_overlapping_and_dense", sizes, strides)


class RealNode(Node):
    """A symbolic float."""

    __slots__ = ("value",)

    value: RealLike

    def __init__(self, value: RealLike, environment: SizeEnvironment) -> None:
        self.value = value
        self.environment = environment

    def is_float(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return self.environment.has_hint(self.value)

    @property
    def hint(self) -> float | None:
        return self.environment.real_hint(self.value) if self.has_hint() else None

    def maybe_as_float(self) -> float | None:
        return float(self.value) if isinstance(self.value, (int, float)) else None

    def str(self) -> builtins.str:
        return text_real(self.value)

    def _apply(self, name: builtins.str, *others: RealNode) -> RealNode:
        return RealNode(real(name, self.value, *(o.value for o in others)), self.environment)

    def add(self, other: RealNode) -> RealNode:
        return self._apply("add", other)

    def sub(self, other: RealNode) -> RealNode:
        return self._apply("sub", other)

    def mul(self, other: RealNode) -> RealNode:
        return self._apply("mul", other)

    def truediv(self, other: RealNode) -> RealNode:
        return self._apply("truediv", other)

    float_truediv = truediv

    def floordiv(self, other: RealNode) -> RealNode:
        return self._apply("floordiv", other)

    def mod(self, other: RealNode) -> RealNode:
        return self._apply("mod", other)

    def float_pow(self, other: RealNode) -> RealNode:
        return self._apply("pow", other)

    pow = float_pow

    def sym_max(self, other: RealNode) -> RealNode:
        return self._apply("max", other)

    def sym_min(self, other: RealNode) -> RealNode:
        return self._apply("min", other)

    def neg(self) -> RealNode:
        return self._apply("neg")

    def pos(self) -> RealNode:
        return self

    def abs(self) -> RealNode:
        return self._apply("abs")

    def sym_float(self) -> RealNode:
        return self

    def sym_sqrt(self) -> RealNode:
        return self._apply("sqrt")

    def round(self, digits: int | None = None) -> Node:
        if digits is None:
            ratio = _integer_ratio(self.value)
            if ratio is not None and isinstance(ratio[1], int) and ratio[1] > 0:
                return self.environment.node(_nearest(ratio[0], ratio[1]))
            return self._whole(round, "round")
        return RealNode(round(self._specialised(), digits), self.environment)

    # ---- to integers: exact for a ratio of integers, otherwise by specialising
    def _whole(self, function: Callable[[float], int], name: builtins.str) -> IntegerNode:
        environment = self.environment
        if isinstance(self.value, (Real, RealSymbol)) and not environment.frozen:
            found = environment.rounded(name, self.value)
            if found is not None:
                return environment.node(found)
        return environment.node(function(self._specialised()))

    def floor(self) -> IntegerNode:
        ratio = _integer_ratio(self.value)
        if ratio is not None:
            return self.environment.node(ratio[0] // ratio[1])
        return self._whole(math.floor, "math.floor")

    def ceil(self) -> IntegerNode:
        ratio = _integer_ratio(self.value)
        if ratio is not None:
            return self.environment.node(-(-ratio[0] // ratio[1]))
        return self._whole(math.ceil, "math.ceil")

    def trunc(self) -> IntegerNode:
        ratio = _integer_ratio(self.value)
        if ratio is not None:
            numerator, divisor = ratio
            environment = self.environment
            if all(map(environment.has_hint, ratio)):
                up, down = (environment.decide(less_equal(0, part)) for part in ratio)
                if up is down:
                    return environment.node(numerator // divisor)
                return environment.node(-(-numerator // divisor))
        return self._whole(int, "int")

    sym_int = trunc

    def is_integer(self) -> BooleanNode:
        return BooleanNode(float(self._specialised()).is_integer(), self.environment)

    def _specialised(self) -> float:
        """The number, with every symbol that it depends on fixed by a guard."""
        environment = self.environment
        hint = environment.real_hint(self.value)
        if not isinstance(self.value, (int, float)):
            environment.decide(RealRelation("is", self.value, hint))
        return hint

    def _compare(self, question: builtins.str, other: Node) -> BooleanNode:
        right: RealLike
        if isinstance(other, RealNode):
            right = other.value
        else:
            assert isinstance(other, IntegerNode)
            right = other.expression
        left: RealLike = self.value
        predicate: bool | Predicate
        match question:
            case "eq" | "ne":
                predicate = _real_relation("==", left, right)
                if question == "ne":
                    predicate = negation(predicate)
            case "lt":
                predicate = _real_relation("<", left, right)
            case "le":
                predicate = _real_relation("<=", left, right)
            case "gt":
                predicate = _real_relation("<", right, left)
            case _:
                predicate = _real_relation("<=", right, left)
        return BooleanNode(predicate, self.environment)

    eq = IntegerNode.eq
    ne = IntegerNode.ne
    lt = IntegerNode.lt
    le = IntegerNode.le
    gt = IntegerNode.gt
    ge = IntegerNode.ge

    def guard_float(self, file: builtins.str, line: int) -> float:
        return float(self._specialised())

    def guard_int(self, file: builtins.str, line: int) -> int:
        return int(self._specialised())

    def int_(self) -> int:
        return int(self._specialised())

    def guard_bool(self, file: builtins.str, line: int) -> bool:
        return self.environment.decide(negation(_real_relation("==", self.value, 0.0)))

    def bool_(self) -> bool:
        return self.guard_bool("", 0)


class BooleanNode(Node):
    """A symbolic bool; the predicate is asked when C++ or Python needs the answer."""

    __slots__ = ("_answer", "_predicate")

    def __init__(self, predicate: bool | Predicate, environment: SizeEnvironment) -> None:
        self._predicate = predicate
        self._answer: bool | None = predicate if isinstance(predicate, bool) else None
        self.environment = environment

    @property
    def predicate(self) -> bool | Predicate:
        """The statement of which this is the truth value."""
        return self._predicate

    def is_bool(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return not isinstance(self.predicate, bool)

    def is_constant(self) -> bool:
        return isinstance(self.predicate, bool)

    def has_hint(self) -> bool:
        predicate = self.predicate
        return isinstance(predicate, bool) or self.environment.has_hint(predicate)

    @property
    def hint(self) -> bool | None:
        return self.guard_bool("", 0) if self.has_hint() else None

    def maybe_as_bool(self) -> bool | None:
        predicate = self.predicate
        return predicate if isinstance(predicate, bool) else None

    def str(self) -> builtins.str:
        return text_predicate(self.predicate)

    def _boolean(self, predicate: bool | Predicate) -> BooleanNode:
        return BooleanNode(predicate, self.environment)

    def sym_and(self, other: BooleanNode) -> BooleanNode:
        return self._boolean(conjunction(self.predicate, other.predicate))

    and_ = bitwise_and = sym_and

    def sym_or(self, other: BooleanNode) -> BooleanNode:
        return self._boolean(disjunction(self.predicate, other.predicate))

    or_ = bitwise_or = sym_or

    def sym_not(self) -> BooleanNode:
        return self._boolean(negation(self.predicate))

    def eq(self, other: BooleanNode) -> BooleanNode:
        one, two = self.predicate, other.predicate
        both = conjunction(one, two)
        return self._boolean(disjunction(both, conjunction(negation(one), negation(two))))

    def ne(self, other: BooleanNode) -> BooleanNode:
        return self.eq(other).sym_not()

    bitwise_xor = ne

    def sym_ite(self, then: Node, otherwise: Node) -> Node:
        return then if self.guard_bool("", 0) else otherwise

    # ---- asking
    def guard_bool(self, file: builtins.str, line: int) -> bool:
        answer = self._answer
        if answer is None:
            answer = self._answer = self.environment.decide(self.predicate)
        return answer

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    def guard_int(self, file: builtins.str, line: int) -> int:
        return int(self.guard_bool(file, line))

    def int_(self) -> int:
        return int(self.guard_bool("", 0))

    def guard_size_oblivious(self, file: builtins.str, line: int) -> bool:
        if self._answer is not None:
            return self._answer
        return self.environment.decide_size_oblivious(self.predicate)

    def guard_or_false(self, file: builtins.str, line: int) -> bool:
        if self._answer is not None:
            return self._answer
        return self.environment.decide_obliviously(self.predicate, default=False)

    def guard_or_true(self, file: builtins.str, line: int) -> bool:
        if self._answer is not None:
            return self._answer
        return self.environment.decide_obliviously(self.predicate, default=True)

    def statically_known_true(self, file: builtins.str, line: int) -> bool:
        return self.environment.statically_known(self.predicate)

    def expect_true(self, file: builtins.str, line: int) -> bool:
        return self.environment.expect(self.predicate)


class LayoutNode(BooleanNode):
    """Whether sizes and strides have a certain order; worked out only when somebody asks."""

    __slots__ = ("question", "shape", "steps")

    def __init__(
        self,
        question: str,
        shape: tuple[int | Expression, ...],
        steps: tuple[int | Expression, ...],
        environment: SizeEnvironment,
    ) -> None:
        self.question = question
        self.shape = shape
        self.steps = steps
        self._answer = None
        self._predicate = False
        self.environment = environment

    @property
    def predicate(self) -> bool | Predicate:
        """The answer: layouts are decided dimension by dimension, each step a guard of its own."""
        return self.guard_bool("", 0)

    def is_constant(self) -> bool:
        return self._answer is not None

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return all(map(self.environment.has_hint, (*self.shape, *self.steps)))

    def guard_bool(self, file: str, line: int) -> bool:
        answer = self._answer
        if answer is None:
            question = LAYOUT_QUESTIONS[self.question]
            answer = self._answer = question(self.environment, self.shape, self.steps)
        return answer

    def guard_size_oblivious(self, file: str, line: int) -> bool:
        return self.guard_bool(file, line)

    guard_or_false = guard_or_true = statically_known_true = guard_size_oblivious


def _function(name: str) -> Callable[[RealNode], RealNode]:
    def method(self: RealNode) -> RealNode:
        return self._apply(name)

    return method


for _name in REAL_FUNCTIONS:  # `sym_log2` and its like; torch has a function for some of them
    setattr(RealNode, f"sym_{_name}", _function(_name))


def _real_relation(operator: str, left: RealLike, right: RealLike) -> bool | Predicate:
    relation = RealRelation(operator, left, right)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return relation.evaluate({})
    return relation


def _integer_ratio(
    value: RealLike,
) -> tuple[int | Expression, int | Expression] | None:
    """(a, b) when the value is a / b for integers, or float(a)."""
    match value:
        case Real("truediv", (left, right)):
            first, second = _integer_of(left), _integer_of(right)
            return None if first is None or second is None else (first, second)
        case Real("mul", (left, float(factor))) | Real("mul", (float(factor), left)) if (
            math.isfinite(factor) and not factor.is_integer()
        ):
            count, power = factor.as_integer_ratio()
            first = _integer_of(left) if max(abs(count), power) <= _EXACT else None
            return None if first is None else (first * count, power)
        case _:
            single = _integer_of(value)
            return None if single is None else (single, 1)


def _integer_of(value: RealLike) -> int | Expression | None:
    match value:
        case Expression() | int():
            return value
        case float():
            return int(value) if value.is_integer() else None
        case Real("float", (inner,)):
            return _integer_of(inner)
        case Real("mul", (left, right)):
            first, second = _integer_of(left), _integer_of(right)
            return None if first is None or second is None else first * second
        case _:
            return None


def _nearest(numerator: int | Expression, divisor: int) -> int | Expression:
    """The integer next to a quotient, the even one of two, as Python rounds."""
    twice = 2 * numerator + divisor
    above = twice // (2 * divisor)
    halfway = 1 - minimum(twice % (2 * divisor), 1)
    return above - halfway * (above % 2)


_RELATIONS: dict[str, Callable[[int | Expression, int | Expression], bool | Predicate]] = {
    "eq": equal,
    "ne": lambda left, right: negation(equal(left, right)),
    "lt": less_than,
    "le": less_equal,
    "gt": lambda left, right: less_than(right, left),
    "ge": lambda left, right: less_equal(right, left),
}
