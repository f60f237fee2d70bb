"""What optimizers need of a capture: gradients, dicts keyed by tensors, numbers in tensors, lists."""

import collections

import torch

import dynamo
from dynamo.testing import CompileCounter


def captured(function, counter=None):
    return dynamo.optimize(counter or CompileCounter(), fullgraph=True)(function)


def test_gradients_are_read_and_cleared():
    def update(weight):
        with torch.no_grad():
            weight.sub_(weight.grad * 0.5)
        weight.grad = None
        return weight.grad

    weight = torch.ones(3, requires_grad=True)
    counter = CompileCounter()
    run = captured(update, counter)
    for expected in (0.5, 0.0):
        weight.grad = torch.ones(3)
        assert run(weight) is None
        assert weight.grad is None
        assert torch.equal(weight.detach(), torch.full((3,), expected))
    assert counter.frame_count == 1


def test_a_gradient_that_goes_away_is_noticed():
    run = captured(lambda weight: weight * 2 if weight.grad is None else weight.grad * 3)
    weight = torch.ones(2)
    assert torch.equal(run(weight), torch.full((2,), 2.0))
    weight.grad = torch.ones(2)
    assert torch.equal(run(weight), torch.full((2,), 3.0))


def test_dicts_are_keyed_by_tensors():
    state = collections.defaultdict(dict)

    def step(weights):
        for weight in weights:
            own = state[weight]
            if "count" not in own:
                own["count"] = torch.zeros(())
            own["count"] += 1

    weights = [torch.ones(2), torch.ones(2)]
    run = captured(step)
    for number in (1, 2, 3):
        run(weights)
        assert [float(state[weight]["count"]) for weight in weights] == [number, number]
    assert [id(key) for key in state] == [id(weight) for weight in weights]
    other = torch.zeros(2)
    run([other])
    assert float(state[other]["count"]) == 1


def test_a_scalar_may_be_a_tensor():
    def step(target, first, second, count):
        target.addcdiv_(first, second, value=-(1 - 0.9**count))
        return torch.addcmul(target, first, second, value=count)

    args = [torch.rand(3) + 1 for _ in range(3)]
    ours = [a.clone() for a in args]
    count = torch.tensor(3.0)
    want = step(*args, count)
    torch.testing.assert_close(captured(step)(*ours, count), want)
    torch.testing.assert_close(ours[0], args[0])


def test_operators_on_lists_write():
    def step(tensors):
        torch._foreach_mul_(tensors, 2.0)

    tensors = [torch.ones(2), torch.ones(3)]
    captured(step)(tensors)
    assert [float(t.sum()) for t in tensors] == [4.0, 6.0]


def test_fused_operators_that_return_nothing_write():
    def step(weights, grads, first, second, counts):
        torch._fused_adamw_(
            weights, grads, first, second, [], counts,
            amsgrad=False, lr=0.1, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8,
            maximize=False,
        )  # fmt: skip

    def inputs():
        return [[torch.full((3,), x)] for x in (1.0, 0.5, 0.0, 0.0)] + [[torch.tensor(1.0)]]

    want, got = inputs(), inputs()
    step(*want)
    captured(step)(*got)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_sources_that_spell_alike_stay_apart():
    class Pair:
        pass

    pair = Pair()
    pair.a = Pair()
    pair.a.b, pair.a_b = torch.ones(2), torch.zeros(2)
    assert torch.equal(captured(lambda p: p.a.b - p.a_b)(pair), torch.ones(2))


def test_profiler_ranges_are_no_break():
    def function(x):
        with torch.autograd.profiler.record_function("range"):
            return x + 1

    assert torch.equal(captured(function)(torch.ones(2)), torch.full((2,), 2.0))


def test_a_power_is_printed_as_it_is_called():
    seen = []

    def backend(module, _inputs):
        seen.append(module.code)
        return module.forward

    assert torch.equal(captured(lambda x: x**2, backend)(torch.ones(2)), torch.ones(2))
    assert "torch._tensor" not in seen[0]
