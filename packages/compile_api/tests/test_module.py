"""A compiled module still is the module: its class, state, hooks, copies and pickles."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import compile_api


class Net(nn.Module):
    """Two layers; what it doubles is a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x, *, bias: float = 0.0):
        return self.second(torch.relu(self.first(x))) * self.scale + bias

    def double(self, x):
        return self(x) * 2


@pytest.fixture
def pair():
    torch.manual_seed(0)
    net = Net()
    return net, compile_api.compile(net, backend="eager")


X = torch.linspace(-1, 1, 6).reshape(2, 3)


def test_it_computes_what_eager_computes(pair):
    net, compiled = pair
    torch.testing.assert_close(compiled(X), net(X))
    torch.testing.assert_close(compiled(X, bias=1.0), net(X, bias=1.0))


def test_class_attributes_and_methods_are_kept(pair):
    net, compiled = pair
    assert isinstance(compiled, Net)
    assert type(compiled).__name__ == "Net"
    assert repr(compiled) == repr(net)
    assert compiled.first is net.first
    torch.testing.assert_close(compiled.double(X), net.double(X))
    assert inspect.signature(compiled.forward) == inspect.signature(net.forward)
    assert inspect.signature(type(compiled).forward) == inspect.signature(Net.forward)


def test_state_dict_has_no_prefix_and_loads_both_ways(pair):
    net, compiled = pair
    assert list(compiled.state_dict()) == list(net.state_dict())
    other = Net()
    compiled.load_state_dict(other.state_dict())
    torch.testing.assert_close(net(X), other(X))
    torch.testing.assert_close(compiled(X), other(X))
    assert [name for name, _ in compiled.named_parameters()] == [
        name for name, _ in net.named_parameters()
    ]


def test_mode_and_dtype_are_shared(pair):
    net, compiled = pair
    compiled.eval()
    assert not net.training
    assert not net.first.training
    net.train()
    assert compiled.training
    compiled.to(torch.float64)
    assert net.first.weight.dtype == torch.float64
    assert compiled(X.double()).dtype == torch.float64


def test_attributes_are_shared(pair):
    net, compiled = pair
    compiled.note = "here"
    assert net.note == "here"
    net.scale = torch.tensor(3.0)
    torch.testing.assert_close(compiled(X), net(X))
    with pytest.raises(AttributeError, match="nothing"):
        _ = compiled.nothing


def test_hooks_run_as_in_eager(pair):
    net, compiled = pair
    seen = []
    handles = [
        compiled.register_forward_pre_hook(
            lambda _m, args: (seen.append("pre"), (args[0] + 1,))[1]
        ),
        net.register_forward_hook(lambda _m, _a, out: (seen.append("post"), out * 2)[1]),
        net.register_full_backward_hook(lambda *_: seen.append("backward")),
    ]
    x = X.clone().requires_grad_()
    expected = net(x)
    assert seen == ["pre", "post"]
    actual = compiled(x)
    assert seen == ["pre", "post"] * 2
    torch.testing.assert_close(actual, expected)
    actual.sum().backward()
    assert seen[-1] == "backward"
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(compiled(X), net(X))
    assert len(seen) == 5


def test_a_global_hook_runs(pair):
    _net, compiled = pair
    seen = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, *_: seen.append(type(m).__name__)
    )
    compiled(X)
    handle.remove()
    assert "Net" in seen


def test_a_forward_assigned_to_the_instance_is_used(pair):
    net, compiled = pair
    compiled(X)
    plain = net.forward
    net.forward = lambda x: plain(x) + 5
    torch.testing.assert_close(compiled(X), net(X))
    del compiled.forward
    torch.testing.assert_close(compiled(X), plain(X))
    with pytest.raises(AttributeError):
        del compiled.forward


def test_deepcopy_is_compiled_and_apart(pair):
    net, compiled = pair
    twin = copy.deepcopy(compiled)
    assert isinstance(twin, Net)
    torch.testing.assert_close(twin(X), compiled(X))
    with torch.no_grad():
        twin.first.weight.zero_()
    assert net.first.weight.abs().sum() > 0
    count = compile_api.graph_count()
    twin(X + 1)
    assert compile_api.graph_count() >= count  # the copy compiles by itself


def test_pickle_brings_module_and_arguments(pair):
    _net, compiled = pair
    back = pickle.loads(pickle.dumps(compiled))
    assert isinstance(back, Net)
    assert back._compilation.arguments == compiled._compilation.arguments
    torch.testing.assert_close(back(X), compiled(X))
    stream = io.BytesIO()
    torch.save(compiled, stream)
    stream.seek(0)
    loaded = torch.load(stream, weights_only=False)
    torch.testing.assert_close(loaded(X), compiled(X))


def test_compiling_twice_compiles_the_original(pair):
    net, compiled = pair
    again = compile_api.compile(compiled, backend="eager")
    assert again._orig_mod is net
    torch.testing.assert_close(again(X), net(X))


def test_as_a_part_of_another_module(pair):
    net, compiled = pair
    outer = nn.Sequential(compiled, nn.Linear(2, 2))
    assert next(iter(outer.state_dict())) == "0.scale"
    torch.testing.assert_close(outer(X), outer[1](net(X)))


class Registered(nn.Module):
    """A base that keeps count of its subclasses, as plug-in registries do."""

    kinds: list = []

    def __init_subclass__(cls, *, name: str, **_arguments: object) -> None:
        Registered.kinds.append(name)


class Leaf(Registered, name="leaf"):
    """One kind."""

    def forward(self, x):
        return x * 2


def test_the_subclass_made_here_is_not_registered():
    compiled = compile_api.compile(Leaf(), backend="eager")
    torch.testing.assert_close(compiled(X), X * 2)
    assert Registered.kinds == ["leaf"]


class Checked(nn.Module):
    """A module with a `__call__` of its own, as some models have."""

    def __call__(self, x):
        return super().__call__(x.abs())

    def forward(self, x):
        return x.sqrt()


def test_a_call_of_its_own_is_kept():
    net = Checked()
    compiled = compile_api.compile(net, backend="eager")
    torch.testing.assert_close(compiled(X), X.abs().sqrt())
