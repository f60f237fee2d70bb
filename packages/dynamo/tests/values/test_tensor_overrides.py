"""Classes and modes with `__torch_function__`: captured by interpreting it, in eager's order."""

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

import dynamo
from dynamo.testing import CompileCounter

SEEN = []


class Inheriting(torch.Tensor):
    pass


class Logged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        SEEN.append((func.__name__, [kind.__name__ for kind in types]))
        return super().__torch_function__(func, types, args, kwargs or {})


class Child(Logged):
    pass


class Declining(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        SEEN.append(("declined", func.__name__))
        return NotImplemented


class Disabled(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Unit(torch.Tensor):
    """A number with a unit: multiplied with the numbers, kept by everything else."""

    LABEL = "unit"

    def __new__(cls, data, unit):
        return torch.Tensor._make_subclass(cls, data)

    def __init__(self, data, unit):
        self.unit = unit

    @classmethod
    def of(cls, data):
        return cls(data, "m")

    @property
    def squared(self):
        return self * self

    def shifted(self, by):
        return self + by * len(self.unit)

    def __truediv__(self, other):
        return self.as_subclass(torch.Tensor) / 2 / other

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        units = [one.unit for one in tree_leaves(list(args)) if isinstance(one, Unit)]
        if func in (torch.mul, torch.Tensor.mul):
            with torch._C.DisableTorchFunctionSubclass():
                product = func(*args, **kwargs)
            return Unit(product, "".join(sorted("".join(units))))
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, Unit) and not hasattr(result, "unit"):
            result.unit = units[0]
        return result


class Cosine(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        SEEN.append(("mode", func.__name__))
        if func is torch.sin:
            return torch.cos(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.cos else result


def plain():
    return torch.linspace(-1, 1, 9).reshape(3, 3)


def of(kind):
    def make():
        return plain().as_subclass(kind)

    return make


def unit():
    return Unit(plain(), "s")


def operators(x):
    return (x + 1).sin(), x.shape, torch.nn.functional.relu(x), x.dtype, len(x)


def two_kinds(x, y):
    return y * x, x @ y, torch.cat([y, x]), y.max(dim=0), torch.where(x > 0, x, y)


def attributes(x):
    return x.shifted(2), x.squared, x.unit, x.LABEL, isinstance(x, Unit), type(x) is Unit, x / 2


def made_inside(x):
    again = Unit.of(x * 2) * 3
    return again, again.unit, x.as_subclass(Inheriting), torch.Tensor.as_subclass(x.sin(), Logged)


def switched_off(x):
    with torch._C.DisableTorchFunctionSubclass():
        y = x + 1
    return y, x + 1


def modes(x):
    with Cosine(), Doubling(3):
        y = torch.sin(x) + torch.ones(3)
    return y, torch.sin(x)


def written(x):
    x.add_(1)
    return x, x * 2


CASES = [
    (operators, [of(Inheriting)]),
    (operators, [of(Logged)]),
    (operators, [of(Disabled)]),
    (operators, [unit]),
    (two_kinds, [of(Inheriting), plain]),
    (two_kinds, [of(Logged), plain]),
    (two_kinds, [of(Logged), of(Child)]),
    (two_kinds, [of(Child), of(Logged)]),
    (two_kinds, [unit, plain]),
    (attributes, [unit]),
    (made_inside, [plain]),
    (switched_off, [of(Logged)]),
    (modes, [plain]),
    (modes, [of(Logged)]),
    (written, [of(Logged)]),
    (written, [of(Inheriting)]),
]


def assert_same(want, got):
    assert type(want) is type(got)
    if not isinstance(want, torch.Tensor):
        assert want == got
        return
    assert vars(want) == vars(got)
    with torch._C.DisableTorchFunctionSubclass():
        assert torch.equal(want, got)
        assert want.requires_grad == got.requires_grad


def run(function, makers):
    SEEN.clear()
    args = [make() for make in makers]
    result = function(*args)
    return [*tree_leaves(result), *args], list(SEEN)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_captured_in_one_graph_and_equal_to_eager(case):
    function, makers = case
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True)(function)
    for _ in range(2):
        want, order = run(function, makers)
        got, seen = run(compiled, makers)
        for pair in zip(want, got, strict=True):
            assert_same(*pair)
        assert seen == order  # what an override does besides is done in every call
    assert counter.frame_count == 1


@pytest.mark.parametrize("kind", [Inheriting, Logged])
def test_gradients_flow_through_the_class(kind):
    def loss(x):
        return (x.sin() * x).sum()

    gradients = []
    for one in (loss, dynamo.optimize("eager", fullgraph=True)(loss)):
        x = plain().requires_grad_().as_subclass(kind).detach().requires_grad_()
        result = one(x)
        assert type(result) is kind
        result.backward()
        gradients.append(x.grad)
    assert_same(*gradients)


def test_another_class_is_another_entry():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(lambda x: x * 2)
    for kind in (Inheriting, Logged, torch.Tensor, Inheriting):
        assert type(compiled(plain().as_subclass(kind))) is kind
    assert counter.frame_count == 3


def test_another_override_is_another_entry(monkeypatch):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(lambda x: x * 2)
    compiled(of(Logged)())
    monkeypatch.setattr(
        Logged,
        "__torch_function__",
        classmethod(lambda cls, func, types, args=(), kwargs=None: torch.zeros(())),
    )
    assert type(compiled(of(Logged)())) is torch.Tensor
    assert counter.frame_count == 2


def test_an_attribute_of_a_tensor_is_guarded():
    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(lambda x: x.shifted(2))
    for name, frames in (("s", 1), ("ss", 2), ("s", 2)):
        x = Unit(plain(), name)
        assert_same(compiled(x), x.shifted(2))
        assert counter.frame_count == frames


def test_all_decline():
    def function(x):
        return x + 1

    for one in (function, dynamo.optimize("eager")(function)):
        with pytest.raises(TypeError, match="unsupported operand"):
            one(of(Declining)())


def test_modes_around_the_call_are_taken_in():
    counter = CompileCounter()

    def function(x):
        return torch.sin(x) * 2

    compiled = dynamo.optimize(counter, fullgraph=True)(function)
    mode = Cosine()
    for _ in range(2):
        results = []
        for one in (function, compiled):
            SEEN.clear()
            with mode:
                results.append((one(plain()), list(SEEN)))
        assert torch.equal(results[0][0], results[1][0])
        assert results[0][1] == results[1][1]
    assert torch.equal(compiled(plain()), function(plain()))
    assert counter.frame_count == 2


def test_a_break_inside_a_block_keeps_its_meaning():
    def function(x, log):
        with Cosine(), torch._C.DisableTorchFunctionSubclass():
            y = torch.sin(x)
            log.append(float(y.sum()))
            z = torch.sin(y)
        return z, torch.sin(x)

    results = []
    for one in (function, dynamo.optimize("eager")(function)):
        log = []
        results.append([*one(of(Logged)(), log), torch.tensor(log)])
    for pair in zip(*results, strict=True):
        assert_same(*pair)
