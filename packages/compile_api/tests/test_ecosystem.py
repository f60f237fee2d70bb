"""What programs around a model ask of a compiled one; the libraries themselves run in examples/."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import compile_api
from compile_api.torch_backend import compile_graph


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)

    def forward(self, x, *, recompute=False):
        run = checkpoint if recompute else lambda f, x, **_: f(x)
        return self.second(run(lambda x: self.first(x).relu(), x, use_reentrant=False))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def test_a_compiled_module_in_a_module_that_is_compiled(net):
    whole = nn.Sequential(compile_api.compile(net), nn.GELU())
    compiled = compile_api.compile(whole, fullgraph=True)
    torch.testing.assert_close(compiled(X), nn.functional.gelu(net(X)))
    compiled(X).sum().backward()
    assert net.first.weight.grad is not None
    assert compile_api.graph_count() >= 1


def test_tools_find_the_original_and_keys_without_a_prefix(net):
    compiled = compile_api.compile(net)
    assert compiled._orig_mod is net
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert isinstance(compiled, Net)
    assert getattr(compiled, "module", compiled) is compiled  # how wrappers are told apart


def test_accelerate_takes_it_for_the_module_itself(net):
    other = pytest.importorskip("accelerate.utils.other")
    compiled = compile_api.compile(net)
    assert not other.is_compiled_module(compiled)
    assert other.extract_model_from_parallel(compiled, keep_torch_compile=False) is compiled


def test_torch_compiles_a_module_in_place_with_our_backend(net):
    """`model.compile(backend="compile_api")`; the name is the entry point of an installed compile-api."""
    name = "compile_api"
    if name not in torch._dynamo.list_backends(exclude_tags=()):
        name = "compile_api_under_test"
        if name not in torch._dynamo.list_backends(exclude_tags=()):
            torch._dynamo.register_backend(compile_graph, name=name)
    wanted = net(X)
    before = compile_api.graph_count()
    net.compile(backend=name)
    torch.testing.assert_close(net(X), wanted)
    net(X).sum().backward()
    assert net.first.weight.grad is not None
    assert compile_api.graph_count() == before + 1
    torch._dynamo.reset()


def test_torchs_own_backends_below_our_capture(net):
    for name in ("eager", "aot_eager"):
        backend = torch._dynamo.lookup_backend(name)
        compiled = compile_api.compile(net, backend=backend)
        for rows in (3, 2):  # static shapes, for the backend says nothing of symbolic ones
            x = torch.randn(rows, 4, requires_grad=True)
            torch.testing.assert_close(compiled(x), net(x))
            ours, wanted = (torch.autograd.grad(f(x).sum(), x)[0] for f in (compiled, net))
            torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("stance", ["default", "force_eager", "eager_on_recompile"])
def test_a_stance_changes_no_value(net, stance):
    compiled = compile_api.compile(net, dynamic=False)
    compiled(X)
    with compile_api.set_stance(stance):
        before = compile_api.graph_count()
        torch.testing.assert_close(compiled(X[:2]), net(X[:2]))
        assert compile_api.graph_count() - before == (stance == "default")


def test_a_stance_forbids_a_recompile(net):
    compiled = compile_api.compile(net, dynamic=False)
    compiled(X)
    with compile_api.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(X), net(X))
        with pytest.raises(Exception, match="fail_on_recompile"):
            compiled(X[:2])


@pytest.mark.parametrize("recompute", [False, True])
def test_a_loop_with_scaling_accumulation_clipping_and_checkpointing(net, recompute):
    def train(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu")
        data = TensorDataset(torch.linspace(-2, 2, 64).reshape(16, 4), torch.arange(16) % 2)
        for number, (x, labels) in enumerate(DataLoader(data, batch_size=4)):
            loss = nn.functional.cross_entropy(model(x, recompute=recompute), labels)
            scaler.scale(loss / 2).backward()
            if number % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        return [parameter.detach().clone() for parameter in model.parameters()]

    twin = copy.deepcopy(net)
    torch.testing.assert_close(train(compile_api.compile(net)), train(twin))
