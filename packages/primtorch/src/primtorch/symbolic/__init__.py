"""Integer expressions and symbolic sizes.

`Expression` is the integer arithmetic of the whole compiler: sizes, strides, loop bounds, memory
indices. A plain `int` is the constant expression everywhere.
"""

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
    split_sum,
    substitute,
    text,
)

__all__ = [
    "Expression",
    "ExpressionVisitor",
    "FloorDiv",
    "Maximum",
    "Minimum",
    "Modulo",
    "Product",
    "Sum",
    "Symbol",
    "bounds",
    "evaluate",
    "floor_div",
    "free_symbols",
    "map_expression",
    "maximum",
    "minimum",
    "modulo",
    "product",
    "split_sum",
    "substitute",
    "text",
]
