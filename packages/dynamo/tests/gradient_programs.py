"""Programs that compute gradients inside of what is compiled; each gives what to compare.

A program takes what compiles a function; `lambda function: function` gives eager's results.
"""

import torch


def field(*shape):
    count = torch.Size(shape).numel()
    return torch.linspace(-1, 1, count).reshape(shape)


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def grads(module):
    return [p.grad for p in module.parameters()]


def of_a_copy(compiler):
    def call(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad((y**3).sum(), y)
        return gradient + x, gradient.requires_grad

    compiled = compiler(call)
    with torch.no_grad():
        inside = compiled(field(4))
    return inside, compiled(field(4))


def twice(compiler):
    def call(x):
        y = x.clone().requires_grad_()
        (first,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), [y], retain_graph=True)
        return first, second, first.requires_grad, first.is_leaf

    compiled = compiler(call)
    first, second, *rest = compiled(field(4))
    first.sum().backward()
    return first.requires_grad, first.is_leaf, first.detach(), second, rest


def gradient_penalty(compiler):
    model = net()

    def call(real, fake):
        mixed = (0.3 * real + 0.7 * fake).detach().requires_grad_(True)
        score = model(mixed)
        (gradient,) = torch.autograd.grad(
            outputs=score,
            inputs=mixed,
            grad_outputs=torch.ones_like(score),
            create_graph=True,
            retain_graph=True,
            only_inputs=True,
        )
        return ((gradient.norm(2, dim=1) - 1) ** 2).mean() + score.mean()

    loss = compiler(call)(field(5, 3), field(5, 3).flip(0))
    loss.backward()
    return loss.detach(), grads(model)


def forces(compiler):
    """An argument that is made to require a gradient, as models of molecules do."""
    model = net()

    def call(positions, training):
        positions.requires_grad_(True)
        energy = model(positions).sum()
        (force,) = torch.autograd.grad(energy, positions, create_graph=training)
        return energy, -force

    compiled = compiler(call)
    found = []
    for training in (True, False, True):
        positions = field(4, 3)
        energy, force = compiled(positions, training)
        found += [positions.requires_grad, energy.detach(), force.detach(), force.requires_grad]
        if training:
            (energy + force.square().sum()).backward()
            found.append(positions.grad)
    return found, grads(model)


def argument_used_again(compiler):
    def call(x):
        x.requires_grad_()
        return x * 2

    x = field(3)
    compiled = compiler(call)
    out = compiled(x)
    again = compiled(x)
    (out.sum() + again.sum()).backward()
    return x.grad, x.is_leaf, out.requires_grad


def backward_of_a_copy(compiler):
    def call(x):
        y = x.detach().clone().requires_grad_(True)
        assert y.grad is None
        (y.sin() * 2).sum().backward()
        first = y.grad.clone()
        (y * y).sum().backward()
        return first, y.grad * 2

    return compiler(call)(field(4))


def a_leaf_leaves(compiler):
    def call(x):
        y = (x * 2).detach()
        y.requires_grad = True
        (y**2).sum().backward()
        return y

    y = compiler(call)(field(4))
    (y * 3).sum().backward()
    return y.detach(), y.grad, y.is_leaf


def training_step(compiler):
    """Forward, backward and the optimizer in one function."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = compiler(step)
    losses = [compiled(field(6, 3), field(6, 1).cos()) for _ in range(4)]
    return losses, [p.detach() for p in model.parameters()], grads(model)


def accumulated(compiler):
    """What is added to gradients that are there stays in the same tensors."""
    model = net()
    model(field(2, 3)).sum().backward()
    before = grads(model)

    def call(x):
        model(x).square().sum().backward()
        return model[0].weight.grad.norm()

    compiled = compiler(call)
    found = [compiled(field(6, 3)), compiled(field(6, 3))]
    return found, grads(model), [a is b for a, b in zip(before, grads(model), strict=True)]


def of_parameters(compiler):
    """Per-layer gradients of a loss that is used again."""
    model = net()

    def call(x):
        loss = model(x).square().mean()
        found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        return loss, [g.norm() for g in found]

    loss, norms = compiler(call)(field(6, 3))
    loss.backward()
    return loss.detach(), norms, grads(model)


def unused(compiler):
    weight, other = field(3).requires_grad_(), field(2).requires_grad_()

    def call(x):
        return torch.autograd.grad((weight * x).sum(), (weight, other), allow_unused=True)

    return compiler(call)(field(3))


def weighted(compiler):
    def call(x, weight):
        y = x.detach().requires_grad_()
        torch.autograd.backward([y * 2, y.sin()], [weight, None if weight is None else weight * 2])
        return y.grad

    return compiler(call)(field(3), field(3) + 2)


def with_history(compiler):
    """The argument has a history of its own, which the backward of the result goes on with."""
    leaf = field(3).requires_grad_()

    def call(x):
        (gradient,) = torch.autograd.grad(x.sin().sum(), x, create_graph=True)
        return gradient * 2

    call = compiler(call)
    call(leaf * 2).sum().backward()
    return leaf.grad


def of_a_changed_argument(compiler):
    """The argument has a history, and the call has changed it since: nothing before the call leads to it."""
    leaf, other = field(3).requires_grad_(), field(3).requires_grad_()

    def call(x, other):
        x.mul_(other)
        (gradient,) = torch.autograd.grad((x.sin() * other).sum(), x, retain_graph=True)
        return gradient * 1

    given = leaf * 2
    return compiler(call)(given, other), given.detach()


def required_late(compiler):
    def call(x):
        before = x * 2
        x.requires_grad_()
        return before, x * 3

    before, after = compiler(call)(field(3))
    return before.requires_grad, after.requires_grad


def required_late_and_used(compiler):
    """What was computed before has no gradient, though it is of the same memory."""

    def call(x, w):
        x.mul_(2)
        before = x * w
        total = x.sum()
        x.requires_grad = True
        loss = (x * before.detach() * total).sin().sum()
        loss.backward()
        return before, total, x.grad, (x * before).exp()

    x, w = field(3), field(3).requires_grad_()
    before, total, first, after = compiler(call)(x, w)
    before.sum().backward(retain_graph=True)
    after.sum().backward()
    return before.detach(), total, total.requires_grad, first, x.grad, w.grad, x._version


PROGRAMS = (
    of_a_changed_argument,
    of_a_copy,
    twice,
    gradient_penalty,
    forces,
    argument_used_again,
    backward_of_a_copy,
    a_leaf_leaves,
    training_step,
    accumulated,
    of_parameters,
    unused,
    weighted,
    with_history,
    required_late,
    required_late_and_used,
)


# -- where the gradient's way leads through what lies before the call: one break ------------------------


def through_the_past(compiler):
    leaf = field(3).requires_grad_()

    def call(x, start):
        (gradient,) = torch.autograd.grad((x * start).sum(), start, retain_graph=True)
        return gradient + 1

    return compiler(call)(leaf * 2, leaf)


def backward_through_the_past(compiler):
    leaf = field(3).requires_grad_()

    def call(x):
        x.sin().sum().backward()
        return x + 1

    out = compiler(call)(leaf * 2)
    return out.detach(), leaf.grad


def hooked_leaf(compiler):
    leaf, seen = field(3).requires_grad_(), []
    leaf.register_hook(lambda g: seen.append(g.clone()))

    def call(x):
        (leaf * x).sum().backward()
        return x + 1

    return compiler(call)(field(3)), seen, leaf.grad


def leaf_and_result(compiler):
    def call(x):
        y = x.detach().requires_grad_()
        return y, y * 2

    y, out = compiler(call)(field(3))
    out.sum().backward()
    return y.grad


def required_beside_a_view(compiler):
    def call(x):
        row = x[0]
        x.requires_grad_()
        return row * 2, x * 3

    found = compiler(call)(field(3))
    return [one.requires_grad for one in found]


BREAKING = (
    through_the_past,
    backward_through_the_past,
    hooked_leaf,
    leaf_and_result,
    required_beside_a_view,
)
