"""Below torch's own capture: our stages as a backend of torch.compile."""

import pytest
import torch

import compile_api
from compile_api.torch_backend import compile_graph


@pytest.fixture(autouse=True)
def fresh_torch():
    yield
    torch._dynamo.reset()


def function(x, y):
    return torch.relu(x @ y).sum(dim=-1) + 1


def test_values_and_gradients():
    compiled = torch.compile(function, backend=compile_graph)
    x = torch.randn(4, 5, requires_grad=True)
    y = torch.randn(5, 3)
    torch.testing.assert_close(compiled(x, y), function(x, y))
    actual = torch.autograd.grad(compiled(x, y).sum(), x)[0]
    torch.testing.assert_close(actual, torch.autograd.grad(function(x, y).sum(), x)[0])


def test_sizes_that_change_under_torchs_dynamic_shapes():
    compiled = torch.compile(function, backend=compile_graph, dynamic=True)
    for size in (3, 4, 9):
        x, y = torch.randn(size, 5), torch.randn(5, 3)
        torch.testing.assert_close(compiled(x, y), function(x, y))


def _counted(graphs):
    """Our backend, counting how often torch captures and how often our stages compile."""

    def backend(graph, inputs):
        compiled = compile_graph(graph, inputs)
        graphs.append(type(compiled).__name__)
        return compiled

    return backend


def test_one_form_for_all_sizes():
    graphs = []
    compiled = torch.compile(function, backend=_counted(graphs), dynamic=True)
    compile_api.reset()
    for size in (3, 4, 9, 6):  # none equals another size: torch takes equal ones for the same
        x, y = torch.randn(size, 5), torch.randn(5, 7)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert graphs == ["_Symbolic"]
    assert compile_api.graph_count() == 1


def test_a_size_that_changes_is_compiled_twice_and_gradients_flow():
    graphs = []
    net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    compiled = torch.compile(net, backend=_counted(graphs))
    for size in (3, 4, 9, 6):
        x = torch.randn(size, 5, requires_grad=True)
        weight = net[0].weight
        wanted = torch.autograd.grad(net(x).square().sum(), (x, weight))
        actual = torch.autograd.grad(compiled(x).square().sum(), (x, weight))
        torch.testing.assert_close(actual, wanted)
    assert graphs == ["_PerShape", "_Symbolic"]


def test_what_is_assumed_of_a_size_is_guarded_by_torch():
    def halves(x, y):
        if x.shape[0] % 2 == 0:
            return x.view(2, -1).sum(0) * y.expand(x.shape[0] // 2)
        return torch.cat([x, y])

    graphs = []
    compiled = torch.compile(halves, backend=_counted(graphs), dynamic=True)
    for size in (6, 8, 5, 10, 7):
        x, y = torch.randn(size), torch.randn(1)
        torch.testing.assert_close(compiled(x, y), halves(x, y))
    assert graphs == ["_Symbolic", "_Symbolic"]


def test_sizes_that_must_agree_inside_of_an_operator():
    def mixed(x, y):
        return x.reshape(-1, 4) @ y

    graphs = []
    compiled = torch.compile(mixed, backend=_counted(graphs), dynamic=True)
    for rows, columns in ((2, 6), (4, 5), (6, 8)):
        x, y = torch.randn(rows, 2, 6), torch.randn(4, columns)
        torch.testing.assert_close(compiled(x, y), mixed(x, y))
    with pytest.raises(Exception, match="shape"):
        compiled(torch.randn(3, 7, 3), torch.randn(4, 2))
    assert set(graphs) == {"_Symbolic"}


def test_a_float_that_varies():
    def scaled(x, factor):
        return x * factor + x.shape[0]

    compiled = torch.compile(scaled, backend=_counted([]))
    for size, factor in ((3, 0.5), (4, 1.5), (5, 2.5), (6, -1.0)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, factor), scaled(x, factor))


def test_inputs_that_share_memory_only_in_some_calls():
    def shift(x, y):
        x.add_(1.0)
        return x * y

    compiled = torch.compile(shift, backend=_counted([]), dynamic=True)
    for shared in (False, True, False):
        first, second = torch.arange(8.0), torch.arange(8.0)
        other, twin = (first[2:6], second[2:6]) if shared else (torch.ones(4), torch.ones(4))
        torch.testing.assert_close(compiled(first[:4], other), shift(second[:4], twin))
        torch.testing.assert_close(first, second)


def test_a_module_with_parameters():
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh())
    compiled = torch.compile(net, backend=compile_graph)
    x = torch.randn(2, 5)
    torch.testing.assert_close(compiled(x), net(x))
    compiled(x).sum().backward()
    assert net[0].weight.grad is not None


def test_the_installed_entry_point_is_found():
    import importlib.metadata

    points = importlib.metadata.entry_points(group="torch_dynamo_backends")
    if "compile_api" not in points.names:
        pytest.skip("compile-api is imported from a source tree, not installed")
    assert points["compile_api"].load() is compile_graph
