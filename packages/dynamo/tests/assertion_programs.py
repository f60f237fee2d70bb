"""Programs with branches on data that only raise; a module of its own, for pytest rewrites a test's assertions."""

import torch

import dynamo


def asserted(x):
    assert torch.isfinite(x).all(), "not finite"
    return x * 2


def refused(x):
    if (x < 0).any():
        raise ValueError(f"negative: {x.min().item()} in {tuple(x.shape)}")
    return x.sqrt()


def read_as_number(x):
    if (x < 0).any().item():
        raise ValueError("negative")
    return x.sqrt()


def read_negated(x):
    if not torch.isfinite(x).all().item():
        raise FloatingPointError("not finite")
    return x.sqrt()


def compared_number(x):
    assert x.min().item() > 0.2, "in single precision it is equal, in double precision greater"
    return x + 1


def counted(x):
    if (x > 0).sum().item() < 12:
        raise ValueError("few")
    return x + 1


def close(x):
    assert torch.allclose(x, x.abs(), atol=1e-3)
    assert not x.equal(-x), "its own opposite"
    if not torch.equal(x, x.abs()):
        raise ValueError("negative")
    return x + 1


def through_another_call(x):
    if not all(map(torch.Tensor.item, [x > 5 for x in (x.sum(), x.max() * 10)])):
        raise ValueError("small")
    return x


def with_else(x):
    if (x > 0).all():
        y = x.log()
    else:
        raise ValueError("not positive")
    return y


def in_a_loop(x):
    for row in x:
        assert row.sum() > 0
    return x + 1


def of_a_number(x):
    assert x.sum() > 0
    assert x.sum()
    return x + 1


def chosen_text(x):
    if (x < 0).any():
        raise ValueError("long" if len(x) > 2 else "short")
    return x


def written_after(x):
    fine = x > 0
    everything = fine.all()
    if not everything:
        raise ValueError("not positive")
    everything.logical_not_()
    return everything, x + 1


PROGRAMS = [
    asserted, refused, read_as_number, read_negated, counted, compared_number, close, with_else,
    in_a_loop, of_a_number, chosen_text, written_after,
]  # fmt: skip


def after_effects(x, log, table):
    log.append(len(log))
    table["n"] = table.get("n", 0) + 1
    assert x.sum() > 0
    log.append("fine")
    return x + 1


def between_breaks(x):
    y = x.sin()
    dynamo.graph_break()
    assert x.sum() > 0, "first"
    z = y + 1
    dynamo.graph_break()
    assert (z < 10).all(), "second"
    return z + x


def writes_argument(x, out):
    out.add_(x)
    assert x.sum() > 0
    out.mul_(2)
    return out + 1


def writes_much(x, cache):
    cache[:4].copy_(x[0])
    assert x.sum() > 0
    return x + 1


def writes_own(x, weight):
    y = weight * 1
    y.add_(x)
    assert x.sum() > 0
    return y


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        assert x.sum() > 0
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        assert torch.isfinite(grad).all()
        (x,) = ctx.saved_tensors
        return grad * x * 2


def checkpointed(x):
    def body(y):
        assert y.sum() > 0
        return y.sin()

    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)


def under_autocast(x):
    with torch.autocast("cpu"), torch.no_grad():
        assert x.sum() > 0
        return x @ x.T


def differentiated(x):
    def loss(y):
        assert y.sum() > 0
        return y.square().sum()

    return torch.func.grad(loss)(x)


def mapped(x):
    def each(row):
        assert row.sum() > 0
        return row * 2

    return torch.func.vmap(each)(x)


IN_REGIONS = [Square.apply, checkpointed, under_autocast, differentiated, mapped]


def caught(x):
    try:
        assert (x > 0).all()
    except AssertionError:
        return -x
    return x
