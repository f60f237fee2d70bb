"""Modules with backward hooks, trained for some steps; each program gives what its hooks saw and the gradients.

A program is called with what compiles a module; `lambda module: module` gives eager's record.
"""

import torch
from torch.nn.modules import module as torch_module


def seen(tensors):
    """Gradients as a hook gets them, to compare."""
    return tuple(None if t is None else (tuple(t.shape), round(t.sum().item(), 4)) for t in tensors)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x, flag=True):
        return x + self.second(torch.relu(self.first(x))) if flag else x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x, True)
        return self.head(input=x)


def steps(net, compiled, log, *, times=2, after=None):
    generator = torch.Generator().manual_seed(0)
    for step in range(times):
        for wanted in (False, True):
            x = torch.randn(3, 4, generator=generator, requires_grad=wanted)
            loss = compiled(x).sum()
            loss.backward(retain_graph=True)
            log.append("again")
            loss.backward()
            log.append(seen([x.grad, *(p.grad for p in net.parameters())]))
            net.zero_grad()
        if after is not None:
            after(step)
    return log


def seeded(kind):
    torch.manual_seed(0)
    return kind()


def on_every_module(compiler):
    net, log = seeded(Net), []
    names = {module: name for name, module in net.named_modules()}
    handles = [
        module.register_full_backward_hook(
            lambda m, i, o: log.append(("after", names[m], seen(i), seen(o)))
        )
        for module in net.modules()
        if not isinstance(module, torch.nn.ModuleList)
    ]
    for module in (net, net.blocks[0], net.head):
        module.register_full_backward_pre_hook(
            lambda m, o: log.append(("before", names[m], seen(o)))
        )

    def after(step):
        if step == 0:
            handles.pop(2).remove()
            handles.pop().remove()

    return steps(net, compiler(net), log, times=3, after=after)


def replaced_gradients(compiler):
    net, log = seeded(Net), []
    net.blocks[0].register_full_backward_pre_hook(lambda _, o: tuple(g * 2 for g in o))
    net.blocks[1].register_full_backward_hook(
        lambda _, i, __: tuple(None if g is None else g.clamp(-0.5, 0.5) for g in i)
    )
    net.blocks[0].first.register_full_backward_hook(lambda _, i, o: log.append((seen(i), seen(o))))
    return steps(net, compiler(net), log)


class Counting:
    """A hook that is an object with state, as tools register them."""

    def __init__(self):
        self.calls = 0
        self.norms = {}

    def __call__(self, module, grad_input, grad_output):
        self.calls += 1
        self.norms[type(module).__name__, self.calls] = seen(grad_input + grad_output)

    def method(self, _module, _grad_output):
        self.calls += 10


def state_of_hooks(compiler):
    net, counting = seeded(Net), Counting()
    net.blocks[1].register_full_backward_hook(counting)
    net.blocks[1].register_full_backward_pre_hook(counting.method)
    log = steps(net, compiler(net), [])
    return log, counting.calls, list(counting.norms.items())


class Several(torch.nn.Module):
    """Takes numbers and several tensors, one of them without a gradient; gives a tuple."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, factor, x, mask, y=None):
        total = x * self.scale * factor + mask
        return total, total.sum(), (total > 0) if y is None else total * y


class Caller(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.several = Several()

    def forward(self, x):
        first, second, positive = self.several(3, x, torch.ones(4))
        other, _, _ = self.several(2, x.detach(), torch.ones(4), y=x)
        return torch.where(positive, first, 0.0) + (other if x.requires_grad else second)


def several_tensors(compiler):
    net, log = seeded(Caller), []
    net.several.register_full_backward_hook(lambda _, i, o: log.append((seen(i), seen(o))))
    net.several.register_full_backward_pre_hook(lambda _, o: log.append(seen(o)))
    net.several.register_forward_hook(lambda _, a, __: log.append(len(a)))
    return steps(net, compiler(net), log)


def hooks_of_all_modules(compiler):
    net, log = seeded(Net), []
    handles = [
        torch_module.register_module_full_backward_hook(
            lambda m, i, o: log.append((type(m).__name__, seen(i), seen(o)))
        ),
        torch_module.register_module_full_backward_pre_hook(
            lambda m, o: log.append((type(m).__name__, seen(o)))
        ),
    ]
    try:
        return steps(net, compiler(net), log)
    finally:
        for handle in handles:
            handle.remove()


def replaced_hooks(compiler):
    """A hook of the same code with another variable is another hook."""
    net, logs = seeded(Net), [[], []]

    def hook(log):
        return lambda _, i, o: log.append((seen(i), seen(o)))

    handle = net.head.register_full_backward_hook(hook(logs[0]))
    compiled = compiler(net)
    first = steps(net, compiled, [], times=1)
    handle.remove()
    net.head.register_full_backward_hook(hook(logs[1]))
    return first, steps(net, compiled, [], times=1), logs


def gradient_of_a_gradient(compiler):
    net, log = seeded(Net), []
    net.blocks[0].register_full_backward_hook(lambda _, i, o: log.append((seen(i), seen(o))))
    compiled = compiler(net)
    x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
    (grad,) = torch.autograd.grad(compiled(x).sin().sum(), x, create_graph=True)
    grad.square().sum().backward()
    return log, seen([x.grad, *(p.grad for p in net.parameters())])


def no_gradients(compiler):
    net, log = seeded(Net), []
    net.register_full_backward_hook(lambda *_: log.append("called"))
    net.head.register_full_backward_hook(lambda *_: log.append("called"))
    compiled = compiler(net)
    with torch.no_grad():
        out = compiled(torch.ones(2, 4))
    return log, seen([out]), out.requires_grad


def sizes_that_vary(compiler):
    net, log = seeded(Net), []
    net.blocks[1].register_full_backward_hook(lambda _, i, o: log.append((seen(i), seen(o))))
    compiled = compiler(net)
    for size in (3, 5, 6, 7):
        compiled(torch.full((size, 4), 0.5)).sum().backward()
    return log, seen([p.grad for p in net.parameters()])


PROGRAMS = (
    on_every_module,
    replaced_gradients,
    state_of_hooks,
    several_tensors,
    hooks_of_all_modules,
    replaced_hooks,
    gradient_of_a_gradient,
    no_gradients,
    sizes_that_vary,
)
