"""Building and unpacking containers."""

# ruff: noqa: ARG001, D415 - one signature for all opcodes; the docstring is the stack effect
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dynamo.faults import require_programs
from dynamo.machine.program import opcode
from dynamo.values import attributes, calls, iteration, operators, subscripts

if TYPE_CHECKING:
    from dynamo.machine.frame import Frame
    from dynamo.machine.interpreter import Machine
    from dynamo.machine.program import Op


def _take(frame: Frame, count: int) -> list[object]:
    if count == 0:
        return []
    stack = frame.stack
    values = stack[-count:]
    del stack[-count:]
    return values


@opcode("BUILD_TUPLE")
def build_tuple(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., items] -> [.., tuple]"""
    frame.stack.append(tuple(_take(frame, op.arg)))


@opcode("BUILD_LIST")
def build_list(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., items] -> [.., list]"""
    frame.stack.append(_take(frame, op.arg))


@opcode("BUILD_SET", breaks=True)
def build_set(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., items] -> [.., set]"""
    result: set[object] = set()
    for value in _take(frame, op.arg):
        result.add(operators.as_key(machine, value))
    frame.stack.append(result)


@opcode("BUILD_MAP", breaks=True)
def build_map(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., key, value, ..] -> [.., dict]"""
    values = _take(frame, 2 * op.arg)
    keys = [operators.as_key(machine, key) for key in values[::2]]
    frame.stack.append(dict(zip(keys, values[1::2], strict=True)))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., values, keys] -> [.., dict]"""
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, _take(frame, op.arg), strict=True)))


@opcode("BUILD_SLICE")
def build_slice(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., start, stop, step?] -> [.., slice]"""
    frame.stack.append(slice(*_take(frame, op.arg)))


@opcode("LIST_TO_TUPLE")
def list_to_tuple(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., list] -> [.., tuple]"""
    frame.stack.append(tuple(frame.stack.pop()))


@opcode("LIST_APPEND")
def list_append(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., list, .., value] -> [.., list, ..]"""
    value = frame.stack.pop()
    frame.stack[-op.arg].append(value)


@opcode("SET_ADD", breaks=True)
def set_add(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., set, .., value] -> [.., set, ..]"""
    value = frame.stack.pop()
    frame.stack[-op.arg].add(operators.as_key(machine, value))


@opcode("MAP_ADD", breaks=True)
def map_add(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., dict, .., key, value] -> [.., dict, ..]"""
    value = frame.stack.pop()
    key = frame.stack.pop()
    frame.stack[-op.arg][operators.as_key(machine, key)] = value


@opcode("LIST_EXTEND", breaks=True)
def list_extend(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., list, .., iterable] -> [.., list, ..]"""
    iterable = frame.stack.pop()
    frame.stack[-op.arg].extend(iteration.iterate(machine, iterable))


@opcode("SET_UPDATE", breaks=True)
def set_update(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., set, .., iterable] -> [.., set, ..]"""
    iterable = frame.stack.pop()
    for value in iteration.iterate(machine, iterable):
        operators.check_hashable(machine, value)
        frame.stack[-op.arg].add(value)


@opcode("DICT_UPDATE", breaks=True)
def dict_update(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., dict, .., mapping] -> [.., dict, ..]"""
    mapping = frame.stack.pop()
    frame.stack[-op.arg].update(subscripts.mapping_items(machine, mapping))


@opcode("DICT_MERGE", breaks=True)
def dict_merge(machine: Machine, frame: Frame, op: Op) -> None:
    """The same for `f(**mapping)`: a repeated name is an error"""
    mapping = frame.stack.pop()
    target = frame.stack[-op.arg]
    for key, value in subscripts.mapping_items(machine, mapping).items():
        if key in target:
            raise TypeError(f"got multiple values for keyword argument '{key}'")
        target[key] = value


@opcode("UNPACK_SEQUENCE", breaks=True)
def unpack_sequence(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., sequence] -> [.., last, .., first]"""
    count = op.arg
    value = frame.stack.pop()
    items = iteration.take(machine, value, count + 1)
    if len(items) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(items)})")
    if len(items) > count:
        raise ValueError(f"too many values to unpack (expected {count})")
    items.reverse()
    frame.stack.extend(items)


@opcode("UNPACK_EX", breaks=True)
def unpack_ex(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., sequence] -> the items, with a list for the starred one"""
    before, after = op.arg & 0xFF, op.arg >> 8
    items = list(iteration.iterate(machine, frame.stack.pop()))
    if len(items) < before + after:
        raise ValueError(
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
    tail = items[len(items) - after :] if after else []
    middle = items[before : len(items) - after]
    frame.stack.extend(reversed(tail))
    frame.stack.append(middle)
    frame.stack.extend(reversed(items[:before]))


@opcode("GET_LEN", breaks=True)
def get_len(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., value, len(value)]"""
    frame.stack.append(subscripts.length(machine, frame.stack[-1]))


@opcode("MATCH_MAPPING")
def match_mapping(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., value, is a mapping]"""
    frame.stack.append(isinstance(frame.stack[-1], Mapping))


@opcode("MATCH_SEQUENCE")
def match_sequence(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., value] -> [.., value, is a sequence]"""
    value = frame.stack[-1]
    frame.stack.append(
        isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    )


@opcode("MATCH_KEYS", breaks=True)
def match_keys(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., mapping, keys] -> [.., mapping, keys, values or None]"""
    mapping, keys = frame.stack[-2:]
    values = []
    for key in keys:
        if not subscripts.contains(machine, mapping, key):
            frame.stack.append(None)
            return
        values.append(subscripts.subscript(machine, mapping, key))
    frame.stack.append(tuple(values))


@opcode("MATCH_CLASS", breaks=True)
def match_class(machine: Machine, frame: Frame, op: Op) -> None:
    """[.., subject, class, names] -> [.., attributes or None]"""
    stack = frame.stack
    names = stack.pop()
    cls = stack.pop()
    subject = stack.pop()
    if not calls.call(machine, isinstance, (subject, cls), {}):
        stack.append(None)
        return
    wanted: list[str] = []
    values: list[object] = []
    if op.arg:
        own = cls in (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
        if own:
            values.append(subject)
        else:
            positional = getattr(cls, "__match_args__", ())
            if op.arg > len(positional):
                raise TypeError(
                    f"{cls.__name__}() accepts {len(positional)} positional sub-pattern"
                    f"{'' if len(positional) == 1 else 's'} ({op.arg} given)"
                )
            wanted.extend(positional[: op.arg])
    wanted.extend(names)
    for name in wanted:
        try:
            values.append(attributes.load(machine, subject, name))
        except AttributeError as error:
            require_programs(error)
            stack.append(None)
            return
    stack.append(tuple(values))
