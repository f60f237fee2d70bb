"""Views of any geometry, through the whole stack: inside the memory as eager makes them, past it eager's error."""

import pytest
import torch

import compile_api

BASE = torch.arange(40.0)


def scattered(x, start):
    return torch.as_strided_scatter(x, torch.ones(3), (3,), (1,), start) * 2


def restrided(x):
    copy = x.clone()
    copy.as_strided_((x.size(0), 2), (1, 1))
    return copy * 2


def caught(x):
    try:
        return x.as_strided((x.size(0), 2), (1, 1)) + 1
    except RuntimeError:
        return x - 1


def both(x):
    view = x.as_strided((x.size(0), 2), (1, 1))
    return view, view.clone().mul_(2)


ROWS = [BASE[:15].clone().view(5, 3), *(BASE[: n * m].clone().view(n, m) for n, m in
        ((6, 4), (7, 1), (7, 2), (8, 0), (1, 1), (2, 1)))]  # fmt: skip
WINDOWS = [BASE[:5], BASE[2:9], BASE[3:8], BASE[2:7], torch.arange(5.0), torch.arange(9.0)]
CASES = {
    "used": (lambda x: x.as_strided((x.size(0), 2), (1, 1)) * 2, ROWS),
    "returned": (both, ROWS),
    "caught": (caught, ROWS),
    "in place": (restrided, ROWS),
    "of a result": (lambda x: (x + 1).as_strided((x.size(0), 2), (1, 1)) * 2, ROWS),
    "of a view": (lambda x: x[1:].as_strided((x.size(0), 2), (1, 1)) * 2, ROWS),
    "copied": (lambda x: torch.as_strided_copy(x, (x.size(0), 2), (1, 1)), ROWS),
    "at a place": (lambda x: x.as_strided((3,), (1,), 4) * 2, WINDOWS),
    "past the window": (lambda x: x.as_strided((6,), (1,)) * 2, WINDOWS),
    "at the end": (lambda x: x.as_strided((3,), (1,), x.size(0)) * 2, WINDOWS),
    "scattered": (lambda x: scattered(x, x.size(0) - 3), [one.clone() for one in WINDOWS]),
    "scattered too far": (lambda x: scattered(x, x.size(0) - 2), [one.clone() for one in WINDOWS]),
    "expanded": (
        lambda x: x.as_strided((3,), (1,)) * 2,
        [BASE[:1].expand(4), BASE[:1].clone().expand(4), BASE[:3].clone()],
    ),
    "unfolded": (lambda x: x.unfold(0, 3, 2) * 2, [BASE[:n].clone() for n in (5, 7, 3, 2, 0)]),
    "other width": (
        lambda x: torch.view_as_complex(x).as_strided((3,), (1,)) * 2,
        [BASE[: n * 2].clone().view(n, 2) for n in (4, 3, 2)],
    ),
}


def seen(function, tensor):
    try:
        found = function(tensor)
    except RuntimeError as error:
        return str(error)
    found = found if isinstance(found, tuple) else (found,)
    return [(one.shape, one.stride(), one.tolist()) for one in found]


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_view_of_any_geometry_stays_in_memory_or_raises_what_eager_raises(case, dynamic):
    function, tensors = CASES[case]
    compile_api.reset()
    compiled = compile_api.compile(function, dynamic=dynamic)
    for tensor in tensors:
        assert seen(compiled, tensor) == seen(function, tensor), tensor.shape


def test_a_view_inside_the_memory_is_part_of_the_graph():
    compile_api.reset()
    compiled = compile_api.compile(
        lambda x: x.as_strided((x.size(0), 2), (1, 1)) * 2, fullgraph=True
    )
    for rows in (3, 4, 5, 6):
        compiled(torch.ones(rows, 3))
    assert compile_api.graph_count() == 2


def test_sizes_that_are_tensors_made_of_sizes():
    def function(x):
        half = torch.div(torch.tensor(x.size(0)), 2, rounding_mode="trunc")
        return x.as_strided((half, x.size(1)), x.stride()) * 2

    compiled = compile_api.compile(function, fullgraph=True)
    for x in (torch.randn(4, 3), torch.randn(8, 3), torch.randn(7, 5)):
        assert torch.equal(compiled(x), function(x))
