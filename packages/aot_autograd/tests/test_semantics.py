"""Eager is the specification: values, gradients, aliasing, versions and autograd state, case by case."""

import pytest
import torch
import torch.nn.functional as F
from torch import randn

import aot_autograd


def leaf(*shape, **kwargs):
    return randn(*shape, **kwargs).requires_grad_()


# ---------------------------------------------------------------- mutation of inputs


def test_input_changed_in_place(agree):
    def function(x):
        x.add_(1)
        return x * 2

    agree(function, lambda: (randn(3, 4),), calls=2)


def test_a_tensor_made_of_a_number_is_written_after_it_was_read(agree):
    def function(x):
        total = torch.tensor(0.5)
        before = x + total
        total += 1
        torch._foreach_mul_([total], 3.0)
        return before, total, total * x

    agree(function, lambda: (randn(3),))
    agree(function, lambda: (leaf(3),))


def test_a_tensor_made_of_numbers_is_written_after_it_was_read(agree):
    def function(x):
        weights = torch.tensor([1.0, 2.0, 3.0])
        before = x * weights
        weights[1] = 7
        return before, weights, weights + x

    agree(function, lambda: (randn(3),), calls=2)


def test_indices_made_of_numbers_are_written_after_they_were_read(agree):
    def function(x):
        index = torch.tensor([0, 2, 1])
        first, part = x[index], index[1:]
        before = x[part]
        index[1] = 0
        part.add_(1)
        return first, before, x[index % 3], index

    agree(function, lambda: (randn(3),), calls=2)


def test_two_changes_count_two_versions(agree):
    agree(lambda x: x.add_(1).mul_(2).sin(), lambda: (randn(3),))


def test_input_changed_through_a_view(agree):
    def function(x):
        x.view(-1).mul_(2)
        return x

    agree(function, lambda: (randn(3, 4),))


def test_views_see_each_others_writes(agree):
    def function(x, v):
        x[1:3] = v
        x[:, 0].mul_(3)
        rows = x.t()
        rows[0].add_(x[1])
        return x + 1, rows.sum()

    agree(function, lambda: (randn(4, 4), randn(2, 4)))


def test_parameter_changed_under_no_grad(agree):
    def function(x, p):
        with torch.no_grad():
            p.mul_(0.9)
        return (x * p).sum()

    agree(function, lambda: (randn(4), leaf(4)))


def test_change_of_a_non_leaf_goes_through_autograd(agree, tracked):
    def make():
        a = leaf(3)
        return tracked([a * 1], [a])

    agree(lambda x: (x.mul_(2), x.sin())[1], make)


def test_detached_change_of_a_non_leaf(agree, tracked):
    def make():
        a = leaf(3)
        return tracked([a * 1], [a])

    agree(lambda x: (x.detach().mul_(2), x.sin())[1], make)


def test_plain_input_gains_a_gradient(agree):
    agree(lambda x, w: (x.mul_(w), x.sin())[1], lambda: (randn(3), leaf(3)))
    agree(lambda x, w: x.mul_(w), lambda: (randn(3), leaf(3)))
    agree(lambda x, w: x[0].mul_(w), lambda: (randn(3, 3), leaf(3)))


def test_leaf_changed_in_grad_mode_raises_eagers_error(graph_runner):
    import aot_autograd

    compiled = aot_autograd.aot_function(lambda x: x.add_(1), graph_runner)
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        compiled(leaf(3))


def test_saved_input_is_saved_with_its_old_value(agree):
    compared = agree(lambda x, w: (x.mul_(w) * w).sum(), lambda: (randn(3), leaf(3)))
    assert "aten.clone.default" in compared.targets()


def test_saved_input_changed_in_the_function_fails_in_the_backward_only(graph_runner):
    import aot_autograd

    def function(x, w):
        y = x * w
        x.add_(1)
        return y

    for one in (function, aot_autograd.aot_function(function, graph_runner)):
        y = one(randn(3), leaf(3))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_batch_norm_statistics(agree):
    def function(x, w, b, mean, var):
        return F.batch_norm(x, mean, var, w, b, True, 0.1)

    agree(
        function, lambda: (leaf(4, 3, 5), leaf(3), leaf(3), torch.zeros(3), torch.ones(3)), calls=2
    )


def test_copy_of_a_transposed_value_keeps_the_layout(agree):
    agree(lambda x, y: (x.copy_(y.t()), x.view(-1).sin())[1], lambda: (randn(3, 4), randn(4, 3)))


def test_foreach_changes(agree):
    agree(lambda x, y: (torch._foreach_add_([x, y], 1.0), x * y)[1], lambda: (randn(3), randn(3)))


def test_out_argument(agree):
    agree(lambda x, y: (torch.add(x, y, out=y), y * 2)[1], lambda: (randn(3), randn(3)))


def test_in_place_with_promotion_keeps_the_dtype(agree):
    agree(lambda x, y: x.mul_(y), lambda: (randn(3), randn(3, dtype=torch.float64)))


def test_in_place_with_a_larger_operand_raises_as_eager(graph_runner):
    import aot_autograd

    compiled = aot_autograd.aot_function(lambda x, y: x.add_(y), graph_runner)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        compiled(randn(3), randn(2, 3))


def test_fill_zero_setitem_masked(agree):
    def function(x, m):
        x[m] = 0.0
        x[..., 1:].fill_(2)
        x[0].zero_()
        x.masked_fill_(m, 5)
        return x.cumsum(0)

    agree(function, lambda: (randn(3, 4), randn(3, 4) > 0))


def test_write_through_unfold_and_diagonal(agree):
    def function(x):
        x.diagonal().add_(1)
        x.unfold(0, 2, 2).mul_(2)
        return x * 1

    agree(function, lambda: (randn(4, 4),))


def test_write_through_a_dtype_view(agree):
    def function(x):
        low = x.view(torch.int32) * 3
        x.view(torch.int32)[0].add_(7)
        x[1:, ::2] = 5
        return low.view(torch.int64), x.sum()

    agree(function, lambda: (torch.arange(-6, 6, dtype=torch.int64).reshape(3, 4),))


def test_complex_views(agree):
    def function(x):
        x.real.mul_(2)
        torch.view_as_real(x)[..., 1].add_(1)
        return x.conj() * 2, x.imag

    agree(function, lambda: (randn(3, dtype=torch.complex64),))


# ---------------------------------------------------------------- inputs that share storage


def test_one_changed_input_overlaps_another(agree):
    def make():
        base = torch.arange(10.0)
        return base[:6], base[3:9]

    agree(lambda a, b: (a.add_(3), a * b)[1], make)


def test_same_tensor_twice(agree):
    def make():
        base = torch.arange(6.0)
        return base, base

    agree(lambda a, b: (a.add_(3), a * b)[1], make)
    agree(lambda a, b: a * b, lambda: [leaf(3)] * 2)


def test_optimizer_step_with_shared_arguments(agree):
    def step(p, m, n):
        p.mul_(1 - 0.01)
        m.lerp_(n, 0.1)
        p.addcdiv_(m, n.abs() + 1, value=-0.5)
        return p * 1

    agree(step, lambda: (randn(5), randn(5), randn(5)))
    agree(step, lambda: [randn(5)] * 2 + [randn(5)])


def test_unchanged_inputs_may_overlap_in_training(agree, tracked):
    def make():
        base = leaf(10)
        return tracked([base[:6], base[3:9]], [base])

    agree(lambda a, b: a * b, make)


# ---------------------------------------------------------------- outputs


def test_output_is_an_input_or_a_view_of_it(agree):
    agree(lambda x: (x, x.detach(), x.sin(), x.view(-1), x.t()), lambda: (leaf(3, 4),))
    agree(lambda x: (x.t(), x * 1), lambda: (randn(3, 4),))


def test_outputs_that_share_an_intermediate(agree):
    def function(v):
        h = v.tanh() * 2
        return h[:3], h[3:], h.detach()

    agree(function, lambda: (leaf(6),))


def test_same_output_twice(agree):
    def function(x):
        y = x.sin()
        return y, y, y[0]

    agree(function, lambda: (leaf(3),))


def test_equal_expressions_are_different_tensors(agree):
    def function(v):
        with torch.enable_grad():
            a = v * 3
        b = v * 3
        with torch.no_grad():
            c = v * 3
        return a, b, c

    agree(function, lambda: (leaf(4),))

    def under(v):
        with torch.no_grad():
            return function(v)

    agree(under, lambda: (leaf(4),))


def test_call_under_no_grad_with_enable_grad_inside(agree):
    def function(v):
        with torch.enable_grad():
            a = v * 3
        return a, v * 3

    with torch.no_grad():
        compared = agree(function, lambda: (leaf(4),))
    assert compared.forwards


def test_detach_in_place(agree):
    def function(x):
        y = x * 2
        keep = y + 0
        y.detach_()
        return y + 1, keep * 3

    agree(function, lambda: (leaf(4),))


def test_outputs_that_are_no_tensors_or_integers(agree):
    agree(lambda x: (None, 3, x.sin(), x.argmax(), x > 0, "text"), lambda: (leaf(3),))


def test_expanded_and_split_outputs(agree):
    agree(lambda x: x.sin().expand(3, 3), lambda: (leaf(3),))
    agree(lambda x: x.sin().split(2), lambda: (leaf(7),))
    agree(lambda x: x.sin().unbind(0), lambda: (leaf(3, 2),))
    agree(lambda x: x.split([1, 2], 1), lambda: (leaf(2, 3),))


def test_unused_input_has_no_gradient(agree):
    agree(lambda x, y: x.sin(), lambda: (leaf(3), leaf(3)))


def test_views_of_inputs_only_need_no_graph(agree):
    agree(lambda x: x[1:].t(), lambda: (leaf(3, 4),))


def test_leaf_made_inside_is_refused_by_name(graph_runner):
    import aot_autograd

    def function(v):
        w = torch.full((3,), 2.0, requires_grad=True)
        return w, v * w

    compiled = aot_autograd.aot_function(function, graph_runner)
    with pytest.raises(aot_autograd.TraceError, match="requires_grad=True"):
        compiled(torch.ones(3))


# ---------------------------------------------------------------- in-place in training


def test_in_place_on_views_in_training(agree):
    def function(x, w):
        h = x @ w
        h[:, 1:].mul_(2)
        y = h.view(-1)
        y.relu_()
        return h * h

    agree(function, lambda: (leaf(3, 4), leaf(4, 4)))


def test_overlapping_views_in_training(agree):
    def function(x, w):
        h = x * w
        a = h[0]
        b = h.t()
        a.add_(b[:, 1])
        return b.sin()

    agree(function, lambda: (leaf(4, 4), leaf(4, 4)))


def test_write_into_a_fresh_buffer(agree):
    def function(x):
        out = torch.zeros(4, 3)
        out[1:3] = x
        out[0].copy_(x[1] * 2)
        return out

    agree(function, lambda: (leaf(2, 3),))


# ---------------------------------------------------------------- autograd features


def test_custom_function_with_mark_dirty(agree):
    class AddOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, s):
            x.add_(1)
            ctx.mark_dirty(x)
            ctx.s = s
            return x

        @staticmethod
        def backward(ctx, g):
            return g * ctx.s, None

    def function(v):
        h = v * 2
        out = AddOne.apply(h, 7.0)
        return h + out

    agree(function, lambda: (leaf(3),))


def test_custom_function_saving_and_not_differentiable(agree):
    class TopTwo(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            values, indices = x.topk(2)
            ctx.save_for_backward(indices, x)
            ctx.mark_non_differentiable(indices)
            return values, indices

        @staticmethod
        def backward(ctx, g, _):
            indices, x = ctx.saved_tensors
            return torch.zeros_like(x).scatter(0, indices, g * 3)

    agree(lambda x: TopTwo.apply(x * 2), lambda: (leaf(5),))


def test_tensor_hook_inside(agree):
    def function(x):
        h = x * 2
        h.register_hook(lambda g: g * 10)
        return h.sin()

    agree(function, lambda: (leaf(3),))


def test_gradient_inside_the_function(agree):
    def function(x):
        y = (x**3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return g.sin(), y

    agree(function, lambda: (leaf(3),))


def test_autocast_inside(agree):
    def function(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y.float().sin()

    agree(function, lambda: (leaf(4, 4), leaf(4, 4)))


def test_autocast_outside(agree):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        agree(lambda x, w: (x @ w).float().sin() @ w, lambda: (leaf(4, 4), leaf(4, 4)))


def test_functional_transforms_inside(agree):
    agree(torch.func.vmap(torch.sin), lambda: (randn(3, 2),))
    agree(torch.func.grad(lambda v: (v**3).sum()), lambda: (randn(3),))


def test_retain_graph_and_two_backwards(graph_runner):
    import aot_autograd

    compiled = aot_autograd.aot_function(lambda x, w: (x @ w).tanh(), graph_runner)
    x, w = leaf(3, 3), leaf(3, 3)
    out = compiled(x, w).sum()
    out.backward(retain_graph=True)
    first = x.grad.clone()
    out.backward()
    torch.testing.assert_close(x.grad, 2 * first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


def test_saved_tensor_changed_before_backward(graph_runner):
    import aot_autograd

    compiled = aot_autograd.aot_function(lambda x, w: x * w, graph_runner)
    x, w = leaf(3), leaf(3)
    out = compiled(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensor_hooks_at_run_time(graph_runner):
    import aot_autograd

    compiled = aot_autograd.aot_function(lambda a, b: a * b, graph_runner)
    a, b = leaf(2), leaf(2)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float() * 2):
        compiled(a, b).sum().backward()
    torch.testing.assert_close(a.grad, b.detach().half().float() * 2)


@pytest.mark.parametrize("kind", ["none", "expanded", "transposed"])
def test_tangents_of_every_kind(graph_runner, kind):
    import aot_autograd

    def function(x):
        return x.sin(), x.cos()

    compiled = aot_autograd.aot_function(function, graph_runner)
    gradients = []
    for one in (function, compiled):
        torch.manual_seed(0)
        x = leaf(3, 3)
        first, second = one(x)
        if kind == "none":
            first.sum().backward()
        elif kind == "expanded":
            (first.sum() + second.mean()).backward()
        else:
            torch.autograd.backward([first, second], [randn(3, 3).t(), randn(3, 3).t()])
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_output_changed_by_the_user_afterwards(graph_runner):
    import aot_autograd

    compiled = aot_autograd.aot_function(lambda x: (x * 2, x + 1), graph_runner)
    x = leaf(3)
    one, two = compiled(x)
    one.mul_(3)
    (one.sum() + two.sum()).backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 7.0))


# ---------------------------------------------------------------- larger operators


def test_normalisation_softmax_loss(agree):
    def function(x, w, b, target):
        return F.cross_entropy(F.layer_norm(x, (5,), w, b), target)

    agree(function, lambda: (leaf(4, 5), leaf(5), leaf(5), torch.randint(0, 5, (4,))))


def test_convolution_and_pooling(agree):
    agree(
        lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1).relu(), 2),
        lambda: (leaf(1, 3, 8, 8), leaf(4, 3, 3, 3)),
    )


def test_recurrent_layer(agree):
    def function(x, h, c, *weights):
        return torch.lstm(x, (h, c), weights, True, 1, 0.0, True, False, False)[0]

    agree(
        function,
        lambda: (
            leaf(5, 2, 3),
            randn(1, 2, 4),
            randn(1, 2, 4),
            leaf(16, 3),
            leaf(16, 4),
            leaf(16),
            leaf(16),
        ),
    )


def test_attention(agree):
    agree(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: tuple(leaf(2, 2, 4, 8) for _ in range(3)),
    )


def test_complex_parameters(agree):
    agree(
        lambda x, w: (x * w).abs(),
        lambda: (leaf(3, dtype=torch.complex64), leaf(3, dtype=torch.complex64)),
    )


# ---------------------------------------------------------------- random numbers


def test_fallback_random_is_bit_equal_to_eager(agree):
    agree(
        lambda x: F.dropout(x, 0.5) + torch.rand(30) + torch.randn_like(x),
        lambda: (leaf(30),),
        exact=True,
    )


def test_seeded_random_is_repeatable_and_equal_in_backward(graph_runner):
    import aot_autograd

    compiled = aot_autograd.aot_function(lambda x: F.dropout(x, 0.5), graph_runner)
    x = leaf(1000)
    torch.manual_seed(3)
    first = compiled(x)
    second = compiled(x)
    torch.manual_seed(3)
    again = compiled(x)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    first.sum().backward()
    assert torch.equal(x.grad != 0, first != 0)
    assert 400 < (first != 0).sum() < 600


def test_random_operators_of_one_graph_are_independent(graph_runner):
    import aot_autograd

    compiled = aot_autograd.aot_function(
        lambda: (torch.rand(64), torch.rand(64), torch.randn(4096)), graph_runner
    )
    one, two, normal = compiled()
    assert not torch.equal(one, two)
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.1


@pytest.mark.parametrize("fallback_random", [True, False])
def test_checkpoint_repeats_its_random_numbers(graph_runner, fallback_random):
    from torch.utils.checkpoint import checkpoint

    import aot_autograd

    def function(x, w):
        return checkpoint(lambda a: F.dropout(a @ w, 0.5).tanh(), x, use_reentrant=False)

    compiled = aot_autograd.aot_function(
        function, graph_runner, options={"fallback_random": fallback_random}
    )
    x, w = leaf(4, 4), leaf(4, 4)
    state = torch.get_rng_state()
    out = compiled(x, w)
    assert not torch.equal(state, torch.get_rng_state())
    (gradient,) = torch.autograd.grad(out.sum(), w)
    # d/dw sum(tanh(2 * m * (x @ w))) with the mask read off the output.
    mask = (out != 0).float() * 2
    want = x.detach().t() @ (mask * (1 - out.detach() ** 2))
    torch.testing.assert_close(gradient, want)


def test_tracing_leaves_the_generator_alone(graph_runner):
    import aot_autograd

    def compile_nothing(gm, example_inputs):
        return graph_runner(gm, example_inputs)

    torch.manual_seed(1)
    eager = F.dropout(torch.ones(16), 0.5)
    torch.manual_seed(1)
    options = {"fallback_random": True}
    ours = aot_autograd.aot_function(lambda x: F.dropout(x, 0.5), compile_nothing, options=options)(
        torch.ones(16)
    )
    assert torch.equal(eager, ours)


def test_copy_from_a_view_of_memory_written_before(agree):
    def function(x, y):
        tail = x[1:]
        x.fill_(0.5)
        y.copy_(tail)
        return y.sin()

    agree(function, lambda: (randn(3, 4), randn(2, 4)))


def test_an_output_that_is_a_view_in_the_graph_can_be_changed(graph_runner):
    import aot_autograd

    def function(x, w):
        return (x @ w).view(-1)

    for make_x in (leaf, randn):
        results = []
        for one in (function, aot_autograd.aot_function(function, graph_runner)):
            torch.manual_seed(0)
            x, w, factor = make_x(2, 3), randn(3, 2), leaf(4)
            out = one(x, w)
            out.mul_(factor)
            out.sum().backward()
            results.append((out.detach(), factor.grad))
        torch.testing.assert_close(*results)


def test_an_expanded_tensor_is_filled(agree):
    def function(x):
        y = x.sin()  # autograd's own backward of this fails in eager
        y.expand(2, 3, 4).fill_(0.5)
        y[:1].expand(3, 4).zero_()
        return y * x

    agree(function, lambda: [torch.randn(3, 4)])


# ---------------------------------------------------------------- lazily conjugated tensors


@pytest.mark.parametrize("lazy", [False, True], ids=["its own values", "conjugated"])
@pytest.mark.parametrize("tracked_input", [False, True], ids=["data", "tracked"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.real,
        lambda x: x.imag[0],
        lambda x: x.conj().real,
        lambda x: x.conj()[0].imag,
        lambda x: x.conj().conj().imag,
        lambda x: (x * 2).conj().imag,
        lambda x: x.adjoint().real.t(),
        lambda x: (x.imag.mul_(2), x.conj().imag, x.sin()),
        lambda x: (x.real.mul_(2), x.conj()[0].real),
    ],
)
def test_parts_of_conjugates_are_views_as_in_eager(agree, tracked, function, lazy, tracked_input):
    def make():
        leaf = randn(3, 4, dtype=torch.complex64, requires_grad=tracked_input)
        x = leaf * 1 if tracked_input else leaf
        return tracked([x.conj() if lazy else x], [leaf] if tracked_input else [])

    agree(function, make)


def test_results_of_one_call_lead_to_one_another(graph_runner):
    """Outside as inside; more of it in `test_chained_results.py`."""

    def function(x):
        logits = x.sin()
        return logits, (logits * 2).sum()

    def inside(x):
        logits, loss = function(x)
        (gradient,) = torch.autograd.grad(loss, logits, create_graph=True)
        return gradient * 1

    x = randn(3, requires_grad=True)
    logits, loss = aot_autograd.aot_function(function, graph_runner)(x)
    outside = torch.autograd.grad(loss, logits, retain_graph=True)[0]
    torch.testing.assert_close(outside, torch.full((3,), 2.0))
    torch.testing.assert_close(torch.autograd.grad(loss, x)[0], 2 * x.detach().cos())
    found = aot_autograd.aot_function(inside, graph_runner)(x)
    torch.testing.assert_close(found.detach(), torch.full((3,), 2.0))
