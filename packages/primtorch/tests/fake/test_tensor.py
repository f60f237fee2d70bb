"""Fake tensors: autograd, views, in-place operators, factories, devices, symbolic sizes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from primtorch.errors import DataDependentError, UnsupportedOperatorError
from primtorch.fake import FactoryMode, FakeTensor, ShapeContext, fakeify, infer, meta_of
from primtorch.symbolic import SizeEnvironment, expression_of

aten = torch.ops.aten


@pytest.fixture
def context() -> ShapeContext:
    return ShapeContext()


def test_metadata_is_the_real_tensors(context) -> None:
    real = torch.randn(6, 4)[1:].t()
    fake = fakeify(real, context)
    assert fake.shape == real.shape
    assert fake.stride() == real.stride()
    assert fake.storage_offset() == real.storage_offset()
    assert fake.dtype is real.dtype
    assert fake.device == real.device
    assert meta_of(fake) == meta_of(real)
    assert isinstance(fake, torch.Tensor)


def test_training_step_has_gradients_shaped_as_eager(context) -> None:
    def step(x, w, b):
        h = F.layer_norm(F.linear(x, w, b), (5,))
        h = F.dropout(F.gelu(h), 0.1) + h.detach()
        loss = F.cross_entropy(h, torch.zeros(4, dtype=torch.int64))
        return torch.autograd.grad(loss, [x, w, b])

    real = [torch.randn(*s, requires_grad=True) for s in ((4, 3), (5, 3), (5,))]
    fakes = [fakeify(t, context) for t in real]
    with FactoryMode(context):
        got = step(*fakes)
    for have, want in zip(got, step(*real), strict=True):
        assert isinstance(have, FakeTensor)
        assert meta_of(have) == meta_of(want)


def test_parameters_stay_leaves_that_require_grad(context) -> None:
    weight = fakeify(torch.nn.Parameter(torch.randn(3)), context)
    assert weight.requires_grad
    assert weight.is_leaf
    assert not fakeify(torch.randn(3), context).requires_grad


def test_views_share_storage_and_in_place_returns_self(context) -> None:
    x = fakeify(torch.randn(4, 6), context)
    view = x[1:].t().reshape(6, 3)
    assert view.storage is x.storage
    assert (x + 1).storage is not x.storage
    assert view.add_(1) is view
    assert view._version == 1
    assert x._version == 1
    assert torch.add(x, 1, out=x) is x


def test_in_place_on_a_view_in_training(context) -> None:
    x = fakeify(torch.randn(4, requires_grad=True), context)
    y = x * 2
    y[1:3].mul_(3)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.shape == (4,)


def test_factories_need_the_mode(context) -> None:
    with FactoryMode(context):
        made = torch.arange(3, 11, 2)
        other = torch.zeros(2, 3, dtype=torch.bfloat16)
        constant = torch.tensor([1.0, 2.0])
    assert isinstance(made, FakeTensor)
    assert made.shape == (4,)
    assert other.dtype is torch.bfloat16
    assert not isinstance(torch.zeros(2), FakeTensor)
    assert constant.shape == (2,)


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.tolist(),
        lambda x: torch.equal(x, x + 1),
    ],
)
def test_data_is_refused_with_a_remedy(context, ask) -> None:
    x = fakeify(torch.randn(4), context)
    with pytest.raises(DataDependentError, match=r"torch\.where"):
        ask(x)


def test_errors_are_eagers(context) -> None:
    x = fakeify(torch.randn(4, 3), context)
    for call in (
        lambda x: x + x.t(),
        lambda x: x @ x,
        lambda x: x.view(5, -1),
        lambda x: x.sum(3),
        lambda x: x.select(0, 9),
        lambda x: torch.cat([x, x.t()]),
    ):
        with pytest.raises((RuntimeError, IndexError)) as want:
            call(torch.randn(4, 3))
        with pytest.raises(want.type):
            call(x)


def test_logical_device_without_the_device(context) -> None:
    meta = meta_of(torch.randn(4, 3))
    cuda = torch.device("cuda", 0)
    x = FakeTensor.create(
        type(meta)(meta.shape, meta.stride, meta.dtype, cuda), context, requires_grad=True
    )
    y = F.gelu(x @ x.t())
    assert y.device == cuda
    assert y.is_cuda
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.device == cuda
    assert torch.zeros_like(y).device == cuda
    with pytest.raises(RuntimeError, match="two devices"):
        x + fakeify(torch.randn(4, 3), context)
    assert (x + fakeify(torch.tensor(1.0), context)).device == cuda


def test_symbolic_sizes_flow_through_autograd() -> None:
    environment = SizeEnvironment()
    context = ShapeContext(environment)
    batch, width = environment.create_size("b", 4), environment.create_size("w", 6)
    x = fakeify(torch.randn(4, 6, requires_grad=True), context, shape=(batch, width))
    assert [expression_of(s) for s in x.stride()] == [expression_of(width), 1]
    y = F.softmax(x.view(batch * width).view(width, -1).t() * 2, -1)
    (grad,) = torch.autograd.grad((y.sum(0) / y.size(0)).mean(), x)
    assert grad.meta.shape == x.meta.shape
    assert environment.guards == ()


def test_symbolic_strides_of_permuted_memory() -> None:
    environment = SizeEnvironment()
    context = ShapeContext(environment)
    s = environment.create_size("s", 5)
    x = fakeify(torch.randn(5, 3).t(), context, shape=(3, s))
    assert x.meta.stride == (1, 3)
    y = fakeify(torch.randn(3, 5).t(), context, shape=(s, 3))
    assert y.meta.stride == (1, expression_of(s))


def test_run_time_sizes_where_they_are_allowed() -> None:
    environment = SizeEnvironment()
    environment.allow_unbacked = True
    context = ShapeContext(environment)
    x = fakeify(torch.randn(4, 6), context)
    rows = x.nonzero()
    picked = x[x > 0]
    count = (x > 0).sum().item()
    assert [str(v) for v in (rows.meta.shape[0], picked.meta.shape[0], count)] == ["u0", "u1", "u2"]
    torch._check(count >= 2)
    torch._check(count <= 100)
    assert torch.zeros_like(picked).meta.shape == picked.meta.shape
    assert (picked * 2 + 1).sum().shape == ()
    assert picked.view(-1, 1).meta.shape == (picked.meta.shape[0], 1)
    with FactoryMode(context):
        assert str(torch.ones(count, 3).meta.shape[0]) == "u2"
    with pytest.raises(DataDependentError, match="u1"):
        bool(picked.size(0) > 7)
    assert environment.guards == ()
    assert [check.predicate.text for check in environment.checks] == ["1 < u2", "u2 < 101"]


def test_infer_without_tensors() -> None:
    meta = meta_of(torch.randn(2, 3))
    assert infer(aten.mm.default, (meta, meta_of(torch.randn(3, 4)))).shape == (2, 4)
    values, indices = infer(aten.topk.default, (meta, 2), {})
    assert (values.shape, indices.dtype) == ((2, 2), torch.int64)
    assert infer(aten.sum.dim_IntList, (meta,), {"dim": [1], "keepdim": True}).shape == (2, 1)


def test_copies_and_repr(context) -> None:
    x = fakeify(torch.randn(2, 3), context)
    assert copy.deepcopy(x).meta == x.meta
    assert repr(x) == "FakeTensor([2, 3], float32, cpu)"


def test_geometry_changes_in_place(context) -> None:
    x = fakeify(torch.randn(2, 3, requires_grad=True), context)
    y = x * 2
    storage = y.storage
    assert y.t_() is y
    assert y.unsqueeze_(1).shape == (3, 1, 2)
    assert y.squeeze_(1).stride() == (1, 3)
    assert y.meta == meta_of(torch.randn(2, 3).t())
    assert y.storage is storage
    (grad,) = torch.autograd.grad((y * y).sum(), x)
    assert grad.shape == (2, 3)
    with pytest.raises(UnsupportedOperatorError, match="memory"):
        (x + 1).detach().resize_(7)


def test_torchs_own_compiler_is_not_imported() -> None:
    import subprocess
    import sys

    code = (
        "import torch, sys\n"
        "from primtorch.fake import *\n"
        "c = ShapeContext()\n"
        "x = fakeify(torch.randn(3, 3, requires_grad=True), c)\n"
        "with FactoryMode(c):\n"
        "    torch.autograd.grad(torch.nn.functional.gelu(x @ x + torch.ones(3)).sum(), x)\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_out_tensor_of_another_shape_is_refused():
    """Eager gives it other memory, which no fake can follow."""
    x, same, other = (
        fakeify(torch.ones(shape), ShapeContext()) for shape in ((2, 3), (2, 3), (4,))
    )
    context = x.context
    same, other = (fakeify(torch.ones(shape), context) for shape in ((2, 3), (4,)))
    assert torch.sin(x, out=same) is same
    for operator in (lambda: torch.sin(x, out=other), lambda: torch.mm(x, x.t(), out=other)):
        with pytest.raises(UnsupportedOperatorError, match="would be resized"):
            operator()
