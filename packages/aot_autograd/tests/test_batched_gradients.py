"""Backwards of several gradients at once through a compiled call: values, dtypes and shapes as in eager."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import aot_autograd
from aot_autograd import batched

sys.path.append(str(Path(__file__).parent))
from second_order_programs import FUNCTIONS, drawn

pytestmark = [
    pytest.mark.usefixtures("form", "pass_or_passes"),
    # Of eager's, whose batching rules of the older kind are few.
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
    pytest.mark.filterwarnings("ignore:Please use `torch.vmap`"),
]

MANY = 3


@pytest.fixture(params=["in one pass", "one by one"])
def pass_or_passes(request, monkeypatch):
    """Both ways in which many are computed."""
    monkeypatch.setattr(batched, "_FEW", 1 if request.param == "in one pass" else 1000)
    return request.param


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def changes_its_input(x):
    y = x * 2
    y.add_(1)
    return y.exp_()


def changes_an_argument(x, w):
    x.mul_(w)
    return x.sin()


def changes_a_view(x, w):
    x[0].mul_(w[0])
    return x * w


def batch_statistics(x, mean, variance, scale):
    return functional.batch_norm(x, mean, variance, scale, training=True)


def looks_up(weight):
    return functional.embedding(torch.tensor([[0, 2], [1, 2]]), weight).tanh()


def writes_where_indices_say(x, values):
    return x.index_put((torch.tensor([0, 2, 0]),), values, accumulate=True) * x.sum()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def attends(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v)


# name: (function, what makes its inputs). Inputs that a function changes are not leaves.
PROGRAMS = {
    "pointwise": (lambda x: (x.sin() * x).exp(), lambda: [leaf(4)]),
    "a number": (lambda x: (x * x).sum(), lambda: [leaf(2, 3)]),
    "an input without gradient": (lambda x, y: x * y, lambda: [leaf(3), torch.randn(3)]),
    "broadcast": (lambda x, y: x * y.exp(), lambda: [leaf(2, 3), leaf(3)]),
    "product": (lambda x, w, b: functional.linear(x, w, b).relu(), lambda: [leaf(2, 4), leaf(3, 4), leaf(3)]),
    "double": (lambda x: x.tanh() / (1 + x * x), lambda: [leaf(3, dtype=torch.float64)]),
    "half": (lambda x: (x * x).tanh(), lambda: [leaf(4, dtype=torch.bfloat16)]),
    "converted": (lambda x: x.double().exp(), lambda: [leaf(4)]),
    "complex": (lambda x: x * x.conj() + x.exp(), lambda: [leaf(3, dtype=torch.complex64)]),
    "real part": (lambda x: (x * x).real, lambda: [leaf(3, dtype=torch.complex64)]),
    "nothing is saved": (lambda x, y: x + y.t() - 1, lambda: [leaf(3, 3), leaf(3, 3)]),
    "transposed": (lambda x: (x.sin() @ x).t(), lambda: [leaf(3, 3)]),
    "a view": (lambda x: x.view(6)[1:4], lambda: [leaf(2, 3) * 1]),
    "channels last": (lambda x: x.sin().contiguous(memory_format=torch.channels_last), lambda: [leaf(2, 3, 2, 2)]),
    "softmax": (lambda x: x.softmax(-1), lambda: [leaf(2, 4)]),
    "layer norm": (lambda x, w: functional.layer_norm(x, (4,), w), lambda: [leaf(2, 4), leaf(4)]),
    "convolution": (functional.conv2d, lambda: [leaf(1, 2, 5, 5), leaf(3, 2, 3, 3), leaf(3)]),
    "pooling": (lambda x: functional.max_pool2d(x, 2), lambda: [leaf(1, 2, 4, 4)]),
    "attention": (attends, lambda: [leaf(1, 2, 3, 4), leaf(1, 2, 3, 4), leaf(1, 2, 3, 4)]),
    "looks up": (looks_up, lambda: [leaf(4, 3)]),
    "indices": (writes_where_indices_say, lambda: [leaf(4), leaf(3)]),
    "sorted": (lambda x: x.sort().values.cumsum(0), lambda: [leaf(5)]),
    "custom": (lambda x: Doubled.apply(x).sin(), lambda: [leaf(3)]),
    "changed inside": (changes_its_input, lambda: [leaf(3)]),
    "changed": (changes_an_argument, lambda: [leaf(3) * 1, leaf(3)]),
    "changed in part": (changes_a_view, lambda: [leaf(2, 3) * 1, leaf(2, 3)]),
    "buffers": (batch_statistics, lambda: [leaf(4, 3), torch.zeros(3), torch.ones(3), leaf(3)]),
    "dropout": (lambda x: functional.dropout(x.exp(), 0.5), lambda: [leaf(16)]),
    "two results": (lambda x, y: ((x * y).exp(), (x * y).sin()), lambda: [leaf(3), leaf(3)]),
    "results of unlike shapes": (lambda x, w: (x @ w, (x * x).sum()), lambda: [leaf(2, 3), leaf(3, 2)]),
    "results that lead elsewhere": (lambda x, y: (x.sin(), y * y, x * y), lambda: [leaf(3), leaf(3)]),
    "one result without gradient": (lambda x: (x.exp(), x.detach() + 1), lambda: [leaf(3)]),
}  # fmt: skip
OF_SEVERAL = [name for name in PROGRAMS if "result" in name]


def compiled(function, **options):
    options = aot_autograd.AotOptions(verify=True, fallback_random=True, **options)
    return aot_autograd.aot_function(
        function, lambda graph, _: plain_runner(graph), options=options
    )


def plain_runner(graph):
    """Runs a graph by ATen; as compiled programs do, it refuses what has no memory."""

    def run(args):
        taken = list(args)
        args.clear()
        for one in taken:
            assert not isinstance(one, torch.Tensor) or one.data_ptr() or not one.numel()
        return graph.forward(*taken)

    run.boxed = True
    return run


def called(function, make):
    """The results with a gradient, and the inputs that they are differentiated by."""
    torch.manual_seed(1)
    inputs = make()
    wanted = [one for one in inputs if one.requires_grad]
    given = [one if one.is_leaf else one.clone() for one in inputs]
    torch.manual_seed(2)
    results = function(*given)
    results = results if isinstance(results, tuple) else (results,)
    return [one for one in results if one.requires_grad], wanted


def tangents_of(results, many=MANY):
    torch.manual_seed(3)
    return [torch.randn(many, *one.shape, dtype=one.dtype) for one in results]


def by_option(results, wanted, tangents, **settings):
    return torch.autograd.grad(
        results, wanted, tangents, is_grads_batched=True, allow_unused=True, **settings
    )


def by_map(results, wanted, tangents, **settings):
    def gradients(*tangents):
        found = torch.autograd.grad(results, wanted, tangents, allow_unused=True, **settings)
        present.append([one is not None for one in found])
        return tuple(one for one in found if one is not None)

    present = []
    found = iter(torch.func.vmap(gradients)(*tangents))
    return [next(found) if there else None for there in present[0]]


def by_maps(results, wanted, tangents, **settings):
    """One inside of the other, along the second dimension."""
    present = []

    def inner(*tangents):
        found = by_map(results, wanted, tangents, **settings)
        present.append([one is not None for one in found])
        return tuple(one for one in found if one is not None)

    tangents = [torch.stack([one, one * 2], dim=1) for one in tangents]
    found = iter(torch.func.vmap(inner)(*tangents))
    return [next(found) if there else None for there in present[0]]


WAYS = {"option": by_option, "map": by_map, "maps": by_maps}


def same(ours, eager):
    assert [one is None for one in ours] == [one is None for one in eager]
    for one, other in zip(ours, eager, strict=True):
        if one is not None:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            tolerance = {"rtol": 1e-4, "atol": 1e-4} if one.dtype is torch.float32 else {}
            torch.testing.assert_close(one, other, **tolerance)


def both(name, check):
    """`check(results, wanted)` of the compiled program and of eager: the same."""
    function, make = PROGRAMS[name]
    same(check(*called(compiled(function), make)), check(*called(function, make)))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name, way):
    both(name, lambda results, wanted: WAYS[way](results, wanted, tangents_of(results)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    """A wider choice, in double precision; eager's older transforms have no rules for all of them."""
    function, shapes = FUNCTIONS[name]
    found = []
    for one in (compiled(function), function):
        inputs = [leaf.requires_grad_() for leaf in drawn(*shapes, dtype=torch.float64)]
        results = one(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        found.append(by_map(results, inputs, tangents_of(results)))
    same(*found)


def second_derivatives(way, results, wanted):
    tangents = [one.requires_grad_() for one in tangents_of(results)]
    gradients = way(results, wanted, tangents, create_graph=True)
    real = [
        torch.view_as_real(one) if one.is_complex() else one for one in gradients if one is not None
    ]
    loss = sum((one.float() ** 2).sum() for one in real)
    of = [*wanted, *tangents]
    second = torch.autograd.grad(loss, of, allow_unused=True)
    # To an input that a gradient doesn't depend on eager may have an edge all the same.
    zeros = [torch.zeros_like(one) for one in of]
    return [
        *gradients,
        *[zero if one is None else one for one, zero in zip(second, zeros, strict=True)],
    ]


@pytest.mark.parametrize("way", ["option", "map"])
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "attention"])
def test_second_derivatives(name, way):
    """What eager gives by the option: its map takes the statistics of norms for constants."""
    function, make = PROGRAMS[name]
    eager = second_derivatives(by_option, *called(function, make))
    same(second_derivatives(WAYS[way], *called(compiled(function), make)), eager)


def test_second_derivatives_of_maps():
    both("product", lambda results, wanted: second_derivatives(by_maps, results, wanted))


@pytest.mark.parametrize("way", ["option", "map"])
@pytest.mark.parametrize(
    "name", ["pointwise", "nothing is saved", "two results", "results that lead elsewhere"]
)
def test_what_is_freed(name, way):
    """A retained graph serves again, with many or with one; one that isn't raises as in eager, or doesn't."""

    def check(results, wanted):
        tangents = tangents_of(results)
        found = [
            *WAYS[way](results, wanted, tangents, retain_graph=True),
            *torch.autograd.grad(results, wanted, [one[0] for one in tangents], retain_graph=True),
            *WAYS[way](results, wanted, tangents),
        ]
        for again in (
            lambda: WAYS[way](results, wanted, tangents),
            lambda: torch.autograd.grad(results, wanted, [one[0] for one in tangents]),
        ):
            try:
                found += again()
            except RuntimeError as error:
                found.append(torch.tensor("backward through the graph a second time" in str(error)))
        return found

    both(name, check)


def test_what_was_saved_is_freed():
    """By the backward of many as by that of one."""
    dead = []

    def function(x):
        y = x.exp()
        return y * y.sin()

    for one in (function, compiled(function)):
        x = leaf(3)
        between = x * 2
        result = one(between)
        reference = weakref.ref(between)
        del between
        by_option([result], [x], [torch.eye(3)])
        gc.collect()
        dead.append(reference() is None)
    assert dead == [True, True]


@pytest.mark.parametrize("name", OF_SEVERAL)
@pytest.mark.parametrize("way", ["option", "map"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_absent_gradients(name, way, create_graph):
    def check(results, wanted):
        found = []
        for place, result in enumerate(results):
            tangents = tangents_of(results)[place : place + 1]
            found += WAYS[way](
                [result], wanted, tangents, retain_graph=True, create_graph=create_graph
            )
        return found

    both(name, check)


def test_some_of_the_gradients_are_many():
    def check(results, wanted):
        first, second = tangents_of(results)
        return (
            by_map(results, wanted, [first])
            if len(results) == 1
            else mixed(results, wanted, first, second[0])
        )

    def mixed(results, wanted, first, second):
        def gradients(first):
            return torch.autograd.grad(results, wanted, (first, second))

        return torch.func.vmap(gradients)(first)

    both("two results", check)


def test_maps_along_different_dimensions():
    def check(results, wanted):
        first, second = tangents_of(results)

        def gradients(one, other):
            return torch.autograd.grad(results, wanted, (one, other), retain_graph=True)

        inner = torch.func.vmap(gradients, in_dims=(None, 0), out_dims=1)
        return torch.func.vmap(inner, in_dims=(1, None), out_dims=2)(first.t().contiguous(), second)

    both("two results", check)


def test_the_option_inside_of_a_map():
    def check(results, wanted):
        def gradients(tangents):
            return by_option(results, wanted, [tangents], retain_graph=True)

        return torch.func.vmap(gradients)(torch.randn(2, MANY, 4))

    both_with_seed = [check(*called(one, PROGRAMS["pointwise"][1])) for one in seeded("pointwise")]
    same(*both_with_seed)


def seeded(name):
    function = PROGRAMS[name][0]
    for one in (compiled(function), function):
        yield lambda *args, one=one: (one(*args), torch.manual_seed(5))[0]


@pytest.mark.parametrize("create_graph", [False, True])
def test_none_at_all(create_graph):
    """By a map: torch refuses the option."""

    def check(results, wanted):
        return by_map(results, wanted, tangents_of(results, 0), create_graph=create_graph)

    both("product", check)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_random_numbers_are_the_call_s(way, create_graph):
    """Of a dropout by our own numbers: each of the many meets the mask of the forward."""
    function = aot_autograd.aot_function(
        lambda x: functional.dropout(x, 0.5), lambda graph, _: plain_runner(graph)
    )
    x = torch.ones(64, requires_grad=True)
    for _ in range(2):
        result = function(x)
        state = torch.get_rng_state()
        tangents = [torch.ones(MANY, 64)]
        (gradient,) = WAYS[way]([result], [x], tangents, create_graph=create_graph)
        assert torch.equal(torch.get_rng_state(), state)
        assert 0 < int((result == 0).sum()) < 64
        for row in gradient.reshape(-1, 64):
            assert torch.equal(row != 0, result != 0)


def test_hooks_of_saved_tensors_are_called_once():
    unpacked = []

    def unpack(number):
        unpacked.append(number)
        return packed[number]

    def pack(tensor):
        packed.append(tensor)
        return len(packed) - 1

    packed = []
    x, w = leaf(3), leaf(3)
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        result = compiled(lambda x, w: (x.exp() * w).sin())(x, w)
    by_option([result], [x, w], [torch.eye(3)])
    assert packed
    assert sorted(unpacked) == list(range(len(packed)))


@pytest.mark.parametrize("create_graph", [False, True])
def test_what_was_changed_since_is_refused(create_graph):
    for one in (torch.mul, compiled(torch.mul)):
        x, w = leaf(3), leaf(3)
        result = one(x, w)
        with torch.no_grad():
            w.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            by_option([result], [x], [torch.eye(3)], create_graph=create_graph)


def test_a_change_of_what_only_another_result_reads():
    def check(results, wanted):
        with torch.no_grad():
            wanted[1].add_(1)
        return by_option(results[:1], wanted[:1], tangents_of(results)[:1])

    both("results that lead elsewhere", check)


def test_hooks_see_what_eager_s_see():
    seen = []

    def tell(gradient):
        seen[-1].append((gradient.shape, gradient.dtype))

    for one in (torch.mul, compiled(torch.mul)):
        seen.append([])
        x, w = leaf(3), leaf(3)
        between = x * 2
        between.register_hook(tell)
        result = one(between, w)
        result.register_hook(tell)
        by_option([result.sin()], [x, w], [torch.eye(3)])
    assert seen[0] == seen[1] == [(torch.Size([3]), torch.float32)] * 2


@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians_and_hessians(vectorize):
    def function(x, w):
        return (x @ w).tanh().exp()

    torch.manual_seed(0)
    x, w = torch.randn(2, 3), torch.randn(3, 2)
    ours, eager = (
        [
            *torch.autograd.functional.jacobian(one, (x, w), vectorize=vectorize),
            *torch.autograd.functional.jacobian(
                one, (x, w), vectorize=vectorize, create_graph=True
            ),
            *sum(
                torch.autograd.functional.hessian(
                    lambda *args, f=one: f(*args).sum(), (x, w), vectorize=vectorize
                ),
                (),
            ),
        ]
        for one in (compiled(function), function)
    )
    same(ours, eager)


def test_a_map_inside_of_a_transform_that_differentiates_something_else():
    def check(results, wanted):
        (result,), (x,) = results, wanted

        def loss(factor):
            rows = torch.func.vmap(
                lambda one: torch.autograd.grad(result, x, one, retain_graph=True)[0]
            )(torch.eye(4))
            (ones,) = torch.autograd.grad(result, x, torch.ones(4) * 1, retain_graph=True)
            return (rows * factor).sum() + (ones * factor).sum()

        return [torch.func.grad(loss)(torch.arange(4.0))]

    both("pointwise", check)


def test_a_transform_that_would_have_to_see_inside_is_refused():
    (result,), (x,) = called(compiled(PROGRAMS["pointwise"][0]), PROGRAMS["pointwise"][1])

    def gradient(tangent):
        return torch.autograd.grad(result, x, tangent, create_graph=True)[0]

    ones = torch.ones(4)
    with pytest.raises(aot_autograd.UnsupportedTransform, match="put the compiled call inside"):
        torch.func.jvp(gradient, (ones,), (ones,))
    with pytest.raises(aot_autograd.UnsupportedTransform, match="put the compiled call inside"):
        torch.func.grad(lambda tangent: gradient(tangent).sum())(ones)
    # What was refused left everything as it was.
    torch.testing.assert_close(
        gradient(ones), torch.autograd.grad(PROGRAMS["pointwise"][0](x).sum(), x)[0]
    )


def test_a_backward_in_a_thread_of_its_own_knows_the_dimensions():
    """As the engine's for a GPU, which are in no transform of the older kind."""
    whole = torch.randn(2, 4)
    many = torch._add_batch_dim(whole, 0, 3)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(batched._taken_apart, many, "function").result()
    assert torch.equal(found[0], whole)
    assert found[1] == [(False, 3)]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("asked", [(0,), (1,), (2,), (0, 2)])
def test_only_what_is_asked_for_is_put_together(several, asked, monkeypatch):
    """The gradients of many of all parameters may be more than there is memory."""
    made = []
    original = batched.add_dimension

    def counted(tensor, dimension):
        made.append(tensor.shape)
        return original(tensor, dimension)

    def function(x, w, v):
        return ((x * w).sin(), (x * v).exp()) if several else (x * w * v).sin()

    found = []
    for one in (compiled(function), function):
        torch.manual_seed(0)
        inputs = [leaf(3), leaf(3), leaf(3) * 1]
        results = one(*inputs)
        results = results if several else (results,)
        monkeypatch.setattr(batched, "add_dimension", counted)
        found.append(by_option(results, [inputs[place] for place in asked], tangents_of(results)))
    same(*found)
    assert len(made) == len(asked)


def chained(x, w):
    hidden = (x * w).sin()
    logits = hidden.exp() * w
    return hidden, logits, (logits * hidden).sum()


CHAINED = [((2,), (0,)), ((2,), (1, 0)), ((1, 2), (0,)), ((0, 1), ()), ((2, 0), (1,)), ((1,), (0,))]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("of", "by"), CHAINED)
def test_results_that_lead_to_one_another(of, by, way, create_graph):
    """A backward that ends at results too."""
    found = []
    for one in (compiled(chained), chained):
        torch.manual_seed(0)
        inputs = [leaf(3), leaf(3)]
        results = one(*inputs)
        of_these = [results[place] for place in of]
        wanted = [*[results[place] for place in by], *inputs]
        tangents = tangents_of(of_these)
        found.append(
            [
                *WAYS[way](
                    of_these, wanted, tangents, retain_graph=True, create_graph=create_graph
                ),
                *WAYS[way](of_these, inputs[:1], tangents, create_graph=create_graph),
            ]
        )
    same(*found)


@pytest.mark.parametrize("way", WAYS)
def test_hooks_of_results_that_others_are_made_of(way):
    seen = []
    for one in (compiled(chained), chained):
        seen.append([])
        torch.manual_seed(0)
        inputs = [leaf(3), leaf(3)]
        hidden, logits, loss = one(*inputs)
        hidden.register_hook(lambda gradient: seen[-1].append(gradient.shape) or gradient * 2)
        same_inputs = WAYS[way]([logits, loss], inputs, tangents_of([logits, loss]))
        seen[-1] += [one.detach() for one in same_inputs]
    assert seen[0][0] == seen[1][0] == (3,)
    same(seen[0][1:], seen[1][1:])
