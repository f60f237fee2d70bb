"""What a call with several results saves: changed, freed or refused, as in eager, whatever keeps it."""

import pytest
import torch

import aot_autograd

pytestmark = pytest.mark.usefixtures("form")


def compiled(function):
    return aot_autograd.aot_function(
        function, lambda graph, _: aot_autograd.make_boxed_func(graph.forward)
    )


def two(a, b):
    return a * b, (a * b).sum()


def error_of(called, change, *, leaf=True):
    a, b = [torch.rand(3, requires_grad=True) for _ in range(2)]
    second = b if leaf else b * 2
    first, _ = called(a, second)
    with torch.no_grad():
        change(second)
    with pytest.raises(RuntimeError) as error:
        first.sum().backward()
    return str(error.value)


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.filterwarnings("ignore:Error detected in")
def test_a_changed_tensor_is_autograds_error(leaf):
    def change(tensor):
        tensor.add_(1)

    assert error_of(compiled(two), change, leaf=leaf) == error_of(two, change, leaf=leaf)
    with torch.autograd.set_detect_anomaly(True):
        assert error_of(compiled(two), change, leaf=leaf) == error_of(two, change, leaf=leaf)


def read_by_both(a, b):
    return a * b, a * b * 2


def read_by_one(a, b):
    return a * b, a.sin()


@pytest.mark.parametrize("function", [read_by_both, read_by_one])
def test_a_tensor_of_inference_mode_is_not_saved(function):
    with torch.inference_mode():
        other = torch.rand(3)

    def error(called):
        with pytest.raises(RuntimeError, match="Inference tensors") as found:
            called(torch.rand(3, requires_grad=True), other)
        return str(found.value)

    assert error(compiled(function)) == error(function)


@pytest.mark.parametrize("hooks", [False, True])
def test_the_one_that_was_not_changed_can_be_differentiated(hooks):
    def function(a, b, c):
        return a * b, a * c

    def run(called):
        a, b, c = [torch.full((3,), 2.0 + n, requires_grad=True) for n in range(3)]
        if hooks:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                first, second = called(a, b, c)
        else:
            first, second = called(a, b, c)
        with torch.no_grad():
            (c if not hooks else first).add_(1)
        first.sum().backward()
        return [a.grad, b.grad, second.detach()]

    torch.testing.assert_close(run(compiled(function)), run(function))


def test_a_hook_of_a_result_that_was_written_is_of_what_it_is_now():
    """The node of the result before is not told: the hook came later."""

    def function(x):
        logits = x + 1
        return logits, (logits * 2).sum()

    def run(called):
        told = []
        logits, loss = called(torch.ones(3, requires_grad=True))
        logits.mul_(3)
        logits.register_hook(told.append)
        (logits.sum() + loss).backward()
        return told

    torch.testing.assert_close(run(compiled(function)), run(function))
