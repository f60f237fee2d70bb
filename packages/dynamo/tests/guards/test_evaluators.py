"""The C evaluator and the Python one give the same answer for random programs over random values."""

import types

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynamo._native import HAVE_C, READS_STATE, READS_TENSORS
from dynamo.guards import Guard, GuardKind, TensorGuard, calibrate, compile_program, same_constant
from dynamo.guards.extension import fast
from dynamo.guards.kinds import MISSING
from dynamo.source import (
    AttributeSource,
    ConstantSource,
    DictKeySource,
    InstanceAttributeSource,
    ItemSource,
    LengthSource,
    LocalSource,
    Scope,
    SizeSource,
    StorageOffsetSource,
    StrideSource,
    TypeSource,
    load_instructions,
    value,
)

K = GuardKind


def function(a, b):
    pass


SHAPES = [(), (1,), (2, 3), (3, 2), (2, 1, 3, 1, 2, 2)]
tensors = st.builds(
    lambda shape, dtype, flip, grad: _tensor(shape, dtype, flip=flip, grad=grad),
    st.sampled_from(SHAPES),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.complex64]),
    st.booleans(),
    st.booleans(),
)


def _tensor(shape, dtype, *, flip, grad):
    made = torch.zeros(shape, dtype=dtype)
    made = made.transpose(0, -1) if flip and shape else made
    return made.requires_grad_(grad and dtype.is_floating_point)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(2**62, 2**65),
    st.sampled_from([0.0, -0.0, 1.0, float("nan"), float("inf")]),
    st.sampled_from(["", "a", "b", b"a"]),
    st.sampled_from([torch.float32, torch.device("cpu"), int, len, slice(1, 2)]),
    st.sampled_from([(1, 2), (1.0, 2), (0.0,), (-0.0,), frozenset({1})]),
)
keys = st.sampled_from(["a", "b", "c", 0, 1, True, 1.0, -1, (1,)])


def _object(fields):
    return types.SimpleNamespace(**fields)


values = st.recursive(
    st.one_of(scalars, tensors),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(_object),
    ),
    max_leaves=8,
)

steps = st.one_of(
    st.builds(lambda key: lambda base: ItemSource(base, key), keys),
    st.builds(lambda name: lambda base: AttributeSource(base, name), st.sampled_from("abc")),
    st.builds(
        lambda name: lambda base: InstanceAttributeSource(base, name), st.sampled_from("abc")
    ),
    st.builds(lambda i: lambda base: DictKeySource(base, i), st.integers(0, 2)),
    st.builds(lambda d: lambda base: SizeSource(base, d), st.integers(-3, 5)),
    st.builds(lambda d: lambda base: StrideSource(base, d), st.integers(-3, 5)),
    st.sampled_from([TypeSource, LengthSource, StorageOffsetSource]),
)
sources = st.builds(
    lambda root, path: _walk(LocalSource(root), path),
    st.sampled_from("ab"),
    st.lists(steps, max_size=3),
)


def _walk(source, path):
    for step in path:
        source = step(source)
    return source


def operand_for(kind, found, other):
    """An operand of the kind's type, made from a value that may or may not be the source's."""
    match kind:
        case K.TYPE:
            return type(other)
        case K.IDENTITY | K.EQUAL:
            return other
        case K.TENSOR:
            return TensorGuard.of(other if isinstance(other, torch.Tensor) else torch.zeros(2, 3))
        case K.LENGTH:
            return len(other) if hasattr(type(other), "__len__") else 1
        case K.KEYS:
            return tuple(other) if isinstance(other, (dict, list)) else ("a",)
        case K.CONTAINS | K.LACKS:
            return "a"
        case K.HAS_ATTRIBUTE | K.LACKS_ATTRIBUTE | K.LACKS_OWN_ATTRIBUTE:
            return "a"
        case K.CLASS_ATTRIBUTE:
            return ("__len__", getattr(type(other), "__dict__", {}).get("__len__", MISSING))
        case K.CODE:
            return function.__code__
        case K.NO_HOOKS:
            return None
        case K.PREDICATE:
            return (lambda value: isinstance(value, type(found)), "of that type")
    raise AssertionError(kind)


one_value = sorted(
    set(K)
    - {K.GLOBAL_STATE, K.NO_GLOBAL_HOOKS, K.SHAPE, K.SAME_OBJECT, K.DISTINCT, K.STORAGES, K.APART},
    key=lambda kind: kind.name,
)


@st.composite
def programs(draw):
    slots = (draw(values), draw(values))
    scope = Scope(function, dict(zip("ab", slots, strict=True)))
    guards = []
    for _ in range(draw(st.integers(1, 4))):
        source, kind = draw(sources), draw(st.sampled_from(one_value))
        try:
            found = value(source, scope)
        except Exception:  # noqa: BLE001  # whatever loading raises
            found = None
        other = draw(st.sampled_from([found, slots[0], draw(values)]))
        guards.append(Guard(source, kind, operand_for(kind, found, other)))
    inputs = draw(st.lists(sources, max_size=2))
    relations = draw(st.lists(sources, max_size=3))
    if relations:
        guards.append(Guard(relations[0], K.SAME_OBJECT, draw(sources)))
        guards.append(Guard(relations[0], K.DISTINCT, tuple(relations[1:])))
    return guards[: draw(st.integers(1, len(guards)))], inputs, slots


def same_object(left, right):
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):  # iterating and indexing make new ones each time
        return left.dtype is right.dtype and torch.equal(left, right)
    return isinstance(left, (int, str, tuple, types.GenericAlias)) and left == right


def same_list(left, right):
    if left is None or right is None:
        return left is right
    return len(left) == len(right) and all(map(same_object, left, right))


@pytest.mark.skipif(not HAVE_C, reason="the extension is not built")
@pytest.mark.property
@settings(suppress_health_check=list(HealthCheck))
@given(programs())
def test_both_evaluators_agree(case):
    guards, inputs, slots = case
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    native, python = program.match(slots, function), program.match_in_python(slots, function)
    assert same_list(native, python), (program.text(), slots)
    assert (program.explain(slots, function) is None) is (
        python is not None or compile_program(guards, code=function.__code__).check(slots, function)
    )


@pytest.mark.skipif(not HAVE_C, reason="the extension is not built")
@pytest.mark.property
@settings(suppress_health_check=list(HealthCheck))
@given(programs())
def test_both_evaluators_agree_when_everything_is_asked_of_python(case):
    guards, inputs, slots = case
    program = compile_program(guards, code=function.__code__, inputs=inputs)
    fast.clear_calibration()
    try:
        native = program.match(slots, function)
    finally:
        assert calibrate.calibrate(fast) == (READS_TENSORS, READS_STATE)
    assert same_list(native, program.match_in_python(slots, function))


@pytest.mark.property
@given(scalars, scalars)
def test_constants_are_the_same_when_programs_cannot_tell_them_apart(left, right):
    same = same_constant(left, right)
    assert same is same_constant(right, left)
    if same:
        assert type(left) is type(right)
        assert repr(left) == repr(right)
    assert same_constant(left, left)


@pytest.mark.property
@settings(suppress_health_check=list(HealthCheck))
@given(sources, values, values)
def test_generated_code_loads_what_the_source_names(source, a, b):
    import dataclasses

    from dynamo.bytecode import assemble, build, header_of

    header = dataclasses.replace(header_of(function.__code__), constants=(), names=())
    body = [*build.prologue(), *load_instructions(source), build.return_value()]
    loader = types.FunctionType(assemble(body, header), {})
    try:
        expected = value(source, Scope(function, {"a": a, "b": b}))
    except Exception as error:  # noqa: BLE001  # the loader must raise it too
        with pytest.raises(type(error)):
            loader(a, b)
    else:
        assert same_list([loader(a, b)], [expected])


@pytest.mark.skipif(not HAVE_C, reason="the extension is not built")
def test_torch_was_understood():
    """Otherwise every check is slow, though right; a new torch must not pass unseen."""
    assert READS_TENSORS
    assert READS_STATE


@pytest.mark.skipif(not HAVE_C, reason="the extension is not built")
def test_the_cost_of_checking_tensors():
    """Far above what is promised, because the machine may be busy; the promise is in the
    benchmarks.
    """
    tensors = [torch.empty(3, 4) for _ in range(200)]
    items = [ItemSource(LocalSource("a"), i) for i in range(200)]
    guards = [Guard(items[i], K.TENSOR, TensorGuard.of(t)) for i, t in enumerate(tensors)]
    program = compile_program(guards, code=function.__code__, inputs=items)
    spent = min(program.native.time((tensors, None), function, 500) for _ in range(10))
    assert spent < 25_000


def test_a_class_attribute_that_is_none_and_one_that_is_missing():
    class Holder:
        empty = None

    def function(x):
        return x

    def holds(name, value):
        guard = Guard(ConstantSource(Holder), GuardKind.CLASS_ATTRIBUTE, (name, value))
        program = compile_program([guard], code=function.__code__)
        assert program.check((1,), function) is (
            program.match_in_python((1,), function) is not None
        )
        return program.check((1,), function)

    assert holds("empty", None)
    assert not holds("absent", None)
    assert holds("absent", MISSING)
    assert not holds("empty", MISSING)
