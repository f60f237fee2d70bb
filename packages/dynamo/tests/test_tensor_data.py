"""`tensor.data`, read, changed in place and assigned."""

# ruff: noqa: B905 - the captured programs are written as users do

import copy

import pytest
import torch

import dynamo
from dynamo.testing import same

STRICT = dynamo.DynamoOptions(strict=True)
X = torch.arange(1.0, 10.0).reshape(3, 3) / 4


def data_read(x):
    return x.data * 2 + x


def data_write_local(x):
    y = torch.zeros_like(x)
    y.data = x * 2
    return y + 1


def data_inplace(x):
    y = x.clone()
    y.data.add_(1)
    return y


def data_copy(x):
    y = x.clone()
    y.data[0] = 5
    return y * 2


class MData(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.w = torch.nn.Parameter(torch.ones(3))
        s.register_buffer("b", torch.zeros(3))

    def forward(s, x):
        s.b.data = s.b.data * 0.9 + x.detach().mean(0) * 0.1
        s.b.data.mul_(0.9)
        s.w.data.clamp_(-1, 1)
        return x * s.w + s.b.data


def data_assign_arg(x, y):
    x.data = y * 2
    return x + 1


def seq(x):
    x.data = x.data * 2
    x.add_(1)
    return x.view(-1) + 1


def alias_other(x, y):
    x.data = y
    x.add_(1)
    return x + y


def resize(x):
    y = torch.empty(0)
    y.data = torch.cat([x, x])
    y.mul_(2)
    return y, y.shape[0]


def resize_in(x, c):
    c.data = torch.cat([c, x])
    return c.sum(0), c.shape[0]


class EMA(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.l = torch.nn.Linear(3, 3)
        s.e = torch.nn.Linear(3, 3)

    def forward(s, x):
        with torch.no_grad():
            for p, q in zip(s.l.parameters(), s.e.parameters()):
                q.data = q.data * 0.9 + p.data * 0.1
            y = s.e(x)
        return y + 1


class WN(torch.nn.Module):
    def __init__(s):
        super().__init__()
        s.l = torch.nn.Linear(3, 3)

    def forward(s, x):
        s.l.weight.data.div_(s.l.weight.data.norm(dim=1, keepdim=True))
        return s.l(x)


def two(x, y):
    a = x.data
    b = a
    x.data = y.data
    return a + 1, b * 2, x


def local_view(x):
    y = x.clone()
    v = y[0]
    y.data = torch.zeros_like(y)
    v.add_(1)
    return y, v


def bn(x):
    running = torch.zeros(3)
    running.data.mul_(0.9).add_(x.mean(0).data, alpha=0.1)
    return running


def sv(x):
    y = x.exp()
    y.data.mul_(2)
    return y


def sv2(x):
    y = x * 1
    z = y * y
    y.data.mul_(2)
    return z


CASES = [
    (data_read, 1), (data_write_local, 1), (data_inplace, 1), (data_copy, 1), (MData, 1),
    (data_assign_arg, 2), (seq, 1), (alias_other, 2), (resize, 1), (resize_in, 2), (EMA, 1), (WN, 1),
    (two, 2), (local_view, 1), (bn, 1), (sv, 1), (sv2, 1),
]  # fmt: skip
WITH_GRADIENT = {data_read, data_inplace, WN, bn, sv, sv2}


def _run(program, values):
    result = program(*values)
    for leaf in torch.utils._pytree.tree_leaves(result):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            (leaf * leaf).sum().backward(retain_graph=True)
    state = dict(program.state_dict()) if isinstance(program, torch.nn.Module) else {}
    return result, values, [value.grad for value in values], state


@pytest.mark.parametrize(("program", "count"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_data_is_read_and_assigned_in_the_graph(program, count):
    torch.manual_seed(0)
    mine = program() if isinstance(program, type) else program
    theirs = copy.deepcopy(mine)
    compiled = dynamo.optimize("eager", fullgraph=True, options=STRICT)(mine)
    for seed in range(2):
        torch.manual_seed(seed)
        first = [torch.randn(3, 3) for _ in range(count)]
        second = [value.clone() for value in first]
        for value in (*first, *second):
            value.requires_grad_(program in WITH_GRADIENT)
        assert same(_run(compiled, first), _run(theirs, second))


def test_a_tensor_that_requires_a_gradient_has_other_data_only_after_a_break():
    weight = torch.ones(3, requires_grad=True)

    def f(x):
        weight.data = x * 2
        return (weight * x).sum()

    compiled = dynamo.optimize("eager", options=STRICT)(f)
    for scale in (1.0, 2.0):
        weight.grad = None
        compiled(torch.full((3,), scale)).backward()
        assert weight.tolist() == [2 * scale] * 3
        assert weight.grad.tolist() == [scale] * 3
    with pytest.raises(dynamo.CaptureError, match="whose data was assigned is differentiated"):
        dynamo.optimize("eager", fullgraph=True)(f)(X[0])


@pytest.mark.parametrize("way", ["data", "view"])
def test_writing_to_a_view_of_a_parameter_is_writing_to_the_parameter(way):
    weight = torch.nn.Parameter(torch.ones(3))

    def f(x):
        if way == "data":
            weight.data.mul_(2)
        else:
            with torch.no_grad():
                weight[:2].mul_(2)
        return x + 1

    compiled = dynamo.optimize("eager", options=STRICT)(f)
    assert same(compiled(torch.ones(3)), torch.full((3,), 2.0))
    now = weight.detach().clone()
    now[: 3 if way == "data" else 2] *= 2
    assert same(compiled(weight.data), now + 1), "another call, in which the two share memory"
