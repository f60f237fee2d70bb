"""Numbers that vary from call to call stay numbers through the whole stack, and sizes may be zero."""

import pytest
import torch

import compile_api

STRICT = {"dynamo.strict": True, "aot_autograd.strict": True, "inductor.strict": True}


def compiled_with(function, **settings):
    compile_api.reset()
    return compile_api.compile(function, fullgraph=True, options=STRICT, **settings)


def test_arithmetic_on_a_varying_float_does_not_specialise_it():
    def function(x, scale):
        return x * (scale + 1) / (scale - 0.25) - (-scale) * 2

    compiled = compiled_with(function)
    x = torch.randn(4, 3, requires_grad=True)
    before = compile_api.graph_count()
    for scale in (1.0, 2.0, 3.0, 0.5, 7.0):
        found, expected = compiled(x, scale), function(x, scale)
        assert torch.allclose(found, expected)
        gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (found, expected)]
        assert torch.allclose(*gradients)
    assert compile_api.graph_count() - before == 2


def test_a_quotient_of_sizes_scales_a_tensor():
    def function(a, b):
        return a.shape[0] * a * b + a.numel() / b.size(-1)

    compiled = compiled_with(function, dynamic=True)
    before = compile_api.graph_count()
    for n in (4, 8, 6, 9):
        a, b = torch.randn(n, 3), torch.randn(n, 3)
        assert torch.allclose(compiled(a, b), function(a, b))
    assert compile_api.graph_count() - before == 1


def test_an_empty_result_that_nothing_computes():
    def function(x):
        empty = x[:0]
        return empty @ x.T, empty.mean(1), torch.cat([empty, x])

    for n in (0, 3):
        x = torch.randn(n, 2)
        for found, expected in zip(compiled_with(function)(x), function(x), strict=True):
            assert torch.equal(found, expected)
            assert found.dtype is expected.dtype


def test_column_sums_of_rows_padded_to_a_multiple(capfd, caplog):
    """Whether a row is padding is the same for all columns, so it is asked before the loop over them."""

    def function(x):
        count = x.shape[0]
        padded = torch.nn.functional.pad(x, (0, 0, 0, (8 - count % 8) % 8))
        return padded.view(-1, 8, 4).sum(1)

    compiled = compiled_with(function)
    for n in (6, 9, 12, 5):
        x = torch.randn(n, 4)
        assert torch.allclose(compiled(x), function(x))
    assert "run in their place" not in capfd.readouterr().err + caplog.text


@pytest.mark.parametrize(
    ("function", "graphs"),
    [
        (lambda x, y: x * x.nbytes + y.sum(), 1),
        (lambda x, y: x * 2 if x.is_same_size(y) else x + 1, 2),
        (lambda x, y: torch.linalg.norm(x, ord=-1) * y, 1),
    ],
    ids=["bytes", "two sizes compared", "a number that C++ asks for"],
)
def test_what_is_asked_about_sizes_that_vary(function, graphs):
    before = compile_api.graph_count()
    options = {"strict": True}
    compiled = compile_api.compile(function, dynamic=True, fullgraph=True, options=options)
    for rows, others in ((3, 3), (5, 5), (6, 4)):
        x, y = torch.randn(rows, 4), torch.randn(others, 4)
        torch.testing.assert_close(compiled(x, y), function(x, y))
    assert compile_api.graph_count() - before == graphs
