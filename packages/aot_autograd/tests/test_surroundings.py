"""Compiled code among what else autograd and the dispatcher do: hooks, modes, transforms, retained graphs."""

import pytest
import torch
from torch import randn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import aot_autograd


def leaf(*shape, **kwargs):
    return randn(*shape, **kwargs).requires_grad_()


def both(function, graph_runner):
    """The function in eager and compiled."""
    return function, aot_autograd.aot_function(function, graph_runner)


def same(one, other):
    torch.testing.assert_close(one, other)


def test_hooks_of_inputs_outputs_and_intermediates(graph_runner):
    def function(x, w):
        hidden = x @ w
        hidden.register_hook(lambda gradient: gradient * 3)
        return hidden.sin()

    results = []
    for one in both(function, graph_runner):
        torch.manual_seed(0)
        x, w, seen = leaf(3, 3), leaf(3, 3), []
        made = x * 2
        made.register_hook(lambda gradient, seen=seen: seen.append(gradient.clone()))

        def halve(leaf):
            leaf.grad.mul_(0.5)

        x.register_post_accumulate_grad_hook(halve)
        out = one(made, w)
        out.register_hook(lambda gradient: gradient * 2)
        out.sum().backward()
        results.append((x.grad, w.grad, seen[0]))
    same(*results)


def test_retain_grad_of_inputs_and_outputs(graph_runner):
    results = []
    for one in both(lambda x: (x.sin(), x.cos()), graph_runner):
        torch.manual_seed(0)
        x = leaf(3)
        made = x * 2
        made.retain_grad()
        first, second = one(made)
        first.retain_grad()
        (first * second).sum().backward()
        results.append((x.grad, made.grad, first.grad))
    same(*results)


def test_node_hooks_see_the_gradients(graph_runner):
    results = []
    for one in both(lambda x: x.sin(), graph_runner):
        torch.manual_seed(0)
        x, seen = leaf(3), []
        out = one(x)
        out.grad_fn.register_prehook(lambda gradients, seen=seen: seen.append(gradients[0].clone()))
        out.sum().backward()
        results.append((x.grad, seen[0]))
    same(*results)


def test_saved_tensor_hooks_can_move_everything_elsewhere(graph_runner):
    def function(x, w):
        return torch.nn.functional.layer_norm(x @ w, (4,)).exp()

    results = []
    for one in both(function, graph_runner):
        torch.manual_seed(0)
        x, w, packed = leaf(3, 4), leaf(4, 4), []

        def pack(tensor, packed=packed):
            packed.append(tensor.detach().clone())
            return len(packed) - 1

        with torch.autograd.graph.saved_tensors_hooks(pack, packed.__getitem__):
            out = one(x, w)
        out.sum().backward()
        assert packed
        results.append((x.grad, w.grad))
    same(*results)


def test_saved_tensors_may_not_be_saved_where_hooks_are_forbidden(graph_runner):
    for one in both(lambda x: x.exp(), graph_runner):
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            one(leaf(3)).sum().backward()


def test_parts_of_a_backward_one_after_another(graph_runner):
    results = []
    for one in both(lambda x, w: (x @ w, (x * w).sin()), graph_runner):
        torch.manual_seed(0)
        x, w = leaf(3, 3), leaf(3, 3)
        first, second = one(x, w)
        (only,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        (other,) = torch.autograd.grad(second.sum(), w, retain_graph=True)
        (first.sum() + second.sum()).backward(inputs=[w])
        assert x.grad is None
        results.append((only, other, w.grad))
    same(*results)


def test_unused_inputs_are_unused(graph_runner):
    for one in both(lambda x, y: x.sin(), graph_runner):
        x, y = leaf(3), leaf(3)
        out = one(x, y).sum()
        with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
            torch.autograd.grad(out, [x, y], retain_graph=True)
        assert torch.autograd.grad(out, [x, y], allow_unused=True)[1] is None


def test_backward_under_no_grad_and_in_another_thread(graph_runner):
    import threading

    compiled = aot_autograd.aot_function(lambda x: x.sin(), graph_runner)
    x = leaf(3)
    out = compiled(x).sum()
    with torch.no_grad():
        out.backward(retain_graph=True)
    thread = threading.Thread(target=out.backward)
    thread.start()
    thread.join()
    same(x.grad, 2 * x.detach().cos())


def test_anomaly_mode(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: x.sqrt(), graph_runner)
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        out = compiled(x)
        with pytest.raises(RuntimeError, match="returned nan values"):
            torch.autograd.backward(out, torch.tensor([0.0, 1.0]))


def test_tangents_of_another_dtype_are_cast_as_in_eager(graph_runner):
    results = []
    for one in both(lambda x: x.double().sin().float(), graph_runner):
        torch.manual_seed(0)
        x = leaf(4)
        (one(x).double() * 2).sum().backward()
        results.append(x.grad)
    same(*results)
    results = []
    for one in both(lambda x: x.sin(), graph_runner):
        torch.manual_seed(0)
        x = leaf(3, dtype=torch.complex64)
        torch.autograd.backward(one(x), torch.ones(3, dtype=torch.complex64).conj())
        results.append(x.grad)
    same(*results)


def test_the_users_dispatch_mode_sees_the_compiled_operators(graph_runner):
    class Counting(TorchDispatchMode):
        def __init__(self):
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen.append(str(func))
            return func(*args, **(kwargs or {}))

    compiled = aot_autograd.aot_function(lambda x: x.sin() * 2, graph_runner)
    x = leaf(3)
    compiled(x)
    with Counting() as mode:
        out = compiled(x)
        out.sum().backward()
    assert "aten.sin.default" in mode.seen
    assert "aten.cos.default" in mode.seen
    same(x.grad, 2 * x.detach().cos())


def test_a_mode_that_is_active_while_compiling_changes_nothing(graph_runner):
    class Doing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Seeing(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    for mode in (Doing, Seeing):
        compiled = aot_autograd.aot_function(lambda x: x.sin() * 2, graph_runner)
        x = leaf(3)
        with mode():
            compiled(x).sum().backward()
        same(x.grad, 2 * x.detach().cos())


def test_a_function_mode_changes_what_is_traced(graph_runner):
    class Cosine(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            func = torch.Tensor.cos if func is torch.Tensor.sin else func
            return func(*args, **(kwargs or {}))

    def function(x):
        with Cosine():
            return x.sin()

    one, other = both(function, graph_runner)
    x = leaf(3)
    same(one(x), other(x))


@pytest.mark.parametrize("transform", ["grad", "vmap", "jacrev", "jacfwd", "jvp"])
def test_transforms_over_a_compiled_function(graph_runner, transform):
    def over(function):
        torch.manual_seed(0)
        x = randn(3, 4)
        match transform:
            case "grad":
                return torch.func.grad(lambda x: function(x).sum())(x)
            case "vmap":
                return torch.func.vmap(function)(x)
            case "jacrev":
                return torch.func.jacrev(function)(x[0])
            case "jacfwd":
                return torch.func.jacfwd(function)(x[0])
            case _:
                return torch.func.jvp(function, (x,), (torch.ones_like(x),))

    one, other = both(lambda x: (x * 2).sin(), graph_runner)
    same(over(one), over(other))


def test_transforms_inside_a_function_in_training(agree):
    agree(lambda x: torch.func.grad(lambda a: (a**3).sum())(x).sin(), lambda: [leaf(3)])
    agree(lambda x: torch.func.jacrev(torch.sin)(x).sum(0), lambda: [leaf(3)])
    agree(
        lambda x, w: torch.func.vmap(lambda row: (row * w).tanh())(x), lambda: [leaf(2, 3), leaf(3)]
    )
    agree(torch.func.hessian(lambda a: a.exp().sum()), lambda: [leaf(3)])


def test_meta_and_cpu_inputs_together(agree):
    def function(x, shape_only):
        return x.sin(), shape_only.t() @ shape_only

    compiled = aot_autograd.aot_function(
        function, lambda gm, _: aot_autograd.make_boxed_func(gm.forward)
    )
    x = leaf(3)
    out, made = compiled(x, torch.empty(2, 5, device="meta"))
    assert made.device.type == "meta"
    assert made.shape == (5, 5)
    out.sum().backward()
    same(x.grad, x.detach().cos())


def test_sparse_inputs_are_refused_by_name(graph_runner):
    compiled = aot_autograd.aot_function(lambda s, x: s @ x, graph_runner)
    with pytest.raises(aot_autograd.AotError, match="sparse"):
        compiled(torch.eye(3).to_sparse(), leaf(3, 3))


def test_complex_parameters_in_training(agree):
    def function(x, w):
        hidden = torch.fft.fft(x * w)
        return hidden.abs().sum(), hidden.real, torch.view_as_real(hidden * 2)

    agree(function, lambda: [leaf(4, dtype=torch.complex64), leaf(4, dtype=torch.complex64)])


def test_the_same_parameter_twice_and_tied(agree, tracked):
    def shared():
        w = leaf(3, 3)
        return tracked([w, w.t(), w], [w])

    agree(lambda a, b, c: a @ b + c, shared)


@pytest.mark.parametrize("operation", ["set_", "resize_"])
def test_other_memory_is_refused_by_name(graph_runner, operation):
    def function(x, y):
        if operation == "set_":
            x.set_(y)
        else:
            x.resize_(2)
        return x * 1

    compiled = aot_autograd.aot_function(function, graph_runner)
    with pytest.raises(aot_autograd.UnsupportedOperator, match=operation):
        compiled(randn(3), randn(3))


def test_materialized_and_absent_gradients_of_a_custom_function(agree):
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.sin(), x.cos()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, first, second):
            (x,) = ctx.saved_tensors
            assert second is None
            return first * x.cos() * 5

    agree(lambda x: Both.apply(x)[0], lambda: [leaf(3)])


def test_autocast_inside_outside_and_in_the_backward(agree):
    def function(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = x @ w
            with torch.autocast("cpu", enabled=False):
                hidden = hidden.float() @ w
        return (hidden @ w).sum()

    agree(function, lambda: [leaf(4, 4), leaf(4, 4)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        agree(function, lambda: [leaf(4, 4), leaf(4, 4)])
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        agree(lambda x, w: (x @ w).float().sum(), lambda: [leaf(4, 4), leaf(4, 4)])


def strided_input():
    return torch.arange(12.0).view(4, 3).t()


def spread_input():
    return torch.arange(3.0)[:, None].expand(3, 4)


def part_input():
    return torch.view_as_real(torch.randn(3, 4, dtype=torch.complex64))[..., 1]


@pytest.mark.parametrize("make", [strided_input, spread_input, part_input])
@pytest.mark.parametrize(
    "unpack",
    [
        lambda t: t.clone(memory_format=torch.contiguous_format),
        lambda t: t.mT.contiguous().mT,
        lambda t: t.double(),
        lambda t: torch.view_as_real(torch.complex(t * 0, -t).conj().clone())[..., 1],
        lambda t: torch.complex(t * 0, -t).conj().imag,
        lambda t: t.to_sparse().to_dense(),
    ],
)
def test_what_hooks_give_back_is_laid_out_as_it_was_saved(make, unpack):
    """Kernels read saved tensors by the strides and the dtype that they had."""

    def function(a, weight):
        return (a * weight).sin() * weight

    def compiler(gm, example_inputs):
        def run(args):
            for value, example in zip(args, example_inputs, strict=True):
                if isinstance(value, torch.Tensor):
                    assert value.stride() == example.stride()
                    assert value.dtype == example.dtype
                    assert not value.is_conj()
                    assert not value.is_neg()
            return gm.forward(*args)

        return aot_autograd.make_boxed_func(lambda *args: run(list(args)))

    a, weight = make(), torch.randn(3, 4, requires_grad=True)
    compiled = aot_autograd.aot_function(function, compiler)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        out = compiled(a, weight)
    out.sum().backward()
    (expected,) = torch.autograd.grad(function(a, weight).sum(), weight)
    torch.testing.assert_close(weight.grad, expected)


def test_a_hook_that_gives_back_another_shape_is_an_error(graph_runner):
    compiled = aot_autograd.aot_function(lambda x: x.sin(), graph_runner)
    x = torch.randn(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[:2]):
        out = compiled(x)
    with pytest.raises(RuntimeError, match=r"shape \(3,\).*shape \(2,\)"):
        out.sum().backward()


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("way", ["behind", "through"])
def test_hooks_that_copy_keep_what_the_call_changes_later(graph_runner, shared, way):
    """Autograd doesn't watch what hooks have seen: the gradient is of the values that were saved."""

    def function(a, b):
        product = (a * b).sin()
        changed = b.detach() if way == "behind" else b
        changed.view(-1).add_(1)
        return product

    def gradient(call):
        leaf = torch.linspace(-1, 1, 20).requires_grad_()
        whole = leaf * 1
        first = whole[:12].view(3, 4) if shared else leaf[:12].view(3, 4).sin()
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda tensor: tensor):
            out = call(first, whole[4:16].view(3, 4))
        return torch.autograd.grad(out.square().sum(), leaf)[0]

    compiled = aot_autograd.aot_function(function, graph_runner)
    for _ in range(2):
        torch.testing.assert_close(gradient(compiled), gradient(function))
