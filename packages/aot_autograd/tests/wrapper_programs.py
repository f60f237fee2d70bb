"""Programs that write tensors made of tensors in place, or mix them with plain ones, in training; and what each leaves.

They are told how to make a wrapper (`two(*shape)`), so that tests of several packages run them on classes of their own.
A case gives the leaves, and the inputs made of them; gradients are those of the leaves.
"""

import torch
from torch import randn
from torch.utils._pytree import tree_leaves


def multiplied(x):
    x.mul_(2)
    return x + 1


def added(x, p):
    x.add_(p)
    return x * p


def written_twice(x, y):
    x.add_(y)
    first = x.sin()
    x.mul_(first)
    y.mul_(3)
    return x * y, first


def returned(x):
    return x.mul_(2)


def only_written(x):
    x.exp_()


def one_row(x):
    x[0] = 1
    return x * x


def a_row_of_another(x, y):
    x[1] = y[0]
    return x.sin()


def copied(x, y):
    x.copy_(y.sin())
    return x * 2


def zeroed(x):
    x.zero_()
    return x + 1


def through_a_view(x):
    row = x[0]
    row.mul_(3)
    return x.sin(), row


def through_a_view_from_before(x):
    turned = x.t()
    x.mul_(2)
    turned.add_(1)
    return turned, x * 2


def turned(x):
    return x.t_() + 1


def turned_and_written(x, y):
    y.mul_(2)
    y.transpose_(0, 1)
    x.t_()
    x.mul_(y)
    return x.sin(), y.cos()


def turned_without_grad(x, p):
    with torch.no_grad():
        x.t_()
    return x * p, p.sin()


def without_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x * 3


def without_grad_then_with(x, p):
    with torch.no_grad():
        x.mul_(2)
    x.add_(p)
    return x * 3, x.detach(), x.detach()[0]


def with_grad_inside(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            x.mul_(3)
            z = x.sin()
    return y, z


def of_one_memory(x, other):
    x.mul_(2)
    other.add_(1)
    return x * 3, other + x


def a_part_beside_it(x):
    x.mul_(2)
    part = x.left * 2
    return x.sin(), part, x.left


def a_part_written(x):
    x.left.add_(1)
    return x * x


def saved_before(x):
    y = x * x
    x.add_(1)
    return y


def detached(x):
    y = x * 2
    x.detach_()
    x.add_(1)
    return y


def views_of_results(x):
    y = x * 2
    rows, z = y.t()[0:2], x + 1
    first, second = z.split([1, 2])
    return rows, y, first, second


def views_under_no_grad(x):
    x.mul_(2)
    with torch.no_grad():
        row = x[0]
    return row, x[1]


def forbidden_view(x):
    with torch.no_grad():
        row = x[0]
    x.mul_(2)
    return row, x[1]


def mixed(x, p):
    return (x * p).exp(), p.sin(), p * x


def plain_gradient(x):
    return x + 1


def product(x, p):
    return p @ x, (x @ p).sin()


def _grown(*leaves):
    return list(leaves), [one * 1 for one in leaves]


def _leaf(make, *shape):
    return make(*shape).requires_grad_()


def one(two):
    return _grown(_leaf(two, 3, 3))


def both(two):
    return _grown(_leaf(two, 3, 3), _leaf(two, 3, 3))


def beside_constant(two):
    leaves, inputs = one(two)
    return leaves, [*inputs, randn(3, 3)]


def beside_plain(two):
    return _grown(_leaf(two, 3, 3), _leaf(randn, 3, 3))


def beside_leaf(two):
    leaf = _leaf(two, 3, 3)
    plain = _leaf(randn, 3, 3)
    return [leaf, plain], [leaf * 1, plain]


def constant_beside_plain(two):
    leaf = _leaf(randn, 3, 3)
    return [leaf], [two(3, 3), leaf]


def a_view(two):
    leaf = _leaf(two, 4, 3, 3)
    base = leaf * 1
    return [leaf], [base[1]], base


def beside_itself_detached(two):
    leaf = _leaf(two, 3, 3)
    value = leaf * 1
    return [leaf], [value, value.detach()]


def without_gradients_detached(two):
    value = two(3, 3)
    return [], [value, value.detach()]


def twice(two):
    leaf = _leaf(two, 3, 3)
    value = leaf * 1
    return [leaf], [value, value]


def leaves(two):
    values = [_leaf(two, 3, 3), _leaf(randn, 3, 3)]
    return values, values


def leaf(two):
    value = _leaf(two, 3, 3)
    return [value], [value]


def no_gradients(two):
    return [], [two(3, 3)]


WRITES = [
    (multiplied, one),
    (multiplied, a_view),
    (multiplied, no_gradients),
    (added, beside_constant),
    (added, both),
    (added, twice),
    (written_twice, both),
    (returned, one),
    (returned, a_view),
    (only_written, one),
    (one_row, one),
    (one_row, a_view),
    (a_row_of_another, both),
    (copied, both),
    (zeroed, one),
    (zeroed, a_view),
    (through_a_view, one),
    (through_a_view, a_view),
    (through_a_view_from_before, one),
    (turned, one),
    (turned, no_gradients),
    (turned_and_written, both),
    (turned_without_grad, constant_beside_plain),
    (without_grad, one),
    (without_grad, leaf),
    (without_grad_then_with, beside_constant),
    (with_grad_inside, one),
    (detached, one),
    (views_under_no_grad, one),
    (views_of_results, one),
    (of_one_memory, beside_itself_detached),
    (of_one_memory, without_gradients_detached),
    (a_part_beside_it, one),
    (a_part_written, one),
]
MIXED = [
    (mixed, leaves),
    (mixed, beside_plain),
    (added, beside_plain),
    (added, beside_leaf),
    (added, constant_beside_plain),
    (product, leaves),
    (plain_gradient, leaf),
    (multiplied, one),
]
RAISING = [(forbidden_view, one), (multiplied, leaf), (one_row, leaf), (saved_before, one)]


def names(cases):
    return [f"{function.__name__}-{make.__name__}" for function, make in cases]


def tangents_of(outputs, kind, two):
    """A gradient for each output: of its own kind, or a plain one for each."""
    return [two(*one.shape) if kind == "wrapper" else randn(one.shape) for one in outputs]


def outcome(function, make, two, seed=0, tangents=None):
    """What a call and its backward leave: (tensors, facts); the error's text where eager raises."""
    torch.manual_seed(seed)
    leaves, inputs, *more = make(two)
    facts = []
    try:
        outputs = [one for one in tree_leaves(function(*inputs)) if isinstance(one, torch.Tensor)]
        targets = [one for one in (*outputs, *inputs, *more) if one.grad_fn is not None]
        for one in (*outputs, *inputs, *more):
            facts.append((type(one), one._version, one.requires_grad, one.is_leaf))
            facts.append([one is other for other in (*outputs, *inputs)])
            facts.append([one._base is other for other in (*outputs, *inputs, *more)])
        if tangents is None:
            given = [torch.ones_like(one) for one in targets]
        else:
            given = tangents_of(targets, tangents, two)
        for target, gradient in zip(targets, given, strict=True):
            target.backward(gradient, retain_graph=True)
    except RuntimeError as error:
        return [], [str(error).split(" at version")[0].split(":")[0]]
    gradients = [one.grad for one in leaves]
    facts += [type(one) for one in gradients]
    return [*outputs, *inputs, *more, *gradients], facts
