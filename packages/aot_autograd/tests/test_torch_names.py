"""Every private torch name that `_torch.py` uses does what this package takes it to do."""

import pytest
import torch
from torch import randn
from torch.fx.experimental.proxy_tensor import make_fx

from aot_autograd import _torch

aten = torch.ops.aten


def test_composite_kernels_are_told_apart():
    assert _torch.has_composite_implicit(aten.linear.default)
    assert not _torch.has_composite_implicit(aten.mm.default)
    assert _torch.has_composite_explicit(aten._foreach_add_.Scalar)


def test_composite_kernels_run():
    x, w = randn(2, 3), randn(4, 3)
    torch.testing.assert_close(
        _torch.run_composite_implicit(aten.linear.default, (x, w), {}), x @ w.t()
    )
    y = [torch.ones(2)]
    _torch.run_composite_explicit(aten._foreach_add_.Scalar, (y, 1.0), {})
    assert y[0].tolist() == [2.0, 2.0]


def test_storage_identity_is_shared_by_views_only():
    x = randn(4)
    assert _torch.storage_identity(x) == _torch.storage_identity(x[1:])
    assert _torch.storage_identity(x) != _torch.storage_identity(x.clone())


def test_version_counters():
    x = randn(3)
    _torch.increment_version(x)
    assert x._version == 1
    with _torch.preserve_version(x):
        x.add_(1)
    assert x._version == 1


def test_keeps_graph_is_known_inside_a_backward():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            seen.append(_torch.keeps_graph())
            return g

    x = randn(2).requires_grad_()
    y = Look.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert seen == [True, False]


def test_several_views_refuse_changes():
    import pytest

    x = randn(4).requires_grad_() * 1
    view = x[:2]
    assert not _torch.is_one_of_several_views(view)
    assert not _torch.is_made_without_grad(view)
    with torch.no_grad():
        assert _torch.is_made_without_grad(x[:2])
    assert _torch.is_one_of_several_views(x.split(2)[0])
    _torch.mark_several_views(view)
    with pytest.raises(RuntimeError, match="multiple views"):
        view.add_(1)


def test_recurrent_layers_are_composite_inside():
    enabled = torch._C._get_mkldnn_enabled()
    with _torch.composite_recurrent_layers():
        assert not torch._C._get_mkldnn_enabled()
    assert torch._C._get_mkldnn_enabled() == enabled


def test_hooks_of_the_caller_are_off_inside():
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        with _torch.without_saved_tensor_hooks(lambda tensor: tensor):
            randn(2).requires_grad_().exp()
        assert not seen
        randn(2).requires_grad_().exp()
    assert seen


def test_grad_mode():
    _torch.set_grad_enabled(False)
    try:
        assert not torch.is_grad_enabled()
    finally:
        _torch.set_grad_enabled(True)


def test_gradients_of_is_autograd_grad():
    x, unused = (torch.randn(3, requires_grad=True) for _ in range(2))
    tangent = torch.randn(3)
    ours = _torch.gradients_of([x * x], [x, unused], [tangent])
    torch.testing.assert_close(ours[0], 2 * x.detach() * tangent)
    assert ours[1] is None


def test_apply_without_transforms_is_apply():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    x = torch.randn(3, requires_grad=True)
    result = _torch.apply_without_transforms(Double)(x)
    result.sum().backward()
    assert torch.equal(result, x * 2)
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_a_backward_called_directly_is_a_backward():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x)
            ctx.factor = factor
            return x * x * factor

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 2 * x * ctx.factor * gradient, None

    name = type(Scale.apply(torch.ones(1, requires_grad=True), 1).grad_fn).__name__
    _torch.call_backward_directly(Scale, "factor")
    x = torch.randn(3, requires_grad=True)
    result = Scale.apply(x, 3)
    node = result.grad_fn
    assert type(node).__name__ == name
    assert not vars(node)  # the field has a place of its own
    (gradient,) = torch.autograd.grad(result.sum(), x, retain_graph=True)
    assert torch.equal(gradient, 6 * x)
    assert torch.equal(node.apply(torch.ones(3))[0], 6 * x)


def test_autograd_numbers_its_nodes_and_tells_which_one_runs():
    seen = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(_torch.current_autograd_node())
            return gradient

    number = _torch.next_autograd_number()
    y = Watched.apply(randn(2, requires_grad=True))
    assert _torch.next_autograd_number() == number + 1
    y.sum().backward()
    assert seen == [number]
    assert _torch.current_autograd_node() is None


def test_a_backward_has_a_number_and_tells_what_it_runs():
    seen = []
    x, y = randn(2, requires_grad=True), randn(2, requires_grad=True)
    above, other = x * 2, y * 2

    def hook(gradient):
        runs = [_torch.runs_in_this_backward(one.grad_fn) for one in (above, other)]
        seen.append((_torch.current_backward(), *runs))

    result = above.sin()
    result.register_hook(hook)
    result.sum().backward(retain_graph=True)
    result.sum().backward()
    (first, *runs), (second, *_) = seen
    assert runs == [True, False]
    assert -1 < first != second
    assert _torch.current_backward() == -1


def test_nodes_show_what_they_saved():
    """Under the names that `connections.py` looks for."""
    x = randn(2, requires_grad=True)
    assert any(name.startswith("_raw_saved_") for name in dir(type((x * x).grad_fn)))
    assert (x * x).grad_fn._saved_self is not None
    assert (x + 1).grad_fn.__class__.__name__ == "AddBackward0"
    assert not any(name.startswith("_raw_saved_") for name in dir(type((x + 1).grad_fn)))


def test_a_gradient_carries_what_python_put_on_it():
    """Through the engine, from one function to the next; and the engine lets go of it."""
    seen = []

    class Token(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, tensor):
            return tensor.new_empty(())

        @staticmethod
        def backward(_ctx, ticket):
            seen.append(ticket.note)
            return torch.ones(2)

    class Result(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, _token):
            return torch.ones(2)

        @staticmethod
        def backward(_ctx, _gradient):
            ticket = torch.empty(())
            ticket.note = "a note"
            return ticket

    Result.apply(Token.apply(randn(2, requires_grad=True))).sum().backward()
    assert seen == ["a note"]


def test_shared_version_counters_are_told_and_left_alone():
    x = randn(2)
    assert _torch.shares_version(x, x.detach())
    assert not _torch.shares_version(x, x.data)
    assert x._version == 0


def test_the_running_checkpoint_is_seen():
    from torch.utils.checkpoint import checkpoint

    seen = []

    def inside(x):
        seen.append(_torch.checkpoint_hook())
        return x.sin()

    checkpoint(inside, randn(2, requires_grad=True), use_reentrant=False)
    assert seen[0] is not None
    assert _torch.checkpoint_hook() is None


def test_gradients_arrive_by_accumulation_too():
    x = randn(2, requires_grad=True)
    (gradient,) = _torch.accumulated_gradients_of([x.sin()], [x], [torch.ones(2)])
    torch.testing.assert_close(gradient, x.detach().cos())


def test_a_view_is_made_again_of_another_base():
    base = randn(2, 3)
    make = _torch.view_maker(base.t()[1:])
    other = torch.ones(2, 3, requires_grad=True) * 2
    view = make(other)
    assert view.shape == (2, 2)
    assert view._base is other
    assert view.requires_grad


def test_sole_owners_of_memory():
    one = torch.ones(3)
    assert _torch.is_sole_owner(one)
    alias = one.detach()
    assert not _torch.is_sole_owner(one)
    del alias
    assert _torch.is_sole_owner(one)


def test_tensors_of_inference_mode_count_no_changes():
    with torch.inference_mode():
        one = torch.ones(3)
        _torch.increment_version(one)
        with _torch.preserve_version(one):
            one.add_(1)
        assert _torch.shares_version(one, one.view(3))
        assert not _torch.shares_version(one, OUTSIDE)


OUTSIDE = torch.ones(3)


def test_versions_of_what_counts_none_are_zero():
    one = torch.ones(3)
    one.add_(1)
    assert _torch.version_of(one) == 1
    with torch.inference_mode():
        assert _torch.version_of(torch.ones(3).add_(1)) == 0


@pytest.mark.parametrize("lazy", [torch.clone, torch.conj, torch._neg_view])
def test_an_alias_of_a_tensor_of_inference_mode_is_saved(lazy):
    with torch.inference_mode():
        one = lazy(torch.randn(2, 3, dtype=torch.complex64).t()[1:])
    alias = _torch.saveable_alias(one)
    assert not alias.is_inference()
    assert alias.data_ptr() == one.data_ptr()
    assert alias.stride() == one.stride()
    torch.testing.assert_close(alias, one.clone())
    (torch.ones(2, 2, requires_grad=True) * alias).abs().sum().backward()


def test_libraries_are_where_they_were_loaded_from():
    import os

    assert all(map(os.path.exists, _torch.library_paths()))


def test_saved_tensors_are_there_whatever_their_version():
    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.sin()
            ctx.save_for_backward(x, y)
            return y, x * 2

        @staticmethod
        def backward(ctx, _, gradient):
            saved = _torch.saved_without_check(ctx)
            seen.append([_torch.unchecked(one) for one in saved])
            ctx.maybe_clear_saved_tensors()
            assert _torch.saved_without_check(ctx) is None
            return gradient

    seen = []
    x = randn(2).requires_grad_()
    result, other = Save.apply(x)
    with torch.no_grad():
        result.fill_(3)
    other.sum().backward()
    [[saved, changed]] = seen
    assert saved is x
    assert changed.tolist() == [3, 3]
    assert changed._version == result._version == 1
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        _, other = Save.apply(x)
    other.sum().backward()
    assert seen[1] == [None, None]


def many_of(*shape):
    """A tensor for each kind of transform that stands for many, and what each is made of."""
    tensor = randn(*shape)
    return [(tensor, _torch.add_dimension(tensor, (newer, 1))) for newer in (False, True)]


def test_tensors_that_stand_for_many_are_told_apart():
    for (whole, many), newer in zip(many_of(2, 3), (False, True), strict=True):
        assert _torch.has_memory(whole)
        assert not _torch.has_memory(many)
        assert many.shape == (3,)
        assert _torch.stands_for_many(many) == _torch.belongs_to_transform(many) == newer
        assert _torch.stands_for_many_to_autograd(many) != newer
    assert _torch.level_of(many) == 1


def test_what_they_are_made_of_is_found():
    (whole, older), (other, newer) = many_of(2, 3)
    assert torch.equal(_torch.dimension_of_autograd(older, 1, 0), whole)
    assert torch.equal(_torch.dimension_of_autograd(older, 1, 1), whole.t())
    assert _torch.dimension_of_autograd(older, 2, 0) is None
    assert torch.equal(_torch.dimension_in_front(newer), other)
    for length in (0, 1):
        (_, none), _ = many_of(length, 3)
        assert _torch.dimension_of_autograd(none, 1, 0).shape == (length, 3)
        assert _torch.dimension_of_autograd(none, 2, 0) is None


def test_outside_of_transforms_there_are_none():
    seen = []

    def inner(row):
        assert _torch.transforms_active()
        with _torch.outside_of_transforms():
            seen.append((_torch.transforms_active(), _torch.dimensions_of_autograd()))
            torch.rand(1)  # which a map refuses
        seen.append((_torch.transforms_active(), _torch.levels_of_gradients()))
        return row * 2

    x = randn(2, 3)
    torch.testing.assert_close(torch.func.vmap(inner)(x), x * 2)
    torch.func.grad(lambda x: inner(x).sum())(x)
    assert seen == [(False, 0), (True, []), (False, 0), (True, [1])]
    assert not _torch.transforms_active()
    torch._C._vmapmode_increment_nesting()
    try:
        with _torch.outside_of_transforms():
            assert _torch.dimensions_of_autograd() == 0
        assert _torch.dimensions_of_autograd() == 1
    finally:
        torch._C._vmapmode_decrement_nesting()
    assert _torch.dimensions_of_autograd() == 0


def test_autograd_says_what_it_does_not_save_or_hand_out():
    tensor = torch.zeros(3)
    context, _kept = _torch.refuse_to_save([tensor])
    assert context.saved_tensors[0] is tensor
    with torch.inference_mode():
        other = torch.zeros(3)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
        _torch.refuse_to_save([tensor, other])
    tensor.add_(1)
    with pytest.raises(RuntimeError, match="at version 1; expected version 0"):
        _torch.refuse_to_hand_out(tensor, 0)
    assert tensor._version == 1


def test_a_hook_of_a_result_is_told_to_the_node():
    """The node's class notes from there which results have hooks."""
    told = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_ctx, x):
            return x * 2

        @staticmethod
        def backward(_ctx, gradient):
            return gradient * 2

    class Told:
        __slots__ = ()

        def _register_hook_dict(self, tensor):
            told.append(tensor._backward_hooks)
            super()._register_hook_dict(tensor)

    _torch.call_backward_directly(Double, bases=(Told,))
    result = Double.apply(torch.ones(3, requires_grad=True))
    result.register_hook(told.append)
    assert told == [result._backward_hooks]
    result.sum().backward()
    assert len(told) == 2


def test_what_functionalize_stands_for_is_what_was_written():
    def function(tensor):
        assert _torch.is_functional(tensor)
        tensor.view(-1).add_(1)
        inside = _torch.inside_of_functional(tensor)
        assert not _torch.is_functional(inside)
        assert inside.tolist() == [2, 2]
        made = _torch.functional_in(inside, _torch.level_of(tensor))
        assert _torch.level_of(made) == _torch.level_of(tensor)
        return inside

    assert not _torch.is_functional(torch.ones(2))
    assert torch.func.functionalize(function)(torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("pre_dispatch", [False, True])
def test_make_fx_records_operators(pre_dispatch):
    def function(tensor):
        seen.append((_torch.records_operators(), _torch.dispatch_modes() > 0))
        return tensor

    seen = []
    make_fx(function, pre_dispatch=pre_dispatch)(torch.ones(2))
    assert seen == [(True, not pre_dispatch)]
    assert not _torch.records_operators()
    assert _torch.dispatch_modes() == 0
