"""Numbers drawn from generators of the program: eager's values and states, in one graph where that is possible."""

# ruff: noqa: NPY002 - programs draw from numpy's global generator
import random

import numpy as np
import pytest
import torch

import dynamo
from dynamo.emit import drawn
from dynamo.testing import CompileCounter

STRICT = dynamo.DynamoOptions(strict=True)
OWN, NUMPYS = random.Random(5), np.random.default_rng(5)
X = torch.arange(4.0)


def states():
    return (
        random.getstate(),
        repr(np.random.get_state(legacy=False)),
        OWN.getstate(),
        repr(NUMPYS.bit_generator.state),
    )


def put(seed):
    random.seed(seed)
    np.random.seed(seed)
    OWN.seed(seed)
    NUMPYS.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def flip(x, p=0.5, *, by=3):
    y = x.sin()
    if random.random() < p:
        return y + by
    return y * 2


def numbers(x):
    return x * random.random() + random.randint(0, 5) - random.uniform(0.5, 1.5)


def loop(x):
    for _ in range(20):
        x = x + random.gauss(0.0, 1.0)
    return x


def several(x, *rest, scale, **named):
    y = x * OWN.random() + NUMPYS.random() * scale
    return y + rest[0] * np.random.uniform(1, 2) + named["bias"] * np.random.randint(0, 3)


def array(x):
    return x + torch.from_numpy(np.random.randn(4)) * torch.tensor(np.random.rand(4))


def chosen(x):
    return x * random.choice([1, 2, 3])


def closure():
    shift = 2

    def inner(x):
        def scaled():
            return x * random.random() + shift

        return scaled()

    return inner


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(4, 4)
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        if self.training and random.random() < 0.5:
            return self.line(x)
        return self.line(x).relu()


def nothing_else(x, names):
    names["last"] = random.random()
    return x + len(names)


WHOLE = [
    (flip, (X,), {}, 2),
    (numbers, (X,), {}, 1),
    (loop, (X,), {}, 1),
    (several, (X, X + 1), {"scale": 2.0, "bias": X}, 1),
    (array, (X,), {}, 1),
    (chosen, (X,), {}, 3),
    (closure(), (X,), {}, 1),
    (Net(), (X,), {}, 2),
    (nothing_else, (X, {"a": 1, "last": 0.0}), {}, 1),
]


def shuffled(x):
    order = list(range(4))
    random.shuffle(order)
    return x[order] * random.random()


def printed(x):
    x = x * random.random()
    print(end="")
    return x + random.random()


def many_flips(x):
    for _ in range(6):
        x = x + 1 if random.random() < 0.5 else x * 2
    return x


def seeded(x):
    x = x + random.random()
    random.seed(3)
    return x * random.random()


@torch.library.custom_op("draws::opaque", mutates_args=())
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x + random.random()


@opaque.register_fake
def _(x):
    return torch.empty_like(x)


def behind_opaque(x):
    return opaque(x) * random.random()


def in_checkpoint(x):
    weight = torch.ones(4, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(
        lambda v: v * weight * random.random(), x, use_reentrant=False
    )
    (gradient,) = torch.autograd.grad(y.sum(), weight)
    return y.detach() + gradient


BROKEN = [shuffled, printed, many_flips, seeded, behind_opaque, in_checkpoint]


def as_eager(function, compiled, args, kwargs):
    for seed in range(12):
        put(seed)
        expected = function(*args, **kwargs)
        after = states()
        put(seed)
        torch.testing.assert_close(compiled(*args, **kwargs), expected, rtol=0, atol=0)
        assert states() == after


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "versions"), WHOLE, ids=lambda v: getattr(v, "__name__", None)
)
def test_one_graph_draws_as_eager_does(function, args, kwargs, versions):
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(function)
    as_eager(function, compiled, args, kwargs)
    assert counter.frame_count == versions


@pytest.mark.parametrize("function", BROKEN)
def test_where_the_draw_stays_in_place(function):
    compiled = dynamo.optimize(CompileCounter(), options=STRICT)(function)
    as_eager(function, compiled, (X,), {})


def test_a_backend_without_symbols_draws_in_place():
    def plain(gm, inputs):
        return gm.forward

    as_eager(numbers, dynamo.optimize(plain, options=STRICT)(numbers), (X,), {})


def test_each_coin_halves_no_graph():
    random.seed(1)
    report = dynamo.explain(flip)(X)
    assert (report.graph_count, report.breaks) == (1, ())


def test_a_call_that_raises_has_drawn_as_often():
    def refuses(x):
        scale = random.random()
        if x.shape[0] == 4:
            raise ValueError("four")
        return x * scale * random.random()

    compiled = dynamo.optimize("eager", options=STRICT)(refuses)
    for function in (refuses, compiled, compiled):
        random.seed(7)
        with pytest.raises(ValueError, match="four"):
            function(X)
        after = random.getstate()
        random.seed(7)
        random.random()
        assert random.getstate() == after


def test_an_eager_stance_draws_once():
    compiled = dynamo.optimize("eager", options=STRICT)(flip)
    compiled(X)
    with dynamo.set_stance("force_eager"):
        as_eager(flip, compiled, (X,), {})


def test_choices_among_many_stay_in_place():
    """Each element would be a version of the call."""

    def pick(x):
        return x * random.choice(range(1, 50))

    counter = CompileCounter()
    as_eager(pick, dynamo.optimize(counter, options=STRICT)(pick), (X,), {})
    assert counter.frame_count <= 9


def test_versions_by_number_are_given_up():
    """A number that each version takes for a constant is drawn in place after a few of them."""

    def pick(x):
        return x[random.randint(0, 30) % 4] * len(range(random.randint(1, 40)))

    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(pick)
    as_eager(pick, compiled, (X,), {})
    as_eager(pick, compiled, (X,), {})
    assert counter.frame_count < 24


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_state_is_put_back_however_it_was_kept(monkeypatch, in_memory):
    if in_memory:
        assert drawn._lies_in_memory()
    else:
        monkeypatch.setattr(drawn, "_lies_in_memory", lambda: False)
    generator = random.Random(3)
    for draws in (0, 1, 311, 700):
        for _ in range(draws):
            generator.random()
        generator.gauss(0, 1)
        before = generator.getstate()
        kept = drawn._Before(((generator, drawn._state(generator)),))
        generator.gauss(0, 1)
        generator.random()
        kept.put_back()
        assert generator.getstate() == before
