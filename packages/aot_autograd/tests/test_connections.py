"""Who is called in a backward: each result leads to the inputs that it leads to in eager, and to no others."""

import contextlib
import gc
import threading
import weakref

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import aot_autograd

pytestmark = pytest.mark.usefixtures("form")


def compiled(function):
    return aot_autograd.aot_function(
        function, lambda graph, _: aot_autograd.make_boxed_func(graph.forward)
    )


class Zeros(torch.autograd.Function):
    """Makes zeros of a gradient that isn't there, as custom functions do unless they say otherwise."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Asks(torch.autograd.Function):
    """Tells what it was called with."""

    @staticmethod
    def forward(ctx, tensor, told):
        ctx.set_materialize_grads(False)
        ctx.told = told
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.told(gradient)
        return gradient, None


def value_of(tensor):
    return None if tensor is None else tensor.detach().clone()


class Watched:
    """Arguments with hooks on them, on leaves, and custom functions above; what was told, by place."""

    def __init__(self, makes, hooked):
        self.told = {}
        self.leaves, self.arguments = [], []
        for number, made in enumerate(makes):
            torch.manual_seed(number)
            leaf = torch.rand(3).add_(0.2).requires_grad_()
            leaf.register_post_accumulate_grad_hook(
                lambda tensor, n=number: self.tell(f"accumulated {n}", tensor.grad)
            )
            argument = leaf
            if made == "product":
                argument = leaf * 3
            elif made == "zeros":
                argument = Zeros.apply(leaf)
            elif made == "asks":
                argument = Asks.apply(leaf, lambda g, n=number: self.tell(f"above {n}", g))
            if hooked[number]:
                argument.register_hook(lambda g, n=number: self.tell(f"hook {n}", g))
            self.leaves.append(leaf)
            self.arguments.append(argument)

    def tell(self, name, gradient):
        self.told.setdefault(name, []).append(value_of(gradient))

    def gradients(self):
        return [value_of(leaf.grad) for leaf in self.leaves]


UNARY = (torch.sin, torch.exp, lambda x: x * 2, lambda x: x + 1, torch.tanh)
BINARY = (torch.mul, torch.add, torch.sub, lambda x, y: torch.where(x > 0.5, x, y))


@st.composite
def programs(draw):
    """Instructions over a growing list of values that begins with the inputs; results; how a backward comes."""
    inputs = draw(st.integers(2, 4))
    count = inputs
    instructions = []
    for _ in range(draw(st.integers(2, 7))):
        if draw(st.booleans()):
            step = (draw(st.sampled_from(UNARY)), (draw(st.integers(0, count - 1)),))
        else:
            places = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
            step = (draw(st.sampled_from(BINARY)), places)
        instructions.append(step)
        count += 1
    used = {place for _, places in instructions for place in places}
    last = [place for place in range(inputs, count) if place not in used]  # none leads to another
    instructions += [(torch.sin, (0,)), (torch.mul, (1, 1))]
    last = [*last, count, count + 1]
    results = draw(st.lists(st.sampled_from(last), min_size=2, max_size=4, unique=True))
    made = st.sampled_from(["leaf", "product", "zeros", "asks"])
    makes = draw(st.lists(made, min_size=inputs, max_size=inputs))
    hooked = draw(st.lists(st.booleans(), min_size=inputs, max_size=inputs))
    some = st.lists(st.integers(0, len(results) - 1), min_size=1, max_size=3, unique=True)
    ways = st.sampled_from(["backward", "grad of one", "second", "hooked result"])
    steps = draw(st.lists(st.tuples(some, st.booleans(), ways), min_size=1, max_size=4))
    return tuple(instructions), tuple(results), tuple(makes), tuple(hooked), tuple(steps)


def left_by(program, compile_function, texts):
    """What a program leaves; of errors the numbers of their `texts`."""
    instructions, results, makes, hooked, steps = program

    def function(*inputs):
        values = list(inputs)
        for operator, places in instructions:
            values.append(operator(*[values[place] for place in places]))
        return [values[place] for place in results]

    watched = Watched(makes, hooked)
    made = compile_function(function)(*watched.arguments)
    found, retained = [], True
    for differentiated, retain, way in steps:
        total = sum((made[number] * (number + 2)).sum() for number in differentiated)
        try:
            if way == "backward":
                total.backward(retain_graph=retain)
            elif way == "grad of one" and retained:
                # What isn't on the way to the one isn't freed in eager.
                first = torch.autograd.grad(
                    total, watched.arguments[:1], retain_graph=True, allow_unused=True
                )
                found.append(value_of(first[0]))
            elif way == "second" and retained:  # ours needs the inputs, eager what it saved
                firsts = torch.autograd.grad(
                    total, watched.arguments, create_graph=True, allow_unused=True
                )
                found.append(list(map(value_of, firsts)))
                sum(
                    (one * one).sum() for one in firsts if one is not None and one.requires_grad
                ).backward()
                # eager's goes through the first graph, ours begins at the inputs
                found.append(watched.gradients())
                return found, watched.told
            else:
                made[differentiated[0]].register_hook(lambda g: watched.tell("result", g))
                total.backward(retain_graph=retain)
        except RuntimeError as error:
            # How much of a backward has run when another part raises is the order of its nodes.
            return [*found, texts.setdefault(str(error)[:60], len(texts))], {}
        except AttributeError:
            found.append(-1)  # nothing to differentiate twice
        found.append(watched.gradients())
        retained = retained and (retain or way == "grad of one")
    return found, watched.told


def assert_same(ours, eager):
    torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.generate],
)
@given(programs())
def test_drawn(program):
    try:
        eager = left_by(program, lambda function: function, texts := {})
    except RuntimeError:
        return
    ours = left_by(program, compiled, texts)
    assert ours[1].keys() == eager[1].keys()
    assert_same(ours[1], eager[1])
    assert_same(ours[0], eager[0])


def apart(a, b):
    return a.sin().exp(), b.cos() * b


def in_part(a, b, c):
    shared = a.sin()
    return (shared * c).exp(), shared * 2 + b.tanh()


def test_what_is_saved_lives_as_long_as_a_backward_may_come():
    """One result's backward leaves what another's reads; the last one's, and the end of both results, frees it."""
    kept = []

    def pack(tensor):
        value = Kept(tensor)
        kept.append(weakref.ref(value))
        return value

    def alive():
        return any(reference() is not None for reference in kept)

    for end in ("backwards", "dropped", "one dropped"):
        kept.clear()
        a, b = leaves(2)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value.tensor):
            first, second = compiled(apart)(a, b)
        assert alive()
        if end == "one dropped":
            del second
        if end != "dropped":
            first.sum().backward()
        if end == "backwards":
            assert alive()
            second.sum().backward()
        elif end == "dropped":
            del first, second
        assert not alive(), end


@pytest.mark.parametrize("hooks", [False, True])
def test_what_is_saved_ends_with_the_last_result_that_nobody_differentiated(hooks):
    """A loss that is kept after its backward keeps nothing for a result that is gone."""

    def function(x, w, v):
        return (x * w).sin().sum(), (x * v).cos()

    called = compiled(function)

    def run():
        x, (w, v) = torch.rand(3), leaves(2)
        saved = weakref.ref(x)
        same = (lambda tensor: tensor, lambda tensor: tensor)
        with torch.autograd.graph.saved_tensors_hooks(*same) if hooks else contextlib.nullcontext():
            loss, other = called(x, w, v)
        del x
        loss.backward()
        assert saved() is not None
        expected = torch.autograd.grad(other.sum(), v, retain_graph=True)
        assert saved() is not None, "the graph is retained"
        del other
        assert saved() is None
        return loss, expected

    run()
    gc.collect()
    gc.disable()
    try:
        run()
    finally:
        gc.enable()


class Kept:
    def __init__(self, tensor):
        self.tensor = tensor


def leaves(count):
    torch.manual_seed(1)
    return [torch.rand(3).add_(0.1).requires_grad_() for _ in range(count)]


def test_a_loss_frees_what_its_intermediate_results_share():
    """Nothing may come after it that doesn't clash, though the other result is held."""
    inputs = leaves(3)
    first, _second = compiled(in_part)(*inputs)
    context = first.grad_fn.call
    first.sum().backward()
    assert context.owner is None
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        first.sum().backward()


def test_two_backwards_at_once():
    """One graph, retained, differentiated in several threads: each gets the gradients of its own tangents."""
    inputs = leaves(3)
    for function in (in_part, compiled(in_part)):
        results = function(*inputs)
        expected = torch.autograd.grad(
            results[0].sum(), inputs, retain_graph=True, allow_unused=True
        )
        failures = []

        def check(factor, results=results, expected=expected, failures=failures):
            for _ in range(50):
                total = results[0].sum() * factor
                found = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
                for one, other in zip(found, expected, strict=True):
                    same = one is other or torch.allclose(one, other * factor)
                    if not same:
                        failures.append((one, other))

        threads = [threading.Thread(target=check, args=(factor,)) for factor in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


def test_a_backward_inside_of_a_backward():
    """A hook that differentiates the other result: a backward of its own, while the first is at its work."""

    def run(function):
        inputs = leaves(3)
        arguments = [one * 2 for one in inputs]
        first, second = function(*arguments)
        total, inner = second.sum(), []

        def hook(gradient):
            found = torch.autograd.grad(total, arguments[1], retain_graph=True)
            inner.append(found[0])
            return gradient * 2

        first.register_hook(hook)
        (first.sum() + second.sum()).backward(retain_graph=True)
        second.sum().backward()
        return [one.grad for one in inputs], inner

    assert_same(run(compiled(in_part)), run(in_part))


def test_an_abandoned_backward_leaves_nothing():
    """A hook that raises between a result's node and an input's: the next backward begins anew."""

    def run(function):
        inputs = leaves(3)
        first, second = function(*inputs)
        failing = [True]

        def hook(gradient):
            if failing[0]:
                raise ValueError("not today")
            return gradient

        second.register_hook(hook)
        with pytest.raises(ValueError, match="not today"):
            (first.sum() * 5 + second.sum()).backward(retain_graph=True)
        failing[0] = False
        for one in inputs:
            one.grad = None
        (first.sum() + second.sum()).backward()
        return [one.grad for one in inputs]

    assert_same(run(compiled(in_part)), run(in_part))


def test_writes_and_views():
    """An argument that is written, a result that is one, a view: the nodes are behind the right tensors."""

    def function(a, b, c):
        a.mul_(b)
        return a[1:], c.sin(), b

    def run(called):
        inputs = leaves(3)
        told = []
        arguments = [one * 2 for one in inputs]
        for number, argument in enumerate(arguments):
            argument.register_hook(lambda g, n=number: told.append((n, value_of(g))))
        view, other, same = called(*arguments)
        assert same is arguments[1]
        other.sum().backward()
        (view.sum() + arguments[0].prod()).backward()
        return [one.grad for one in inputs], dict(told)

    assert_same(run(compiled(function)), run(function))


def test_only_what_is_asked_for():
    """`torch.autograd.grad` of one input runs no hook of the others."""

    def run(function):
        inputs = leaves(3)
        told = []
        arguments = [one * 2 for one in inputs]
        for number, argument in enumerate(arguments):
            argument.register_hook(lambda g, n=number: told.append((n, value_of(g))))
        first, second = function(*arguments)
        found = torch.autograd.grad(first.sum() + second.sum(), inputs[1])
        return found, told

    ours, eager = run(compiled(in_part)), run(in_part)
    assert_same(ours, eager)


def test_a_node_for_each_result():
    """Also where results lead to all inputs and share what is saved: hooks of one are not called for another."""

    def function(a, b):
        shared = a.sin() * b
        return shared.exp(), shared.tanh()

    def run(called):
        told = []
        first, second = called(*leaves(2))
        assert first.grad_fn is not second.grad_fn
        first.register_hook(told.append)
        second.sum().backward()
        return told

    assert run(compiled(function)) == run(function) == []


def test_what_arrives_late():
    """A tangent that comes when another's gradients are computed already: gradients are sums, nothing was freed."""
    inputs = leaves(3)
    first, second = compiled(in_part)(*inputs)
    call = first.grad_fn.call
    nodes = call.nodes
    early = []

    class Other(torch.autograd.Function):
        """As if the thread of another device were ahead with the other result and what it alone leads to."""

        @staticmethod
        def forward(_ctx, tensor):
            return tensor.clone()

        @staticmethod
        def backward(_ctx, gradient):
            running = call.of_now()
            early.append(running)
            running.arrive(0, torch.ones(3))
            early.extend(running.take(nodes.own_inputs))
            return gradient

    Other.apply(second.sum()).backward()
    again = leaves(3)
    results = in_part(*again)
    expected = torch.autograd.grad(results[0].sum() + results[1].sum(), again)
    assert_same([inputs[0].grad, inputs[1].grad, early[1]], list(expected))


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_what_passes_between_nodes_is_a_number_of_one_dtype():
    shared = torch.randn(3, 3, requires_grad=True)
    heads = [torch.randn(3, 3, requires_grad=True) for _ in range(2)]
    one, other = compiled(lambda s, a, b: ((s @ a).sum(), (s @ b).sum()))(shared, *heads)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        spoiled = [torch.full((), torch.nan) for _ in range(64)]
        del spoiled  # what is not initialized would be NaN
        with torch.autograd.detect_anomaly():
            (one * 2 + other).backward()
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(heads[0].grad, 2 * shared.detach().sum(0).unsqueeze(1).expand(3, 3))
    torch.testing.assert_close(shared.grad, (2 * heads[0] + heads[1]).detach().sum(1).expand(3, 3))


def logits_and_loss(a, b, c):
    logits = (a * b).tanh()
    return logits, (logits * c * a).sum()


def test_the_first_result_holds_a_backward_only_while_it_is_on_its_way():
    """Of what the loss brings the inputs of the logits, which have no node of their own."""
    inputs = leaves(3)
    logits, loss = compiled(logits_and_loss)(*inputs)
    held = logits.grad_fn.held
    torch.autograd.grad(loss, logits, retain_graph=True)
    torch.autograd.grad(loss, inputs[2], retain_graph=True)
    torch.autograd.grad(loss, [logits, inputs[2]], retain_graph=True)
    torch.autograd.grad(logits.sum(), inputs[:2], retain_graph=True)
    assert not held
    found = torch.autograd.grad(loss, inputs, retain_graph=True)
    again = leaves(3)
    assert_same(found, torch.autograd.grad(logits_and_loss(*again)[1], again))
    loss.backward()
    assert not held


def test_an_abandoned_backward_dies_with_its_results():
    """A hook that raises between the loss and the logits: later backwards don't see it, and no cycle keeps it."""
    inputs = leaves(3)
    logits, loss = compiled(logits_and_loss)(*inputs)
    failing = [True]

    def hook(gradient):
        if failing[0]:
            raise ValueError("not today")
        return gradient

    logits.register_hook(hook)
    with pytest.raises(ValueError, match="not today"):
        loss.backward(retain_graph=True)
    held = [weakref.ref(one) for one in logits.grad_fn.held.values()]
    assert held
    failing[0] = False
    for one in inputs:
        one.grad = None
    loss.backward(retain_graph=True)
    again = leaves(3)
    logits_and_loss(*again)[1].backward()
    assert_same([one.grad for one in inputs], [one.grad for one in again])
    gc.disable()
    try:
        del logits, loss
        assert all(reference() is None for reference in held)
    finally:
        gc.enable()


def test_a_backward_inside_of_one_on_its_way_to_the_first_result():
    """Each has its own sums: the outer one is held while the inner one comes by."""

    def run(called):
        inputs = leaves(3)
        logits, loss = called(*inputs)
        inner = []

        def hook(_gradient):
            if not inner:
                inner.append(None)
                inner.extend(torch.autograd.grad(loss, inputs, retain_graph=True))

        logits.register_hook(hook)
        (loss * 3 + (logits * 2).sum()).backward(retain_graph=True)
        return [one.grad for one in inputs], inner

    assert_same(run(compiled(logits_and_loss)), run(logits_and_loss))


def test_several_threads_on_their_way_to_the_first_result():
    inputs = leaves(3)
    logits, loss = compiled(logits_and_loss)(*inputs)
    again = leaves(3)
    expected = torch.autograd.grad(sum(one.sum() for one in logits_and_loss(*again)), again)
    failures = []

    def check(factor):
        for _ in range(50):
            total = (loss + logits.sum()) * factor
            found = torch.autograd.grad(total, inputs, retain_graph=True)
            pairs = zip(found, expected, strict=True)
            failures.extend(one for one, want in pairs if not torch.allclose(one, want * factor))

    threads = [threading.Thread(target=check, args=(factor,)) for factor in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not logits.grad_fn.held
