"""Values and objects survive being written and read; what can't is refused."""

import functools
import math
import operator
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from primtorch.serial import (
    Foreign,
    NotStorable,
    Writer,
    code_digest,
    find_path,
    function_digest,
    unpack,
)
from primtorch.symbolic import Symbol, equal, less_than, maximum, minimum


def through(value):
    writer = Writer()
    data, reader = unpack(writer.pack(writer.value(value)))
    return reader.value(data)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from([..., torch.float32, torch.device("cpu"), torch.strided, torch.channels_last])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.builds(slice, inner, inner)
    ),
    max_leaves=12,
)


@given(values)
def test_constants_come_back_equal(value):
    found = through(value)
    assert type(found) is type(value)
    assert found == value
    assert str(found) == str(value)  # -0.0, and the types inside


@given(st.integers(-50, 50), st.integers(1, 9), st.booleans())
def test_expressions_come_back_as_themselves(constant, factor, flag):
    a, b = Symbol("a", 2), Symbol("b", 0, 100)
    expression = (a * b * factor + constant) // 4 + (a % 7) + maximum(a, b) - minimum(a * 2, b)
    assert through(expression) is expression
    predicate = equal(expression, 12) if flag else less_than(a * factor, b)
    assert through(predicate) == predicate


@pytest.mark.parametrize(
    "value",
    [
        torch.relu,
        torch.nn.functional.gelu,
        torch.Tensor.add_,
        torch.nn.Linear,
        torch.nn.Module.forward,
        torch.nn.Module,
        operator.add,
        math.sqrt,
        len,
        dict.get,
        types.FunctionType,
        functools.partial,
        torch.ops.aten.add.Tensor,
        torch.ops.aten.mm,
        torch._C._set_grad_enabled,
        torch.nn,
    ],
    ids=lambda value: value.__name__,  # an address would be another in each process
)
def test_objects_are_found_again(value):
    assert through(value) is value


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int64, torch.bfloat16])
def test_small_tensors_come_back_with_their_layout(shape, dtype):
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    for one in (tensor, tensor.mT if len(shape) > 1 else tensor):
        found = through(one)
        assert found.dtype is dtype
        assert found.stride() == one.stride()
        assert torch.equal(found, one)


def test_an_expanded_tensor_comes_back_expanded():
    tensor = torch.tensor([[1.0], [2.0]]).expand(2, 5)
    found = through(tensor)
    assert found.stride() == tensor.stride()
    assert torch.equal(found, tensor)


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 0, torch.ones(2, requires_grad=True), torch.zeros(1 << 22)],
    ids=["object", "lambda", "grad", "large"],
)
def test_what_means_nothing_elsewhere_is_refused(value):
    with pytest.raises(NotStorable):
        Writer().value(value)


def make(text):
    scope = {"__name__": "somewhere"}
    exec(text, scope)
    return scope["f"]


def test_a_function_is_its_code_its_defaults_and_its_marks():
    base = function_digest(make("def f(x, y=1):\n    return x + y"))
    assert base == function_digest(make("\n\n# moved\ndef f(x, y=1):\n    return x + y"))
    for other in (
        "def f(x, y=2):\n    return x + y",
        "def f(x, *, y=1):\n    return x + y",
        "def f(x, y=1):\n    return x - y",
        "def f(x, y=1):\n    return (lambda: x + y)()",
    ):
        assert base != function_digest(make(other))
    marked = make("def f(x, y=1):\n    return x + y")
    marked._dynamo_disable = True
    assert base != function_digest(marked)


def test_the_digest_of_code_is_the_same_in_every_process():
    code = compile("def f(x): return x in {'a', 'b', 'c', 'd'} or x == (1, 2.5, b'x')", "a", "exec")
    assert code_digest(code) == code_digest(compile(compile_text := "def f(x): return x in "
        "{'d', 'b', 'c', 'a'} or x == (1, 2.5, b'x')", "b", "exec"))  # fmt: skip
    assert compile_text


def test_a_decorated_function_is_found_in_its_decorator():
    inner = torch.no_grad()(torch.nn.Module.forward)
    assert find_path(inner) is None
    assert find_path(torch.optim.SGD.step) is not None


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 9, b"\x02\0\0\0\0\0\0\0[]", b"\x04\0\0\0\0\0\0\0null"]
)
def test_other_bytes_are_foreign(data):
    with pytest.raises(Foreign):
        unpack(data)


def test_an_object_that_is_gone_is_foreign():
    module = types.ModuleType("here_today")
    import sys

    sys.modules["here_today"] = module
    exec("def f(x):\n    return x", vars(module))
    writer = Writer()
    packed = writer.pack(writer.value(module.f))
    exec("def f(x):\n    return x + 1", vars(module))
    data, reader = unpack(packed)
    with pytest.raises(Foreign, match="here_today.f has changed"):
        reader.value(data)
    del sys.modules["here_today"]
    data, reader = unpack(packed)
    with pytest.raises(Foreign, match="here_today.f is not there"):
        reader.value(data)


@pytest.mark.parametrize(
    "value", [int | None, torch.Tensor | int, list[int], dict[str, torch.nn.Module]], ids=str
)
def test_types_of_types_come_back_equal(value):
    assert through(value) == value
    assert type(through(value)) is type(value)
