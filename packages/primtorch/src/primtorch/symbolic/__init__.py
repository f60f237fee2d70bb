"""Integer expressions and symbolic sizes.

`Expression` is the integer arithmetic of the whole compiler: sizes, strides, loop bounds, memory
indices. A plain `int` is the constant expression everywhere. `SizeEnvironment` makes
`torch.SymInt`s over expressions and keeps the guards of one capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from primtorch.symbolic.arithmetic import REAL_ARITHMETIC, real_function
from primtorch.symbolic.environment import SizeEnvironment, SizeGuard
from primtorch.symbolic.expression import (
    Expression,
    ExpressionVisitor,
    FloorDiv,
    Maximum,
    Minimum,
    Modulo,
    Product,
    Sum,
    Symbol,
    bounds,
    evaluate,
    floor_div,
    free_symbols,
    map_expression,
    maximum,
    minimum,
    modulo,
    product,
    substitute,
    text,
)
from primtorch.symbolic.layout import (
    STATIC,
    Sizes,
    channels_last_strides,
    contiguous_strides,
    is_channels_last_contiguous,
    is_channels_last_strides,
    is_contiguous,
    is_non_overlapping_and_dense,
)
from primtorch.symbolic.node import BooleanNode, IntegerNode, Node, RealNode
from primtorch.symbolic.predicate import (
    And,
    Equal,
    LessThan,
    Not,
    Or,
    Predicate,
    RealRelation,
    conjunction,
    disjunction,
    equal,
    less_equal,
    less_than,
    negation,
    predicate_symbols,
)
from primtorch.symbolic.real import (
    REAL_FUNCTIONS,
    Real,
    RealSymbol,
    evaluate_real,
    real_symbols,
    text_real,
)
from primtorch.symbolic.simplify import split_sum

if TYPE_CHECKING:
    import torch


def expression_of(value: int | torch.SymInt) -> int | Expression:
    """The expression that a size stands for; an int is itself.

    Raises TypeError for a SymInt that isn't ours.
    """
    if isinstance(value, int):
        return value
    node = value.node
    if not isinstance(node, IntegerNode):
        raise TypeError(f"{value!r} is a symbolic size of another system ({type(node).__name__})")
    return node.expression


def environment_of(value: torch.SymInt) -> SizeEnvironment:
    """The environment of a symbolic size."""
    return value.node.environment


def hint_of(value: int | torch.SymInt) -> int:
    """The value in the traced call; DataDependentError if it is known only at run time.

    An Expression doesn't know its environment: ask `environment.hint(expression)`.
    """
    if isinstance(value, int):
        return value
    node = value.node
    return node.environment.hint(node.expression)


def symint(expression: int | Expression, environment: SizeEnvironment) -> int | torch.SymInt:
    """The `torch.SymInt` of an expression; an int stays an int."""
    return environment.symint(expression)


__all__ = [
    "REAL_ARITHMETIC",
    "REAL_FUNCTIONS",
    "STATIC",
    "And",
    "BooleanNode",
    "Equal",
    "Expression",
    "ExpressionVisitor",
    "FloorDiv",
    "IntegerNode",
    "LessThan",
    "Maximum",
    "Minimum",
    "Modulo",
    "Node",
    "Not",
    "Or",
    "Predicate",
    "Product",
    "Real",
    "RealNode",
    "RealRelation",
    "RealSymbol",
    "SizeEnvironment",
    "SizeGuard",
    "Sizes",
    "Sum",
    "Symbol",
    "bounds",
    "channels_last_strides",
    "conjunction",
    "contiguous_strides",
    "disjunction",
    "environment_of",
    "equal",
    "evaluate",
    "evaluate_real",
    "expression_of",
    "floor_div",
    "free_symbols",
    "hint_of",
    "is_channels_last_contiguous",
    "is_channels_last_strides",
    "is_contiguous",
    "is_non_overlapping_and_dense",
    "less_equal",
    "less_than",
    "map_expression",
    "maximum",
    "minimum",
    "modulo",
    "negation",
    "predicate_symbols",
    "product",
    "real_function",
    "real_symbols",
    "split_sum",
    "substitute",
    "symint",
    "text",
    "text_real",
]
