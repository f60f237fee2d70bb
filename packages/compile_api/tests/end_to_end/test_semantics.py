"""Eager's semantics through the whole compiler, word by word: each program is one graph, compiled strictly.

Compared with eager, in two calls: values, gradients, identity, shared memory, views, version counters, strides,
`requires_grad`, `is_leaf`. What is left to eager is named with its reason.
"""

from functools import partial

import pytest
import torch
from torch import nn, randn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import compile_api

whole = partial(compile_api.compile, fullgraph=True, options={"strict": True})


def leaf(*shape, **options):
    return randn(*shape, **options).requires_grad_()


def state_of(named):
    """Everything about tensors but their numbers, as text."""
    lines = []
    for number, (name, value, before) in enumerate(named):
        if not isinstance(value, torch.Tensor):
            lines.append(f"{name}: {value!r}")
            continue
        earlier, later = (
            [(n, t) for n, t, _ in part if isinstance(t, torch.Tensor)]
            for part in (named[:number], named[number:])
        )
        memory = value.untyped_storage()._cdata
        shares = [n for n, t in earlier if t.untyped_storage()._cdata == memory]
        lines.append(
            f"{name}: {value.dtype} {value.device} {tuple(value.shape)} {value.stride()} "
            f"offset {value.storage_offset() if shares else 0} is {[n for n, t in earlier if t is value]} "
            f"shares {shares} views {[n for n, t in [*earlier, *later] if t is value._base]} "
            f"version {value._version - before} requires_grad {value.requires_grad} leaf {value.is_leaf}"
        )
    return lines


def scalar_of(value):
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    weights = torch.linspace(0.5, 1.5, value.numel(), device=value.device).view(value.shape)
    return (value * weights).sum().double().cpu()


def left_by(function, make, seed):
    """What a call and a backward of all that has a history leave: (state, tensors)."""
    torch.manual_seed(seed)
    inputs, leaves = make()
    before = [one._version if isinstance(one, torch.Tensor) else 0 for one in inputs]
    torch.manual_seed(seed + 100)
    outputs = tree_leaves(function(*inputs), is_leaf=lambda one: one is None)
    named = [(f"in{n}", one, was) for n, (one, was) in enumerate(zip(inputs, before, strict=True))]
    named += [(f"out{n}", one, 0) for n, one in enumerate(outputs)]
    state = state_of(named)
    found = [one for _, one, _ in named if isinstance(one, torch.Tensor)]
    values = [one.detach().clone() for one in found]
    after = torch.rand(2)
    with torch.enable_grad():
        total = sum(scalar_of(one) for one in found if one.grad_fn is not None)
        if isinstance(total, torch.Tensor):
            total.backward()
    return state, [*values, after, *(one.grad for one in leaves)]


def compare(function, make, compiled):
    for seed in range(2):
        state, want = left_by(function, make, seed)
        found, got = left_by(compiled, make, seed)
        assert found == state
        for one, other in zip(want, got, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def plain(*shapes):
    """Leaves as the inputs."""

    def make():
        leaves = [leaf(*shape) for shape in shapes]
        return leaves, leaves

    return make


def grown(*shapes):
    """Inputs that are no leaves."""

    def make():
        leaves = [leaf(*shape) for shape in shapes]
        return [one * 1 for one in leaves], leaves

    return make


def data(*shapes):
    """Inputs without gradients."""
    return lambda: ([randn(*shape) for shape in shapes], [])


def views_of_one_base():
    one = leaf(4, 3)
    base = one * 1
    return [base[0], base[1:3]], [one]


def aliases():
    x = randn(4, 3)
    return [x, x[1:], x.t()], []


def twice():
    one = leaf(3)
    value = one * 1
    return [value, value], [one]


def same_leaf_twice():
    one = leaf(3)
    return [one, one], [one]


def changed(x, w):
    x.mul_(2)
    x.add_(w)
    return x * w


def transposed(x):
    y = x * 2
    x.t_()
    return y, x + 1


def unsqueezed(x):
    x.unsqueeze_(0).transpose_(1, 2)
    return x.sin()


def under_no_grad(x, w):
    with torch.no_grad():
        x.add_(1)
    return x * w


def on_views(x, w):
    x[0].mul_(2)
    x[:, 1:].add_(w)
    return x.sin()


def of_one_base(row, rows):
    row.mul_(2)
    rows.add_(row)
    return row * 3, rows.sin()


def written_aliases(x, rows, turned):
    rows.add_(1)
    turned[0] = 0
    return x * 2, rows


def output_aliases(x):
    y = x.sin()
    return x, x[1:], y, y.t(), y.view(-1)[2:], x.view(-1)


def views_of_intermediates(x):
    y = x * 2
    first, second = y.split([1, 2])
    return first, second, y.t()[0], y.unsqueeze(0).expand(2, 3, 3)


def detached(x):
    y = x.sin()
    return y.detach(), y, x.detach()[0], x.detach() * x


def detached_in_place(x, w):
    y = x * w
    y.detach_()
    return y * w, y


def input_detached_in_place(x, w):
    y = x * 2
    x.detach_()
    x.add_(1)
    return y, x * w


def views_in_training(x):
    y = x * 2
    y[0] = 1
    y[1].mul_(x[2])
    y.diagonal().add_(x.diagonal())
    return y * 2


def nothing_but_numbers(x):
    return None, 3, "text", x.argmax(), x.sum(), (x > 0), x.shape[0], [None, x.size(1)]


def outputs_without_gradients(x, w):
    with torch.no_grad():
        y = x * w
    return y, x.detach() + 1, x * w


class Marked(torch.autograd.Function):
    """Writes into its first argument."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return x.mul_(y)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y, None


class Positions(torch.autograd.Function):
    """One result without a gradient; the gradient of the last, which nobody uses, is zeros."""

    @staticmethod
    def forward(ctx, x):
        values, positions = x.sort()
        ctx.mark_non_differentiable(positions)
        ctx.save_for_backward(positions)
        return values, positions, x * 2

    @staticmethod
    def backward(ctx, gradient, _positions, other):
        (positions,) = ctx.saved_tensors
        return torch.zeros_like(gradient).scatter(0, positions, gradient) + 2 * other


class Absent(torch.autograd.Function):
    """Asks which gradients are absent."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 3, x * 2

    @staticmethod
    def backward(ctx, first, second):
        return 3 * first if second is None else 3 * first + 5 * second


class Cubed(torch.autograd.Function):
    """With `setup_context`."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


def marked_dirty(x, y):
    return Marked.apply(x * 1, y) + 1


def non_differentiable(x):
    values, positions, _ = Positions.apply(x)
    return values, positions


def with_context(x):
    return Cubed.apply(x).sin()


def checkpointed(x, w):
    def part(x):
        return torch.nn.functional.dropout((x @ w).tanh(), 0.5)

    return checkpoint(part, x, use_reentrant=False).sin()


def dropped(x):
    return torch.nn.functional.dropout(x, 0.4) * torch.rand_like(x)


def cast_inside(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y, y.float() * x


def complex_product(x, w):
    return (x * w).abs(), x.conj() @ w, x.real


def of_two_devices(x, other):
    return x * 2, other + 1, x.sin().to(other.dtype)


def per_sample(x, w):
    gradients = torch.func.vmap(torch.func.grad(lambda row: (row @ w).sin().sum()))(x)
    return gradients, torch.func.jacrev(lambda w: (x @ w).sum(0))(w)


def gradient_inside(x):
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    return first, first * x


def unused(x, _w):
    return x.sin()


def doubled(x, y):
    x.add_(1)
    return x * y


def complex_leaves():
    leaves = [leaf(3, 3, dtype=torch.complex64) for _ in "xw"]
    return leaves, leaves


def two_devices():
    x = leaf(3)
    return [x, torch.empty(3, device="meta")], [x]


WORDS = {
    "inputs mutated: data": (changed, grown((3,), (3,))),
    "inputs mutated: without gradients": (changed, data((3,), (3,))),
    "inputs mutated: metadata": (transposed, data((3, 2))),
    "inputs mutated: metadata of several kinds": (unsqueezed, data((3, 2))),
    "inputs mutated: metadata in training": (transposed, grown((3, 2))),
    "inputs mutated: under no_grad": (under_no_grad, plain((3,), (3,))),
    "inputs mutated: on views": (on_views, grown((3, 3), (3, 2))),
    "inputs mutated: several views of one base": (of_one_base, views_of_one_base),
    "inputs mutated: inputs that alias each other": (written_aliases, aliases),
    "outputs that alias inputs, each other, or are inputs": (output_aliases, plain((3, 3))),
    "the same of no leaves": (output_aliases, grown((3, 3))),
    "views of intermediates": (views_of_intermediates, plain((3, 3))),
    "detach": (detached, plain((3, 3))),
    "detach in place": (detached_in_place, plain((3,), (3,))),
    "detach in place: an input": (input_detached_in_place, grown((3,), (3,))),
    "in-place on views in training": (views_in_training, plain((3, 3))),
    "the same tensor passed twice": (doubled, twice),
    "the same leaf passed twice": (lambda x, y: x * y, same_leaf_twice),
    "unused inputs": (unused, plain((3,), (3,))),
    "outputs without gradient": (outputs_without_gradients, plain((3,), (3,))),
    "None, non-tensor and integer outputs": (nothing_but_numbers, plain((3, 3))),
    "autograd.Function: mark_dirty": (marked_dirty, plain((3,), (3,))),
    "autograd.Function: mark_non_differentiable": (non_differentiable, plain((5,))),
    "autograd.Function: setup_context": (with_context, plain((3,))),
    "checkpoint": (checkpointed, plain((3, 3), (3, 3))),
    "autocast inside": (cast_inside, plain((3, 3), (3, 3))),
    "mixed devices": (of_two_devices, two_devices),
    "complex parameters": (complex_product, complex_leaves),
    "torch.func inside": (per_sample, plain((4, 3), (3, 2))),
    "torch.autograd.grad inside": (gradient_inside, plain((3,))),
}


@pytest.mark.parametrize("word", WORDS)
def test_word(word):
    function, make = WORDS[word]
    if word == "checkpoint":
        compiled = whole(function, options={"strict": True, "fallback_random": True})
    elif word == "mixed devices":  # no kernels are made for a tensor without memory
        compiled = whole(function, backend="aot_eager")
    else:
        compiled = whole(function)
    compare(function, make, compiled)


def test_fallback_random_is_bit_equal():
    compiled = whole(dropped, options={"strict": True, "fallback_random": True})
    compare(dropped, plain((4, 5)), compiled)


def test_autocast_outside():
    def function(x, w):
        return x @ w, (x @ w).sum()

    compiled = whole(function)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            compare(function, plain((3, 3), (3, 3)), compiled)


def test_a_model_with_statistics_and_tied_parameters():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(7, 4), nn.BatchNorm1d(4)
            self.out = nn.Linear(4, 7)
            self.out.weight = self.embed.weight

        def forward(self, x):
            return self.out(self.norm(self.embed(x)))

    results = []
    for wrap in (lambda model: model, whole):
        torch.manual_seed(0)
        model = Model()
        run = wrap(model)
        versions = model.norm.running_mean._version
        for _ in range(3):
            run(torch.randint(0, 7, (5,))).square().sum().backward()
        facts = [model.norm.running_mean._version - versions, model.norm.num_batches_tracked.item()]
        assert model.out.weight is model.embed.weight
        results.append([facts, [*model.buffers(), *(one.grad for one in model.parameters())]])
    assert results[0][0] == results[1][0]
    for want, got in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_hooks_and_retain_grad():
    def function(x, w):
        return x @ w, x.sin()

    results = []
    for one in (function, whole(function)):
        torch.manual_seed(0)
        seen = []
        start = leaf(3, 3)
        x, w = start * 1, leaf(3, 3)
        x.retain_grad()
        w.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad.clone()))
        first, second = one(x, w)
        first.register_hook(lambda gradient: gradient * 3)
        second.retain_grad()
        first.grad_fn.register_hook(lambda given, got, seen=seen: seen.append(len(got)))
        torch.autograd.backward([first.sum(), second.square().sum()], retain_graph=True)
        first.sum().backward()
        results.append([start.grad, x.grad, w.grad, second.grad, *seen[1::2]])
    for want, got in zip(*results, strict=True):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want)


def test_saved_tensor_hooks():
    def function(x, w):
        return (x @ w).tanh().sum()

    compiled = whole(function)
    gradients = []
    for one in (function, compiled):
        torch.manual_seed(0)
        x, w = leaf(3, 3), leaf(3, 3)
        packed = []

        def pack(tensor, packed=packed):
            packed.append(tensor.numel())
            return tensor.double()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.float()):
            total = one(x, w)
        total.backward()
        assert packed
        gradients.append((x.grad, w.grad))
    for want, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, want)


def test_two_backwards_and_one_too_many():
    compiled = whole(lambda x: (x.exp() * x).sum())
    x = leaf(3)
    total = compiled(x)
    total.backward(retain_graph=True)
    first = x.grad.clone()
    with torch.no_grad():
        total.backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        total.backward()


def test_repeatable_random_numbers():
    compiled = whole(lambda x: torch.nn.functional.dropout(x, 0.5))
    x = torch.ones(200).requires_grad_()
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        x.grad = None
        y = compiled(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach())  # the backward's mask is the forward's
        results.append(y)
    assert torch.equal(*results)
    assert not torch.equal(compiled(x), results[0])


@pytest.mark.parametrize("kind", ["none", "expanded", "transposed", "double"])
def test_tangents(kind):
    def function(x):
        return x.sin(), x.cos()

    results = []
    for one in (function, whole(function)):
        torch.manual_seed(0)
        x = leaf(3, 4)
        first, second = one(x)
        tangent = {
            "none": None,
            "expanded": torch.ones(()).expand(3, 4),
            "transposed": randn(4, 3).t(),
            "double": randn(3, 4),
        }[kind]
        if kind == "double":  # of another dtype on its way: autograd casts it back
            first = first.double()
            tangent = tangent.double()
        outputs = [first, second] if tangent is not None else [second]
        given = [torch.ones(3, 4)] if tangent is None else [tangent, torch.ones(3, 4)]
        results.append(torch.autograd.grad(outputs, x, given)[0])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("over", ["grad", "vmap", "jacrev", "jvp", "hessian"])
def test_transforms_over_a_compiled_function(over):
    def function(x):
        return (x.sin() * x).cumsum(-1)

    def through(one):
        torch.manual_seed(0)
        x = randn(3, 4)
        match over:
            case "grad":
                return torch.func.grad(lambda x: one(x).sum())(x)
            case "vmap":
                return torch.func.vmap(one)(x)
            case "jacrev":
                return torch.func.jacrev(one)(x[0])
            case "jvp":
                return torch.func.jvp(one, (x,), (torch.ones_like(x),))[1]
            case "hessian":
                return torch.func.hessian(lambda x: one(x).sum())(x[0])

    compiled = compile_api.compile(function, options={"strict": True})
    torch.testing.assert_close(through(compiled), through(function))


class Seen(TorchDispatchMode):
    """The user's own mode: notes what runs under it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class Counted(torch.overrides.TorchFunctionMode):
    """The user's own mode of functions."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class Doubling(TorchDispatchMode):
    """One that changes what an operator gives."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.ops.aten.sin.default else found


@pytest.mark.parametrize("mode", [Seen, Counted, Doubling])
@pytest.mark.parametrize("before", [True, False], ids=["compiled before", "first called inside"])
def test_the_users_modes_see_and_decide_what_they_do_in_eager(mode, before):
    def function(x):
        return (x.sin() * 2).sum()

    compiled = compile_api.compile(function, options={"strict": True})
    torch.manual_seed(0)
    x = leaf(3)
    if before:
        compiled(x).backward()
    results = []
    for one in (function, compiled):
        x.grad = None
        with mode() as active:
            total = one(x)
            total.backward()
        results.append((total.detach(), x.grad, getattr(active, "names", [])))
    assert results[0][2] == results[1][2]
    for want, got in zip(*(result[:2] for result in results), strict=True):
        torch.testing.assert_close(got, want)
    x.grad = None
    compiled(x).backward()  # and without it, the kernels again
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


@pytest.mark.parametrize("method", ["set_", "resize_"])
def test_other_memory_is_a_break_with_a_reason(method):
    def function(x, y):
        y = y * 2
        getattr(x, method)(*([y] if method == "set_" else [2, 2]))
        return x, y + 1

    with pytest.raises(Exception, match=f"{method}|resize|storage|memory"):
        whole(function)(randn(6), randn(6))
    results = []
    for one in (function, compile_api.compile(function, options={"strict": True})):
        torch.manual_seed(0)
        x, y = randn(6), randn(6)
        made, other = one(x, y)
        assert made is x
        results.append((x, other))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


def test_sparse_inputs_are_a_break_with_a_reason():
    def function(x, w):
        return (x @ w).sin()

    sparse = torch.eye(3).to_sparse()
    with pytest.raises(Exception, match="sparse"):
        whole(function)(sparse, randn(3, 3))
    w = leaf(3, 3)
    compiled = compile_api.compile(function, options={"strict": True})
    torch.testing.assert_close(compiled(sparse, w), function(sparse, w))


def test_a_function_that_asks_which_gradients_are_absent_is_a_break_with_a_reason():
    def used(x):
        return sum(Absent.apply(x)) + 1

    def unused(x):
        return Absent.apply(x * 1)[0] + 1

    with pytest.raises(Exception, match="asks which gradients are absent"):
        whole(used)(leaf(3))
    for function in (used, unused):
        compare(function, plain((3,)), compile_api.compile(function, options={"strict": True}))
