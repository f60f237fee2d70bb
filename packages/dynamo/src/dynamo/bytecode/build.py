"""Makes instructions that mean the same on every supported interpreter.

Each function returns one `Instruction` where every version needs exactly one, else a list. Stack
effects are in the docstrings, top of the stack on the right. How a call pushes its NULL, where a
comparison keeps its operator, how a closure's cell is loaded: only this module and `table` know.
Invariant: what is returned is new, so it may be jumped to, given positions, or put under a handler
by whoever asked for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo.bytecode.instruction import BytecodeError, Instruction
from dynamo.bytecode.table import COMPARE_SHIFT, COMPARISONS
from dynamo.versions import PY312, PY313

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "begin_call",
    "binary_op",
    "build_list",
    "build_map",
    "build_set",
    "build_slice",
    "build_string",
    "build_tuple",
    "call",
    "call_method",
    "call_prepared",
    "compare_op",
    "contains_op",
    "copy_value",
    "delete_attr",
    "delete_deref",
    "delete_fast",
    "delete_global",
    "delete_item",
    "dict_update",
    "end_call",
    "end_call_spread",
    "is_op",
    "jump_backward",
    "jump_forward",
    "list_extend",
    "load_attr",
    "load_closure",
    "load_const",
    "load_deref",
    "load_fast",
    "load_global",
    "load_item",
    "make_function",
    "nop",
    "pop_jump_if_false",
    "pop_jump_if_none",
    "pop_jump_if_not_none",
    "pop_jump_if_true",
    "pop_top",
    "prologue",
    "push_null",
    "raise_value",
    "return_value",
    "rotate_down",
    "store_attr",
    "store_deref",
    "store_fast",
    "store_global",
    "store_item",
    "swap",
    "unary_not",
    "unpack_sequence",
]

# The argument of BINARY_OP by the operator's spelling; in-place forms follow at a fixed distance.
_BINARY = {
    name: number
    for number, name in enumerate(
        ["+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"]
    )
}
_INPLACE = 13


def load_fast(name: str) -> Instruction:
    """[..] -> [.., local]."""
    return Instruction("LOAD_FAST", argval=name)


def store_fast(name: str) -> Instruction:
    """[.., value] -> [..]; the local is made if the code object lacks it."""
    return Instruction("STORE_FAST", argval=name)


def delete_fast(name: str) -> Instruction:
    """[..] -> [..]; the local must be bound."""
    return Instruction("DELETE_FAST", argval=name)


def load_const(value: Any) -> Instruction:
    """[..] -> [.., value]; any object: the code object keeps it alive."""
    return Instruction("LOAD_CONST", argval=value)


def load_global(name: str) -> Instruction:
    """[..] -> [.., global or builtin]."""
    return Instruction("LOAD_GLOBAL", 0, name)


def store_global(name: str) -> Instruction:
    """[.., value] -> [..]."""
    return Instruction("STORE_GLOBAL", argval=name)


def delete_global(name: str) -> Instruction:
    """[..] -> [..]."""
    return Instruction("DELETE_GLOBAL", argval=name)


def load_deref(name: str) -> Instruction:
    """[..] -> [.., what the cell holds]."""
    return Instruction("LOAD_DEREF", argval=name)


def store_deref(name: str) -> Instruction:
    """[.., value] -> [..]."""
    return Instruction("STORE_DEREF", argval=name)


def delete_deref(name: str) -> Instruction:
    """[..] -> [..]; empties the cell."""
    return Instruction("DELETE_DEREF", argval=name)


def load_closure(name: str) -> Instruction:
    """[..] -> [.., the cell itself]."""
    return Instruction("LOAD_FAST" if PY313 else "LOAD_CLOSURE", argval=name)


def load_attr(name: str) -> Instruction:
    """[.., owner] -> [.., owner.name]."""
    return Instruction("LOAD_ATTR", 0, name)


def store_attr(name: str) -> Instruction:
    """[.., value, owner] -> [..]."""
    return Instruction("STORE_ATTR", argval=name)


def delete_attr(name: str) -> Instruction:
    """[.., owner] -> [..]."""
    return Instruction("DELETE_ATTR", argval=name)


def load_item() -> Instruction:
    """[.., container, key] -> [.., container[key]]."""
    return Instruction("BINARY_SUBSCR")


def store_item() -> Instruction:
    """[.., value, container, key] -> [..]."""
    return Instruction("STORE_SUBSCR")


def delete_item() -> Instruction:
    """[.., container, key] -> [..]."""
    return Instruction("DELETE_SUBSCR")


def build_tuple(count: int) -> Instruction:
    """[.., first, .., last] -> [.., (first, .., last)]."""
    return Instruction("BUILD_TUPLE", count)


def build_list(count: int) -> Instruction:
    """[.., first, .., last] -> [.., [first, .., last]]."""
    return Instruction("BUILD_LIST", count)


def build_set(count: int) -> Instruction:
    """[.., first, .., last] -> [.., {first, .., last}]."""
    return Instruction("BUILD_SET", count)


def build_map(count: int) -> Instruction:
    """[.., key, value, ..] -> [.., {key: value, ..}]; `count` pairs."""
    return Instruction("BUILD_MAP", count)


def build_string(count: int) -> Instruction:
    """[.., text, .., text] -> [.., their concatenation]."""
    return Instruction("BUILD_STRING", count)


def build_slice(count: int) -> Instruction:
    """[.., start, stop(, step)] -> [.., slice]; `count` is 2 or 3."""
    return Instruction("BUILD_SLICE", count)


def list_extend(depth: int) -> Instruction:
    """[.., list, .., iterable] -> [.., list, ..]; `depth` counts from the iterable, taken off."""
    return Instruction("LIST_EXTEND", depth)


def dict_update(depth: int) -> Instruction:
    """[.., dict, .., mapping] -> [.., dict, ..]; `depth` counts from the mapping, taken off."""
    return Instruction("DICT_UPDATE", depth)


def unpack_sequence(count: int) -> Instruction:
    """[.., sequence] -> [.., last, .., first]."""
    return Instruction("UNPACK_SEQUENCE", count)


def pop_top() -> Instruction:
    """[.., value] -> [..]."""
    return Instruction("POP_TOP")


def swap(depth: int) -> Instruction:
    """Exchange the top with the value `depth` entries down (the top itself is 1)."""
    return Instruction("SWAP", depth)


def copy_value(depth: int) -> Instruction:
    """Push the value `depth` entries down again (the top itself is 1)."""
    return Instruction("COPY", depth)


def rotate_down(depth: int) -> list[Instruction]:
    """Move the top below the `depth - 1` values under it: [a, b, top] -> [top, a, b] for 3."""
    return [swap(distance) for distance in range(depth, 1, -1)]


def nop() -> Instruction:
    """Does nothing; a place to jump to."""
    return Instruction("NOP")


def return_value() -> Instruction:
    """[.., value] -> the function returns it."""
    return Instruction("RETURN_VALUE")


def raise_value() -> Instruction:
    """[.., exception] -> it is raised."""
    return Instruction("RAISE_VARARGS", 1)


def binary_op(operator: str) -> Instruction:
    """[.., left, right] -> [.., left operator right]; `operator` as written: "+", "//", "@=", .."""
    inplace = operator.endswith("=")
    number = _BINARY.get(operator.removesuffix("="))
    if number is None:
        raise BytecodeError(f"{operator!r} is no binary operator")
    return Instruction("BINARY_OP", number + _INPLACE * inplace)


def compare_op(operator: str) -> Instruction:
    """[.., left, right] -> [.., left operator right]; one of < <= == != > >=."""
    index = COMPARISONS.index(operator)
    # Below the operator lie the outcomes that make it true: the specialised forms test only these.
    mask = _COMPARE_MASKS[operator] if PY312 else 0
    return Instruction("COMPARE_OP", index << COMPARE_SHIFT | mask, operator)


# unordered 1, less 2, greater 4, equal 8
_COMPARE_MASKS = {"<": 2, "<=": 2 | 8, "==": 8, "!=": 1 | 2 | 4, ">": 4, ">=": 4 | 8}


def is_op(*, negate: bool = False) -> Instruction:
    """[.., left, right] -> [.., left is (not) right]."""
    return Instruction("IS_OP", int(negate))


def contains_op(*, negate: bool = False) -> Instruction:
    """[.., item, container] -> [.., item (not) in container]."""
    return Instruction("CONTAINS_OP", int(negate))


def unary_not() -> list[Instruction]:
    """[.., value] -> [.., not value]."""
    if PY313:
        return [Instruction("TO_BOOL"), Instruction("UNARY_NOT")]
    return [Instruction("UNARY_NOT")]


def jump_forward(target: Instruction) -> Instruction:
    """Go to `target`, which comes later."""
    return Instruction("JUMP_FORWARD", target=target)


def jump_backward(target: Instruction) -> Instruction:
    """Go to `target`, which comes earlier; signals are looked at."""
    return Instruction("JUMP_BACKWARD", target=target)


def _pop_jump(condition: str, target: Instruction, *, test: bool) -> list[Instruction]:
    name = f"POP_JUMP_IF_{condition}" if PY312 else f"POP_JUMP_FORWARD_IF_{condition}"
    jump = Instruction(name, target=target)
    return [Instruction("TO_BOOL"), jump] if PY313 and test else [jump]


def pop_jump_if_true(target: Instruction) -> list[Instruction]:
    """[.., value] -> [..]; goes to `target`, which comes later, if the value is true."""
    return _pop_jump("TRUE", target, test=True)


def pop_jump_if_false(target: Instruction) -> list[Instruction]:
    """[.., value] -> [..]; goes to `target`, which comes later, if the value is false."""
    return _pop_jump("FALSE", target, test=True)


def pop_jump_if_none(target: Instruction) -> list[Instruction]:
    """[.., value] -> [..]; goes to `target`, which comes later, if the value is None."""
    return _pop_jump("NONE", target, test=False)


def pop_jump_if_not_none(target: Instruction) -> list[Instruction]:
    """[.., value] -> [..]; goes to `target`, which comes later, if the value is not None."""
    return _pop_jump("NOT_NONE", target, test=False)


def push_null() -> Instruction:
    """[..] -> [.., NULL]; most callers want `begin_call`."""
    return Instruction("PUSH_NULL")


def begin_call(function: Sequence[Instruction]) -> list[Instruction]:
    """[..] -> [.., function and NULL in this version's order]; `function` loads the callable.

    Arguments follow, then `end_call`.
    """
    if PY313:
        return [*function, push_null()]
    return [push_null(), *function]


def call_prepared(count: int) -> list[Instruction]:
    """[.., function, first, .., last] -> the same with NULL put in place for `end_call`."""
    if PY313:
        return [push_null(), *rotate_down(count + 1)] if count else [push_null()]
    return [push_null(), *rotate_down(count + 2)]


def end_call(count: int, keywords: tuple[str, ...] = ()) -> list[Instruction]:
    """[.., callable and NULL, count arguments] -> [.., result].

    The last arguments are the values of `keywords`.
    """
    if PY313:
        if keywords:
            return [load_const(keywords), Instruction("CALL_KW", count)]
        return [Instruction("CALL", count)]
    named = [Instruction("KW_NAMES", argval=keywords)] if keywords else []
    if PY312:
        return [*named, Instruction("CALL", count)]
    return [*named, Instruction("PRECALL", count), Instruction("CALL", count)]


def end_call_spread(*, keywords: bool) -> list[Instruction]:
    """[.., callable and NULL, tuple(, dict)] -> [.., result]: `function(*tuple, **dict)`."""
    return [Instruction("CALL_FUNCTION_EX", int(keywords))]


def call(
    function: Sequence[Instruction],
    *arguments: Sequence[Instruction],
    keywords: tuple[str, ...] = (),
) -> list[Instruction]:
    """[..] -> [.., result].

    Each argument is the instructions that load it; the last are the values of `keywords`.
    """
    loads = [instruction for argument in arguments for instruction in argument]
    return [*begin_call(function), *loads, *end_call(len(arguments), keywords)]


def call_method(name: str, count: int) -> list[Instruction]:
    """[.., owner, first, .., last] -> [.., owner.name(first, .., last)].

    The name is looked up after the arguments were evaluated.
    """
    if count == 0:
        return [load_attr(name), *call_prepared(0), *end_call(0)]
    # Bring the owner to the top, look up, and put the bound method back below its arguments.
    lift = [swap(distance) for distance in range(2, count + 2)]
    return [
        *lift,
        load_attr(name),
        *rotate_down(count + 1),
        *call_prepared(count),
        *end_call(count),
    ]


def make_function(
    *, defaults: bool = False, keyword_defaults: bool = False, closure: bool = False
) -> list[Instruction]:
    """[.., (defaults), (keyword defaults), (closure), code] -> [.., function]."""
    flags = [
        flag for flag, present in ((1, defaults), (2, keyword_defaults), (8, closure)) if present
    ]
    if not PY313:
        return [Instruction("MAKE_FUNCTION", sum(flags))]
    # The topmost extra is the last pushed.
    attributes = [Instruction("SET_FUNCTION_ATTRIBUTE", flag) for flag in reversed(flags)]
    return [Instruction("MAKE_FUNCTION"), *attributes]


def prologue(cell_names: Sequence[str] = (), free_names: Sequence[str] = ()) -> list[Instruction]:
    """What a function starts with: its free variables, its cells, RESUME."""
    start = [Instruction("COPY_FREE_VARS", len(free_names))] if free_names else []
    start += [Instruction("MAKE_CELL", argval=name) for name in cell_names]
    return [*start, Instruction("RESUME", 0)]
