"""What compiled functions do under each stance."""

import pytest
import torch

import dynamo


@pytest.fixture
def counted():
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    yield dynamo.optimize(backend, dynamic=False)(lambda x: x * 2 + 1), graphs
    dynamo.set_stance("default")


SMALL, LARGE = torch.ones(3), torch.ones(4)


def test_force_eager_uses_nothing_compiled_and_gives_it_back(counted):
    function, graphs = counted
    function(SMALL)
    with dynamo.set_stance("force_eager"):
        torch.testing.assert_close(function(SMALL), SMALL * 3)
        torch.testing.assert_close(function(LARGE), LARGE * 3)
    function(SMALL)
    assert len(graphs) == 1
    function(LARGE)
    assert len(graphs) == 2


def test_eager_on_recompile_keeps_what_fits(counted):
    function, graphs = counted
    with dynamo.set_stance("eager_on_recompile"):
        function(SMALL)
        torch.testing.assert_close(function(LARGE), LARGE * 3)
        function(SMALL)
    assert len(graphs) == 1


def test_fail_on_recompile_names_function_and_guard(counted):
    function, _graphs = counted
    function(SMALL)
    with dynamo.set_stance("fail_on_recompile"):
        function(SMALL)
        with pytest.raises(dynamo.RecompileRefused, match="would be compiled again"):
            function(LARGE)
    torch.testing.assert_close(function(LARGE), LARGE * 3)


def test_a_name_that_is_none_gives_the_nearest():
    with pytest.raises(dynamo.UsageError, match="did you mean 'force_eager'"):
        dynamo.set_stance("force_eagr")
