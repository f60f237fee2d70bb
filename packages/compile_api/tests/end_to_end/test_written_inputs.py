"""Inputs that a program writes, among them caches and parameters: values, versions, errors as in eager."""

import pytest
import torch

import compile_api


def row(cache, place, new):
    cache.index_copy_(1, place, new)
    return cache.sum(-1)


def old_and_new(cache, place, new):
    old = cache.sum()
    cache[:, place] = new
    return old, cache[:, :2], cache * 2


def copied_before(cache, place, new):
    old = cache.clone()
    cache.add_(1)
    return old, old + cache


def its_value_too(cache, place, new):
    doubled = cache * 2
    cache.copy_(doubled)
    return doubled


def turned_round(cache, place, new):
    cache.copy_(cache.flip(0))
    return cache.mean()


def swapped(cache, place, new):
    first = cache[0].clone()
    cache[0] = cache[1]
    cache[1] = first


def windows(cache, place, new):
    cache[:, 2:5].mul_(3)
    cache.view(-1)[::2].add_(1)
    return cache[0]


def accumulated(cache, place, new):
    cache.index_add_(1, place, new)
    where = (torch.zeros(2, dtype=torch.long), place[:1].expand(2))
    cache.index_put_(where, new[0, :1], accumulate=True)
    return cache.max()


def two_of_them(cache, place, new):
    cache.add_(new.sum())
    new.mul_(cache.mean())
    return new


def by_rows(cache, place, new):
    cache.copy_(torch.softmax(cache.cumsum(1), -1))
    cache.sub_(cache.mean(-1, keepdim=True))


def by_products(cache, place, new):
    cache.copy_(cache @ cache.transpose(1, 2) @ cache)
    return cache.relu()


def filled(cache, place, new):
    cache.zero_()
    new.fill_(3.0)
    return new, cache.transpose(0, 1)


PROGRAMS = [
    row, old_and_new, copied_before, its_value_too, turned_round, swapped, windows, accumulated,
    two_of_them, by_rows, by_products, filled,
]  # fmt: skip


def _inputs(place):
    torch.manual_seed(0)
    return torch.randn(2, 8, 6), torch.tensor([place]), torch.randn(2, 1, 6)


def _run(function, place):
    """Results of two calls, then what the inputs hold and how often they were changed."""
    inputs = _inputs(place)
    try:
        results = [function(*inputs), function(*inputs)]
    except IndexError:
        results = [IndexError]
    return results, inputs, [value._version for value in inputs]


@pytest.mark.parametrize(
    "options", [{}, {"executor": "interpreter"}], ids=["compiled", "interpreted"]
)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_values_and_versions_are_eagers(program, options):
    compiled = compile_api.compile(
        program, fullgraph=True, options={"inductor.strict": True, **options}
    )
    found, expected = _run(compiled, 3), _run(program, 3)
    torch.testing.assert_close(found[:2], expected[:2], rtol=1e-5, atol=1e-5)
    assert found[2] == expected[2]


@pytest.mark.parametrize(
    "program", [row, old_and_new, accumulated], ids=lambda program: program.__name__
)
def test_an_index_out_of_bounds_leaves_them_as_they_were(program):
    found, expected = _run(compile_api.compile(program), 9), _run(program, 9)
    assert found[0] == [IndexError]
    torch.testing.assert_close(found[1], expected[1])


def test_a_parameter_is_written_where_it_is():
    def step(parameter, gradient, average):
        with torch.no_grad():
            average.mul_(0.9).add_(gradient)
            parameter.sub_(average, alpha=0.1)

    compiled = compile_api.compile(step, fullgraph=True)
    given, expected = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4))
    averages, gradient = (torch.zeros(4), torch.zeros(4)), torch.arange(4.0)
    for _ in range(3):
        compiled(given, gradient, averages[0])
        step(expected, gradient, averages[1])
        torch.testing.assert_close(given, expected)
    assert given._version == expected._version
    assert given.is_leaf
    assert given.requires_grad


def test_a_written_cache_is_never_held_twice():
    cache = torch.zeros(2, 4, 4096, 16)
    place, new = torch.tensor([7]), torch.randn(2, 4, 1, 16)

    def decode(cache, place, new):
        cache.index_copy_(2, place, new)
        return (cache[:, :, :8] * 2).sum(-1)

    compiled = compile_api.compile(decode, fullgraph=True)
    compiled(cache, place, new)
    with torch.profiler.profile(profile_memory=True) as seen:
        compiled(cache, place, new)
    events = seen.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    assert max(changes) < cache.nbytes / 100
    assert torch.equal(cache[:, :, 7:8], new)


def test_an_input_written_after_the_call_disturbs_only_who_reads_it():
    """Two results of one graph: eager's versions are looked at for the one that is differentiated."""

    def function(x, w):
        return x @ w, (x + w) * 3

    compiled = compile_api.compile(function, fullgraph=True, options={"strict": True})
    for number, one in [(0, compiled), (1, compiled), (1, compiled), (0, compiled)]:
        found = []
        for call in (one, function):
            torch.manual_seed(2)
            x, w = (torch.randn(3, 3).requires_grad_() for _ in range(2))
            total = call(x * 1, w)[number].sum()
            with torch.no_grad():
                w.mul_(float("nan"))
            try:
                total.backward()
            except RuntimeError as error:
                found.append(str(error)[:60])
            else:
                found.append([x.grad, w.grad])
        if number == 0:
            assert found[0].startswith("one of the variables needed for gradient computation")
            assert found[0] == found[1]
        else:
            torch.testing.assert_close(found[0], found[1])
