"""Products that lie inside a result: only where nothing else is written or looked at meanwhile."""

import pytest
import torch

from inductor.ir import Buffer, Kernel, OperatorCall, Recorder, View
from inductor.schedule import inside
from inductor.schedule.kernels import make_kernel
from inductor.schedule.memory import lifetimes

BF16, CPU = torch.bfloat16, torch.device("cpu")
ROWS, COLUMNS, WIDE = 24, 101, 104


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(inside, "SMALLEST", 1)


def buffers(**rows):
    """A result, and products of some rows each: `p..` with padded rows, `q..` with the result's own."""
    found = {"result": Buffer("result", (ROWS, COLUMNS), (COLUMNS, 1), BF16, CPU)}
    for name, count in rows.items():
        wide = WIDE if name.startswith("p") else COLUMNS
        found[name] = Buffer(name, (count, wide), (wide, 1), BF16, CPU)
    return found


def product(name, row=0):
    left = View("a", (4, 8), (8, 1), 8 * row, BF16)
    right = View("b", (8, 104), (1, 8), 0, BF16)
    return OperatorCall(
        name, "vendor", torch.ops.aten.mm.default, (left, right), {}, (name,), "fast"
    )


def copy(known, name, row, *, also=None, count=None):
    """A kernel that stores a product's rows into the result's from `row` on."""
    held = known[name]
    recorder = Recorder((count or held.shape[0], COLUMNS))
    recorder.stage("outer")
    i, j = recorder.outer
    value = recorder.load(name, held.stride[0] * i + j, BF16)
    if also is not None:
        value = recorder.op("add", value, recorder.load(also, COLUMNS * i + j, BF16))
    recorder.store("result", COLUMNS * i + j + row * COLUMNS, value, BF16)
    return make_kernel(f"k_{name}", recorder.finish(), known, locals_=(), device=CPU, nodes=())


class _Graph:
    outputs = (View("result", (ROWS, COLUMNS), (COLUMNS, 1), 0, BF16),)


def found(known, steps, own=()):
    first, last = lifetimes(_Graph, steps)
    return inside.made_inside(known, steps, {"result"}, first, last, own)


def test_parts_at_the_end_and_the_last_rows_where_they_stay():
    known = buffers(p1=8, p2=8, q3=8)
    steps = [
        product("p1"), copy(known, "p1", 0), product("p2"), copy(known, "p2", 8),
        product("q3"), copy(known, "q3", 16),
    ]  # fmt: skip
    places = found(known, steps)
    assert set(places) == {"p1", "q3"}, "the second has no room behind its own rows"
    room, size = 2 * ROWS * COLUMNS, 2 * (7 * WIDE + WIDE)
    assert places["p1"].offset == (room - size) // 64 * 64
    assert places["q3"].offset == 2 * 16 * COLUMNS
    assert not any(isinstance(step, Kernel) and step.reuses for step in steps)


def test_two_at_the_same_time_do_not_lie_in_the_same_place():
    known = buffers(p1=8, p2=8)
    steps = [product("p1"), product("p2"), copy(known, "p1", 0), copy(known, "p2", 8)]
    assert set(found(known, steps)) == {"p1"}


def test_not_over_what_is_written_already():
    known = buffers(p1=4, p2=4)
    steps = [product("p2"), copy(known, "p2", 20), product("p1"), copy(known, "p1", 0)]
    assert not found(known, steps), "the last rows are written first"


def test_not_in_a_result_that_is_read_before():
    known = buffers(p1=4, p2=4)
    steps = [
        product("p1"), copy(known, "p1", 0), product("p2"), copy(known, "p2", 4, also="result")
    ]  # fmt: skip
    assert set(found(known, steps)) == {"p1"}


def test_rows_that_begin_between_alignments_stay_outside():
    known = buffers(q1=4, q2=8)
    steps = [product("q1"), copy(known, "q1", 0), product("q2"), copy(known, "q2", 5)]
    assert not found(known, steps)


def test_not_where_a_second_kernel_reads_the_product():
    known = buffers(p1=8)
    steps = [product("p1"), copy(known, "p1", 0, count=4), copy(known, "p1", 4)]
    assert not found(known, steps)


def test_in_rows_of_an_operand_that_nobody_reads_any_more():
    known = buffers(q1=20, p2=4)
    known["a"] = Buffer("a", (60, 8), (8, 1), BF16, CPU)
    steps = [product("q1"), copy(known, "q1", 0), product("p2", row=56), copy(known, "p2", 20)]
    places = found(known, steps, {"a"})
    assert (places["p2"].host, places["p2"].offset) == ("a", 0)
    assert not found(known, [*steps, product("q1")], {"a"}), "read again"
    assert not found(known, steps, ()), "not ours to write over"
    steps[2] = product("p2", row=50)
    assert not found(known, steps, {"a"}), "too few rows before those that are read"
