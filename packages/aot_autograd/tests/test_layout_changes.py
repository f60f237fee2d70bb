"""In-place changes of a tensor's own layout: of inputs and of values made inside."""

import pytest
import torch

CHANGES = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(0),
    "squeeze_ all": lambda x: x.unsqueeze_(0).squeeze_(),
    "as_strided_": lambda x: x.as_strided_((2, 2), (3, 1)),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_of_an_intermediate(agree, name, requires_grad):
    def function(x):
        y = x.sin()
        CHANGES[name](y)
        return y, y * 2

    agree(function, lambda: [torch.randn(3, 4).requires_grad_(requires_grad)])


@pytest.mark.parametrize("name", CHANGES)
def test_of_an_input(agree, name):
    def function(x):
        CHANGES[name](x)
        return x.cos()

    agree(function, lambda: [torch.randn(3, 4)], calls=2)


@pytest.mark.parametrize("name", CHANGES)
def test_of_an_input_that_is_written_too(agree, name):
    def function(x, y):
        CHANGES[name](x)
        x.mul_(2)
        return x.sum() * y

    agree(function, lambda: [torch.randn(3, 4), torch.randn(3, requires_grad=True)])


@pytest.mark.parametrize("name", ["t_", "unsqueeze_"])
def test_of_an_input_in_autograd(agree, tracked, name):
    def function(x):
        y = x * 3
        CHANGES[name](x)
        return x + 1, y

    def inputs():
        leaf = torch.randn(3, 4, requires_grad=True)
        return tracked([leaf * 1], [leaf])

    agree(function, inputs)


def test_views_made_after_the_change(agree):
    def function(x):
        x.t_()
        y = x + 1
        y.unsqueeze_(0)
        return x[0], y[0, 1], y

    agree(function, lambda: [torch.randn(3, 4)])


def test_of_a_view(agree):
    def function(x):
        y = x[1:]
        y.t_()
        y.add_(1)
        return y * 2

    agree(function, lambda: [torch.randn(3, 4)])


def test_of_an_input_that_shares_its_storage(agree):
    def function(x, y):
        x.t_()
        return y.mul_(2)

    def inputs():
        base = torch.arange(20.0)
        return base[:12].view(3, 4), base[4:16].view(3, 4)

    agree(function, inputs)


def test_a_view_from_before_the_change(agree):
    def function(x):
        view = x[1:]
        x.t_()
        x.unsqueeze_(0)
        return view, view * 2

    agree(function, lambda: [torch.randn(3, 4)])


def test_of_an_input_that_autograd_writes(agree, tracked):
    def function(x, w):
        x.mul_(w)
        x.t_()
        x.unsqueeze_(1)
        return x.sin()

    def inputs():
        leaf = torch.randn(3, 4, requires_grad=True)
        return tracked([leaf * 1, torch.randn(3, 4, requires_grad=True)], [leaf])

    agree(function, inputs)
    agree(function, lambda: [torch.randn(3, 4), torch.randn(3, 4, requires_grad=True)])
