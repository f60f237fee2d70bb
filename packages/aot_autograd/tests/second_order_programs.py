"""Programs that need derivatives of derivatives; each is the same in eager, by this package alone and by the compiler.

A program takes what compiles a function (`lambda function: function` gives eager's results) and the dtype of its
tensors, and gives nested tuples of results. In `FUNCTIONS` the derivatives are taken of a compiled function from
outside (`derivatives_outside`) or with it inside of what is compiled (`derivatives_inside`); `PROGRAMS` are whole.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = (torch.float64, torch.float32)


def drawn(*shapes, dtype):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes
    ]


def weighted(tensor):
    """A sum that tells positions apart."""
    weights = torch.linspace(0.5, 1.5, tensor.numel(), dtype=tensor.dtype).view(tensor.shape)
    return (tensor * weights).sum()


def attention(query, key, value, **options):
    return F.scaled_dot_product_attention(query, key, value, **options)


def in_terms_of_products(query, key, value):
    """The kernel that eager would choose has no second derivative."""
    with sdpa_kernel(SDPBackend.MATH):
        return attention(query, key, value, is_causal=True)


GATES = nn.LSTMCell(3, 4)


def cell(x, h, c, *weights):
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return torch.cat(
        torch.func.functional_call(GATES, dict(zip(names, weights, strict=True)), (x, (h, c)))
    )


def running(x):
    return torch.linspace(-0.5, 0.5, 3, dtype=x.dtype), torch.linspace(0.5, 1.5, 3, dtype=x.dtype)


# The function, and the shapes of its inputs, which all are differentiated.
FUNCTIONS = {
    "saved activation": (lambda x: x.exp().tanh(), [(3, 4)]),
    "softmax": (lambda x: F.softmax(x, -1), [(3, 4)]),
    "log_softmax and nll": (
        lambda x: F.nll_loss(F.log_softmax(x, -1), torch.tensor([1, 0, 3])),
        [(3, 4)],
    ),
    "cross entropy": (
        lambda x: F.cross_entropy(x, torch.tensor([1, -100, 3]), label_smoothing=0.1),
        [(3, 4)],
    ),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(2, 4, 3), (4,), (4,)]),
    "rms norm": (lambda x, w: F.rms_norm(x, (4,), w), [(3, 4), (4,)]),
    "batch norm in training": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
        [(5, 3, 2), (3,), (3,)],
    ),
    "batch norm with statistics": (
        lambda x, w, b: F.batch_norm(x, *running(x), w, b, training=True),
        [(5, 3, 2), (3,), (3,)],
    ),
    "batch norm in evaluation": (
        lambda x, w, b: F.batch_norm(x, *running(x), w, b),
        [(5, 3, 2), (3,), (3,)],
    ),
    "instance norm": (
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        [(2, 3, 5), (3,), (3,)],
    ),
    "attention by its formula": (in_terms_of_products, [(2, 2, 5, 4)] * 3),
    "attention with a mask": (
        lambda q, k, v, m: attention(q, k, v, attn_mask=m),
        [(2, 2, 5, 4)] * 3 + [(2, 1, 5, 5)],
    ),
    "attention by hand": (
        lambda q, k, v: F.softmax(q @ k.mT / 2, -1) @ v,
        [(2, 5, 4)] * 3,
    ),
    "conv1d": (lambda x, w, b: F.conv1d(x, w, b, padding=1).tanh(), [(2, 3, 6), (4, 3, 3), (4,)]),
    "conv2d": (
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1).sin(),
        [(2, 3, 6, 6), (4, 3, 3, 3), (4,)],
    ),
    "grouped conv2d": (
        lambda x, w: F.conv2d(x, w, groups=2, dilation=2).tanh(),
        [(2, 4, 6, 6), (4, 2, 2, 2)],
    ),
    "transposed conv2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2).tanh(),
        [(2, 3, 3, 3), (3, 2, 2, 2)],
    ),
    "embedding": (
        lambda w: F.embedding(torch.tensor([[1, 0], [1, 2]]), w).tanh(),
        [(4, 3)],
    ),
    "embedding with padding": (
        lambda w: F.embedding(torch.tensor([[1, 0], [1, 2]]), w, padding_idx=0).tanh(),
        [(4, 3)],
    ),
    "gelu": (F.gelu, [(3, 4)]),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), [(3, 4)]),
    "silu": (F.silu, [(3, 4)]),
    "mish": (F.mish, [(3, 4)]),
    "elu and softplus": (lambda x: F.elu(x) + F.softplus(x), [(3, 4)]),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.1) * x.exp(), [(3, 4)]),
    "max pool": (lambda x: F.max_pool2d(x.sin(), 2), [(2, 3, 4, 4)]),
    "average pool": (lambda x: F.avg_pool2d(x.sin(), 2), [(2, 3, 4, 4)]),
    "adaptive pool": (lambda x: F.adaptive_avg_pool2d(x.sin(), 1), [(2, 3, 4, 4)]),
    "interpolate": (
        lambda x: F.interpolate(x.sin(), scale_factor=2.0, mode="bilinear"),
        [(1, 2, 3, 3)],
    ),
    "einsum": (
        lambda a, b, c: torch.einsum("bij,jk,bk->bi", a, b, c).sin(),
        [(2, 3, 4), (4, 5), (2, 5)],
    ),
    "linear": (lambda x, w, b: F.linear(x, w, b).tanh(), [(3, 4), (5, 4), (5,)]),
    "lstm cell": (cell, [(2, 3), (2, 4), (2, 4), (16, 3), (16, 4), (16,), (16,)]),
    "norm": (lambda x: x.norm(2, dim=1), [(3, 4)]),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), [(3, 4)]),
    "cumulative product": (lambda x: x.cumprod(-1), [(3, 4)]),
    "standard deviation": (lambda x: x.std(-1), [(3, 4)]),
    "maximum": (lambda x: x.exp().amax(-1), [(3, 4)]),
    "sort": (lambda x: x.sort(-1).values.sin(), [(3, 4)]),
    "gather": (lambda x: x.gather(1, torch.tensor([[0, 0], [1, 3], [2, 2]])).sin(), [(3, 4)]),
    "index": (lambda x: x[torch.tensor([0, 0, 2])].sin(), [(3, 4)]),
    "where": (lambda x, y: torch.where(x > 0, x.exp(), y.sin()), [(3, 4), (3, 4)]),
    "inverse": (lambda x: torch.linalg.inv(x @ x.mT + torch.eye(3, dtype=x.dtype)), [(3, 4)]),
    "in place": (lambda x, w: (x * w).sin_().mul_(w), [(4,), (4,)]),
    "views written": (
        lambda x: torch.zeros_like(x).index_copy(0, torch.tensor([1]), x[:1] ** 3),
        [(3, 4)],
    ),
}


def derivatives(function, inputs, order, look=None):
    """(value, its derivatives, those of the sum of their squares, ...); `look` sees those that are differentiable."""
    value = function(*inputs)
    found = [value]
    for step in range(order):
        made = torch.autograd.grad(
            value, inputs, create_graph=step < order - 1, allow_unused=True, materialize_grads=True
        )
        found += made
        if look is not None and step < order - 1:
            look(made)
        value = sum((one * one).sum() for one in made)
    return tuple(one.detach() for one in found)


def derivatives_outside(name, compiler, dtype, order=2, look=None):
    function, shapes = FUNCTIONS[name]
    inputs = [one.requires_grad_() for one in drawn(*shapes, dtype=dtype)]
    compiled = compiler(lambda *inputs: weighted(function(*inputs)))
    return derivatives(compiled, inputs, order, look)


def derivatives_inside(name, compiler, dtype, order=2):
    function, shapes = FUNCTIONS[name]
    inputs = [one.requires_grad_() for one in drawn(*shapes, dtype=dtype)]

    def whole(*inputs):
        return derivatives(lambda *inputs: weighted(function(*inputs)), inputs, order)

    return compiler(whole)(*inputs)


# -- whole programs ---------------------------------------------------------------------------------------


def network(dtype, inputs=4):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(inputs, 8),
        nn.LayerNorm(8),
        nn.GELU(),
        nn.Linear(8, 8),
        nn.Softmax(-1),
        nn.Linear(8, 1),
    ).to(dtype)


def critic(dtype):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU(0.2),
        nn.Conv2d(4, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(72, 1),
    ).to(dtype)  # fmt: skip


def stateless(model):
    """(the model as a function of its arguments and its parameters, the parameters)."""
    names = [name for name, _ in model.named_parameters()]

    def call(parameters, *args):
        return torch.func.functional_call(model, dict(zip(names, parameters, strict=True)), args)

    return call, tuple(model.parameters())


def gradients_of(parameters):
    return tuple(parameter.grad for parameter in parameters)


def penalty(model, real, fake, mixing):
    mixed = (mixing * real + (1 - mixing) * fake).detach().requires_grad_(True)
    score = model(mixed)
    (gradient,) = torch.autograd.grad(
        score, mixed, torch.ones_like(score), create_graph=True, retain_graph=True
    )
    return ((gradient.flatten(1).norm(2, dim=1) - 1) ** 2).mean()


def wgan_step(compiler, dtype):
    """A critic's step of WGAN-GP in one function, the penalty's gradient inside."""
    model, parameters = stateless(critic(dtype))
    real, fake, mixing = drawn((3, 1, 6, 6), (3, 1, 6, 6), (3, 1, 1, 1), dtype=dtype)

    def loss(real, fake, mixing, *parameters):
        def score(x):
            return model(parameters, x)

        return score(fake).mean() - score(real).mean() + 10 * penalty(score, real, fake, mixing)

    value = compiler(loss)(real, fake, mixing, *parameters)
    value.backward()
    return value.detach(), gradients_of(parameters)


def wgan_around_a_critic(compiler, dtype):
    """The critic is compiled, the penalty is not."""
    model, parameters = stateless(critic(dtype))
    compiled = compiler(lambda x, *parameters: model(parameters, x))
    real, fake, mixing = drawn((3, 1, 6, 6), (3, 1, 6, 6), (3, 1, 1, 1), dtype=dtype)
    value = penalty(lambda x: compiled(x, *parameters), real, fake, mixing)
    value.backward()
    return value.detach(), gradients_of(parameters)


def double_well(x, w):
    return ((x @ w).tanh() ** 2).sum() + (x**4).sum()


def reverse_over_reverse(compiler, dtype):
    def product(x, w, v):
        (first,) = torch.autograd.grad(double_well(x, w), x, create_graph=True)
        return torch.autograd.grad((first * v).sum(), x)[0]

    x, w, v = drawn((3, 4), (4, 4), (3, 4), dtype=dtype)
    return compiler(product)(x.requires_grad_(), w, v).detach()


def reverse_over_reverse_by_functions(compiler, dtype):
    def product(x, w, v):
        _, pull_back = torch.func.vjp(torch.func.grad(lambda x: double_well(x, w)), x)
        return pull_back(v)[0]

    return compiler(product)(*drawn((3, 4), (4, 4), (3, 4), dtype=dtype))


def forward_over_reverse(compiler, dtype):
    def product(x, w, v):
        return torch.func.jvp(torch.func.grad(lambda x: double_well(x, w)), (x,), (v,))

    return compiler(product)(*drawn((3, 4), (4, 4), (3, 4), dtype=dtype))


def reverse_over_forward(compiler, dtype):
    def product(x, w, v):
        def along(x):
            return torch.func.jvp(lambda x: double_well(x, w), (x,), (v,))[1]

        return torch.func.grad(along)(x)

    return compiler(product)(*drawn((3, 4), (4, 4), (3, 4), dtype=dtype))


def hessians(compiler, dtype):
    def both(x, w):
        def energy(x):
            return double_well(x, w)

        return (
            torch.func.hessian(energy)(x),
            torch.func.jacrev(torch.func.jacrev(energy))(x),
            torch.func.jacfwd(torch.func.jacfwd(energy))(x),
            torch.func.jacfwd(torch.func.grad(energy))(x),
        )

    return compiler(both)(*drawn((2, 3), (3, 3), dtype=dtype))


def hessian_in_training(compiler, dtype):
    """The trace of a Hessian is part of a loss."""

    def loss(x, w):
        return torch.func.hessian(lambda x: double_well(x, w))(x).pow(2).sum()

    x, w = (one.requires_grad_() for one in drawn((2, 3), (3, 3), dtype=dtype))
    value = compiler(loss)(x, w)
    return value.detach(), torch.autograd.grad(value, (x, w))


def gradients_of_each_sample(compiler, dtype):
    def each(x, w):
        return torch.vmap(torch.func.grad(lambda w, x: double_well(x, w)), (None, 0))(w, x)

    return compiler(each)(*drawn((3, 4), (4, 4), dtype=dtype))


def hessian_of_autograd(compiler, dtype):
    compiled = compiler(double_well)
    x, w = drawn((2, 3), (3, 3), dtype=dtype)
    found = torch.autograd.functional.hessian(lambda x: compiled(x, w), x)
    return found, torch.autograd.functional.hvp(lambda x: compiled(x, w), x, x.cos())


def rows_of_a_hessian(compiler, dtype):
    """Row by row, as in programs from before torch.func."""

    def rows(x, w):
        (first,) = torch.autograd.grad(double_well(x, w), x, create_graph=True)
        return torch.stack(
            [torch.autograd.grad(one, x, retain_graph=True)[0] for one in first.flatten()]
        )

    x, w = drawn((2, 3), (3, 3), dtype=dtype)
    return compiler(rows)(x.requires_grad_(), w).detach()


def learner(parameters, x):
    w1, b1, w2, b2 = parameters
    return F.linear(F.gelu(F.linear(x, w1, b1)), w2, b2)


def maml(compiler, dtype, steps=2, by="grad"):
    """Two inner steps that are differentiated through, the loss after them."""
    support, query, *parameters = drawn((5, 3), (5, 3), (6, 3), (6,), (1, 6), (1,), dtype=dtype)
    parameters = [one.requires_grad_() for one in parameters]

    def after(parameters, support, query):
        for _ in range(steps):
            if by == "grad":
                loss = F.mse_loss(learner(parameters, support), support[:, :1].sin())
                gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            else:
                gradients = torch.func.grad(
                    lambda p: F.mse_loss(learner(p, support), support[:, :1].sin())
                )(tuple(parameters))
            parameters = [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]
        return F.mse_loss(learner(parameters, query), query[:, :1].sin())

    value = compiler(lambda support, query, *p: after(p, support, query))(
        support, query, *parameters
    )
    return value.detach(), torch.autograd.grad(value, parameters)


def maml_by_functions(compiler, dtype):
    return maml(compiler, dtype, by="functions")


def maml_around_a_learner(compiler, dtype):
    """The learner is compiled, the inner steps are not."""
    compiled = compiler(lambda x, *parameters: learner(parameters, x))
    support, query, *given = drawn((5, 3), (5, 3), (6, 3), (6,), (1, 6), (1,), dtype=dtype)
    parameters = first = [one.requires_grad_() for one in given]
    for _ in range(2):
        loss = F.mse_loss(compiled(support, *parameters), support[:, :1].sin())
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        parameters = [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]
    value = F.mse_loss(compiled(query, *parameters), query[:, :1].sin())
    return value.detach(), torch.autograd.grad(value, first)


def score_matching(compiler, dtype):
    """A loss of a gradient and of the divergence of that gradient: three orders at the end."""
    model, parameters = stateless(network(dtype))

    def loss(x, *parameters):
        x = x.detach().requires_grad_()
        (score,) = torch.autograd.grad(model(parameters, x).sum(), x, create_graph=True)
        divergence = sum(
            torch.autograd.grad(score[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(4)
        )
        return (divergence + 0.5 * (score**2).sum(1)).mean()

    (x,) = drawn((5, 4), dtype=dtype)
    value = compiler(loss)(x, *parameters)
    value.backward()
    return value.detach(), gradients_of(parameters)


def physics_informed(compiler, dtype):
    """The residual of an equation with second derivatives, minimised."""
    model, parameters = stateless(network(dtype, inputs=2))

    def loss(t, x, *parameters):
        t, x = t.clone().requires_grad_(), x.clone().requires_grad_()
        u = model(parameters, torch.stack([t, x], 1)).squeeze(1)
        ones = torch.ones_like(u)
        (u_t,) = torch.autograd.grad(u, t, ones, create_graph=True)
        (u_x,) = torch.autograd.grad(u, x, ones, create_graph=True)
        (u_xx,) = torch.autograd.grad(u_x, x, ones, create_graph=True)
        return (u_t + u * u_x - 0.01 * u_xx).pow(2).mean()

    value = compiler(loss)(*drawn((6,), (6,), dtype=dtype), *parameters)
    value.backward()
    return value.detach(), gradients_of(parameters)


def backward_that_can_be_differentiated(compiler, dtype):
    """`backward(create_graph=True)` on a compiled function, then the gradient's own."""
    (x,) = (one.requires_grad_() for one in drawn((3, 4), dtype=dtype))
    compiled = compiler(lambda x: (x.exp().tanh() * x).sum())
    (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    (gradient.pow(2).sum() + compiled(x)).backward()
    return gradient.detach(), x.grad


PROGRAMS = (
    wgan_step,
    wgan_around_a_critic,
    reverse_over_reverse,
    reverse_over_reverse_by_functions,
    forward_over_reverse,
    reverse_over_forward,
    hessians,
    hessian_in_training,
    gradients_of_each_sample,
    hessian_of_autograd,
    rows_of_a_hessian,
    maml,
    maml_by_functions,
    maml_around_a_learner,
    score_matching,
    physics_informed,
    backward_that_can_be_differentiated,
)


# -- judging ----------------------------------------------------------------------------------------------


def as_near(program, compiler, dtype):
    """Whether compiled results are as near to float64 as eager's; in float64 that they are eager's."""
    found = _tensors(program(compiler, dtype))
    expected = _tensors(program(lambda function: function, dtype))
    exact = _tensors(program(lambda function: function, torch.float64))
    for ours, eager, true in zip(found, expected, exact, strict=True):
        assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
        scale = max(1.0, true.abs().max().item())
        error, allowed = _distance(ours, true), 3 * _distance(eager, true)
        if not error <= max(allowed, scale * (1e-11 if dtype is torch.float64 else 2e-5)):
            return False
    return True


def _tensors(value):
    return [one for one in torch.utils._pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]


def _distance(tensor, true):
    return (tensor.double() - true).abs().max().item()


_OURS = {
    "CompiledFunctionBackward",
    "CompiledInputsBackward",
    "CompiledResultBackward",
    "torch::autograd::AccumulateGrad",
}
_OF_THE_SQUARES = {"MulBackward0", "SumBackward0", "AddBackward0"}


def left_to_eager(tensors):
    """Names of the nodes of autograd behind tensors that are neither ours nor those of `derivatives`."""
    pending = [one.grad_fn for one in tensors if one.grad_fn is not None]
    seen = set(pending)
    while pending:
        for following, _ in pending.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return {node.name() for node in seen} - _OURS - _OF_THE_SQUARES
