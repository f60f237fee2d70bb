"""Programs with numbers and sizes that only run time tells; each is one graph under the options."""

import torch

X = torch.tensor([1.0, -2.0, 3.0, 0.0, 5.0])
N = torch.tensor([3, 1, 2])
OPTIONS = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
# Other numbers, other sizes, nothing selected, all of it.
CALLS = [
    (X, N),
    (X * -1, N + 1),
    (torch.linspace(-1, 1, 7), torch.tensor([2, 0, 1])),
    (X * 0, N * 0),
]


def number(x, n):
    return x * n[0].item() + n[1].item()


def number_as_size(x, n):
    k = n.sum().item()
    return torch.ones(k) * x.sum(), torch.arange(k)


def number_returned(x, n):
    k = n[0].item()
    return k, k + 1, x + k


def real_number(x, n):
    top = x.max().item()
    return x * top + top / 2, float(n[0]), int(n[1]) + 1


def listed(x, n):
    a, b, c = n.tolist()
    return torch.cat([x.new_ones(a), x.new_zeros(b), x.new_full((c,), 2.0)])


def split(x, n):
    return [part * 2 for part in torch.split(torch.arange(6.0), n.tolist())]


def positions(x, n):
    return x.nonzero().float() * 2 + 1, (x > 0).nonzero().shape[0]


def masked(x, n):
    return x[x > 0] * 2 + 1


def selected(x, n):
    return torch.masked_select(x, x > 0).exp().sum()


def distinct(x, n):
    return torch.unique(n) * 2


def where(x, n):
    return torch.where(x > 0)[0] + 1


def repeated(x, n):
    return torch.repeat_interleave(x[:3], n) * 3


def one_after_another(x, n):
    y = x[x > 0]
    z = y * 2 + y.sum()
    w = z[z > n[0].item()]
    return w.cos(), z


def checked(x, n):
    k = n[0].item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0], lambda: "too long")
    return x[:k] * 2


def checked_value(x, n):
    k = n[0].item()
    torch._check_value(k != 4, lambda: "four")
    return x * k


def narrowed(x, n):
    k = n[0].item()
    torch._check(k >= 0)
    torch._check(k < 5)
    return x.narrow(0, 0, k).sin()


def without_gradients(x, n):
    with torch.no_grad():
        y = x[x > 0] * 2
    return y + 1


def written(x, n):
    y, k = x.clone(), n[0].item()
    torch._check(k >= 0)
    torch._check(k <= x.shape[0])
    y[:k].mul_(2)
    y[y > 3] = 0
    return y, y[y != 0]


def written_through(x, n):
    y = x * 1
    y[x > 0] = x[x > 0].exp()
    return y * y


PROGRAMS = [
    number, number_as_size, number_returned, real_number, listed, split, positions, masked, selected,
    distinct, where, repeated, one_after_another, checked, checked_value, narrowed,
    without_gradients, written, written_through,
]  # fmt: skip


def outcome(function, arguments):
    """What a call returns, or the exception that it raises."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - compared with eager's
        return type(error), str(error)
