"""Programs that register tensor hooks which no graph can hold: of arguments, leaves and results, or with effects.

Each takes two leaves, a tensor with a history, and a list that hooks tell what they saw; it gives tensors, some of
them with hooks, and perhaps handles.
"""

import functools
import operator

import torch

LIMIT = 0.5


def limited(gradient):
    return gradient.clamp(-LIMIT, LIMIT)


def of_a_leaf(x, w, h, seen):
    x.register_hook(lambda gradient: gradient * 2)
    return x * w


def of_a_leaf_twice(x, w, h, seen):
    x.register_hook(lambda gradient: seen.append(("first", gradient.clone())))
    y = x * w
    x.register_hook(lambda gradient: seen.append(("second", gradient.clone())) or gradient * 3)
    return y.sin(), y


def of_an_argument_with_history(x, w, h, seen):
    y = h.sin() * w
    h.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient + 1)
    return y, h * 2


def after_accumulation(x, w, h, seen):
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    return (x @ w).cos()


def of_a_written_argument(x, w, h, seen):
    h.mul_(w)
    h.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    return h.sin()


def of_an_argument_that_is_written(x, w, h, seen):
    h.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    h.mul_(w)
    return h.sin()


def of_an_argument_view_that_is_written(x, w, h, seen):
    part = h[0]
    part.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    h.mul_(w)
    return part.sin()


def written_twice(x, w, h, seen):
    h.register_hook(functools.partial(told, seen, "at first"))
    h.mul_(w)
    y = h * 3
    h.register_hook(functools.partial(told, seen, "then"))
    h.retain_grad()
    h.add_(w)
    h.register_hook(functools.partial(told, seen, "at last"))
    return y


def of_an_unused_argument(x, w, h, seen):
    h.register_hook(lambda gradient: seen.append(gradient.clone()))
    return x * 2


def of_a_result(x, w, h, seen):
    y = x * w
    y.register_hook(lambda gradient: gradient * 2)
    return y


def of_a_result_that_closes_over_others(x, w, h, seen):
    y, mask = x * w, (w > 0).to(w.dtype)
    z = mask * 3
    y.register_hook(lambda gradient: seen.append(z) or gradient * mask * z)
    return y, x.sum()


def of_a_result_used_inside(x, w, h, seen):
    y = x * w
    z = y.sin()
    y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    return y, z, y.exp()


def of_a_result_used_without_gradient(x, w, h, seen):
    y = x * w
    y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    with torch.no_grad():
        z = y.sin()
    return y, z, y.detach() * 2


def of_one_of_several_results(x, w, h, seen):
    y, z = x * w, x + w
    y.register_hook(lambda gradient: seen.append(gradient.clone()))
    return z, y.detach()


def of_a_view(x, w, h, seen):
    y = (x * w)[0]
    y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    return y


def of_a_view_used_inside(x, w, h, seen):
    base = x * w
    y = base[0]
    y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    return y.sin(), base.cos()


def of_a_view_of_an_argument(x, w, h, seen):
    y = x[1:]
    y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    return y, x * w


def of_parts(x, w, h, seen):
    first, second, _ = (x * w).unbind()
    first.register_hook(functools.partial(told, seen, "first"))
    return second, first * 2


def of_parts_without_gradient(x, w, h, seen):
    """Autograd asks hooks of one result of a node also where only another has a gradient."""
    first, second, _ = (x * w).unbind()
    first.register_hook(seen.append)
    return second, first * 2


def of_two_results(x, w, h, seen):
    y, z = x * w, x + w
    y.register_hook(functools.partial(told, seen, "y first"))
    z.register_hook(functools.partial(told, seen, "z"))
    y.register_hook(functools.partial(told, seen, "y then"))
    return y, z


def removed_again(x, w, h, seen):
    y = x * w
    handle = y.register_hook(lambda gradient: gradient * 2)
    other = x.register_hook(lambda gradient: gradient * 7)
    z = y.sin()
    handle.remove()
    other.remove()
    return z, other


def in_a_block(x, w, h, seen):
    with x.register_hook(lambda gradient: gradient * 2):
        return x * w


def handed_out(x, w, h, seen):
    y = x * w
    return y.sin(), y.register_hook(lambda gradient: gradient * 2), x.register_hook(limited)


def bound_again(x, w, h, seen):
    y, factor = x * w, 2
    y.register_hook(lambda gradient: gradient * factor)
    factor = 3
    return y.sin()


def bound_in_a_loop(x, w, h, seen):
    y = x * w
    for factor in (2, 3):
        y.register_hook(lambda gradient: gradient * factor)  # noqa: B023 - what is tested
    return y.sin()


def bound_in_the_hook(x, w, h, seen):
    count = 0

    def hook(gradient):
        nonlocal count
        count += 1
        seen.append(count)
        return gradient * count

    y = x * w
    y.register_hook(hook)
    x.register_hook(hook)
    return y.sin()


def of_a_global(x, w, h, seen):
    y = x * w
    y.register_hook(limited)
    return y.sin()


def telling(x, w, h, seen):
    y = x * w
    y.register_hook(lambda gradient: seen.append(gradient * 2))
    return y.sin()


def deciding(x, w, h, seen):
    y = x * w
    y.register_hook(lambda gradient: gradient * 2 if gradient.sum() > 0 else gradient)
    return y.sin()


def many_that_tell(x, w, h, seen):
    y = x * w
    for name in "abc":
        y = y.sin()
        y.register_hook(functools.partial(told, seen, name))
    y.register_hook(lambda gradient: gradient * 2)
    return y.exp()


def told(seen, name, gradient):
    if gradient is not None:  # that of another result of the node
        seen.append((name, gradient.clone()))


class Scaling:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, gradient):
        return gradient * self.factor

    def double(self, gradient):
        return gradient * self.factor * 2


def of_objects(x, w, h, seen):
    y = x * w
    scaling = Scaling(3)
    y.register_hook(scaling)
    y.register_hook(scaling.double)
    scaling.factor = 4
    y.register_hook(operator.neg)
    y.register_hook(seen.append)
    return y.sin()


def beside_one_in_the_graph(x, w, h, seen):
    y = x * w
    y.register_hook(lambda gradient: gradient * 2)
    z = y.sin()
    z.register_hook(lambda gradient: seen.append(gradient.clone()))
    z.register_hook(lambda gradient: gradient + 1)
    return z * y


def both_on_one(x, w, h, seen):
    y = x * w
    y.register_hook(lambda gradient: gradient * 2)
    y.register_hook(lambda gradient: seen.append(gradient.clone()))
    y.register_hook(lambda gradient: gradient + 1)
    return y.sin()


def written_before(x, w, h, seen):
    y = x * 2
    y.mul_(w)
    y.register_hook(lambda gradient: seen.append(gradient.clone()))
    return y.sin(), y


def written_before_and_after(x, w, h, seen):
    y = x * 2
    y[0] = w[1]
    y.register_hook(lambda gradient: seen.append(gradient.clone()))
    y.mul_(w)
    return y.sin()


def retained(x, w, h, seen):
    x.retain_grad()
    h.retain_grad()
    y, z = x * w, h.sin()
    y.retain_grad()
    z.retain_grad()
    return y, z.exp(), z * 2, h


def retained_beside_hooks(x, w, h, seen):
    y = x * w
    y.retain_grad()
    y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    return y, y.sin()


def retained_and_written(x, w, h, seen):
    y = x * w
    y.retain_grad()
    y.mul_(w)
    return y, y.sin()


def before_a_break(x, w, h, seen):
    y = x * w
    y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    x.register_hook(limited)
    z = y.exp()
    seen.append(float(z.sum()))
    y.register_hook(lambda gradient: seen.append("later"))
    return z * y.cos()


def before_gradients_inside(x, w, h, seen):
    y = x * w
    x.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    y.sin().sum().backward(retain_graph=True)
    return y.cos()


def after_gradients_inside(x, w, h, seen):
    y = x * w
    (found,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    x.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
    return y, found


def retained_for_gradients_inside(x, w, h, seen):
    features = (x.detach() * w.detach()).requires_grad_()
    y = features.sin().t()
    unused = features.cos()
    y.retain_grad()
    unused.retain_grad()
    (y * y).sum().backward(retain_graph=True)
    first = y.grad
    seen.append(unused.grad)
    y.exp().sum().backward()
    return first, y.grad, features.grad, (y.grad * x).sum()


def retained_beside_a_nested_hook(x, w, h, seen):
    y = x.detach().requires_grad_() * 2
    y.register_hook(lambda gradient: gradient * 3)
    y.retain_grad()
    y.sin().sum().backward()
    return y.grad, w * 2


def retained_for_gradients_inside_and_out(x, w, h, seen):
    y = x * w
    y.retain_grad()
    y.sin().sum().backward(retain_graph=True)
    return y * 2, y.grad.clone(), y


def in_a_checkpoint(x, w, h, seen):
    def inside(x):
        y = x * w
        y.register_hook(lambda gradient: seen.append(gradient.clone()))
        x.register_hook(lambda gradient: seen.append(gradient.clone()))
        return y.sin()

    return torch.utils.checkpoint.checkpoint(inside, x, use_reentrant=False)


def in_autocast(x, w, h, seen):
    with torch.autocast("cpu"):
        y = x @ w
        y.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 2)
        z = y @ w
    return y.float(), z


WHOLE = [
    *(of_a_leaf, of_a_leaf_twice, of_an_argument_with_history, after_accumulation),
    *(
        of_a_written_argument,
        of_an_argument_that_is_written,
        written_twice,
        of_an_unused_argument,
        of_a_result,
    ),
    *(of_a_result_that_closes_over_others, of_a_result_used_inside),
    *(of_a_result_used_without_gradient, of_one_of_several_results, of_a_view),
    *(of_a_view_used_inside, of_a_view_of_an_argument, of_parts, removed_again, in_a_block),
    *(handed_out, bound_again, bound_in_a_loop, bound_in_the_hook, of_a_global, telling, deciding),
    *(many_that_tell, of_objects, beside_one_in_the_graph, both_on_one, written_before),
    *(written_before_and_after, retained, retained_beside_hooks, retained_and_written),
    retained_for_gradients_inside,
    *(after_gradients_inside, in_autocast, of_two_results),
]
BROKEN = [
    (of_an_argument_view_that_is_written, "is written"),
    (before_a_break, "needs a tensor's value"),
    (before_gradients_inside, "after a tensor hook was registered"),
    (retained_beside_a_nested_hook, "behind a hook"),
    (retained_for_gradients_inside_and_out, "gradients are computed in the same call"),
    (in_a_checkpoint, "checkpointed"),
]


def left_by(function, seed, *, several=True, create_graph=False):
    """Everything that a call and its backward leave behind, in its order, as a list.

    The caller has hooks of its own: of all results, or of one that has no other beside it.
    """
    torch.manual_seed(seed)
    x, w = (torch.randn(3, 3, requires_grad=True) for _ in "xw")
    h = x * torch.randn(3, 3)
    seen = []
    found = function(x, w, h, seen)
    found = found if isinstance(found, tuple) else (found,)
    outputs = [one for one in found if isinstance(one, torch.Tensor)]
    left = [*(type(one).__name__ for one in found), *outputs]
    grown = [one for one in outputs if one.requires_grad]
    for at, one in enumerate(grown if several or len(grown) == 1 else []):
        one.register_hook(functools.partial(told, seen, f"the user's {at}"))
    for one in (grown[:1], grown, grown):
        weights = [torch.linspace(0.5, 1.5, o.numel(), dtype=o.dtype).view(o.shape) for o in one]
        torch.autograd.backward(one, weights, retain_graph=True, create_graph=create_graph)
        left += [x.grad, w.grad, len(seen)]
        for handle in found:
            if isinstance(handle, torch.utils.hooks.RemovableHandle):
                handle.remove()
    for one in (*outputs, h):
        left.append(one.retains_grad)
        if one.is_leaf or one.retains_grad:
            left.append(one.grad)
    return [*left, *seen]


def assert_alike(found, wanted, **tolerances):
    """The same things in the same order, tensors of the same numbers."""
    assert type(found) is type(wanted)
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_alike(one, other, **tolerances)
    elif isinstance(wanted, torch.Tensor):
        assert found.requires_grad is wanted.requires_grad
        torch.testing.assert_close(found, wanted, **tolerances)
    elif isinstance(wanted, float):
        assert abs(found - wanted) < 1e-4
    else:
        assert found == wanted
