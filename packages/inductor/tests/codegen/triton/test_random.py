"""Random numbers of four neighbours by one call: the same numbers however the elements are walked."""

import pytest
import torch

from inductor.ir import Recorder
from inductor.ir.kernel import Tile
from inductor.schedule.blocks import Blocks

F32 = torch.float32
SEED = torch.tensor([-0x1234_5678_9ABC_DEF0])


def drawn(recorder, place):
    seed, offset = recorder.load("seed", 0, torch.int64), recorder.constant(7, torch.int64)
    element = recorder.index_expression(place, torch.int64)
    return recorder.op("philox_uniform", seed, offset, element, dtype=F32)


def points(shape, place):
    recorder = Recorder(shape)
    recorder.store("out", place(*recorder.outer), drawn(recorder, place(*recorder.outer)), F32)
    return recorder.finish()


def rows(count, width):
    recorder = Recorder((count,), (width,))
    (i,), (r,) = recorder.outer, recorder.inner
    recorder.stage("inner")
    recorder.store("out", width * i + r, drawn(recorder, width * i + r), F32)
    return recorder.finish()


LOOPED = Blocks("looped", 2, 16, 1, 4, 1, 0)
CASES = {  # body, elements, tile, blocks, whether four words are used
    "points": (points((6, 11), lambda i, j: 11 * i + j), 66, None, None, True),
    "points within a larger tensor": (points((8, 4), lambda i, j: 8 * i + j), 64, None, None, False),
    "tiles": (
        points((8, 64), lambda i, j: 64 * i + j), 512, Tile((0, 1), 32),
        Blocks("points", 32, 1, 32, 4, 1, 0), True,
    ),
    "tiles across": (
        points((64, 8), lambda i, j: i + 64 * j), 512, Tile((0, 1), 32),
        Blocks("points", 32, 1, 32, 4, 1, 0), False,
    ),
    "rows": (rows(3, 20), 60, None, None, True),
    "rows in blocks": (rows(3, 44), 132, None, LOOPED, True),
    "rows that are no fours": (rows(3, 21), 63, None, None, False),
    "rows that are no fours, in blocks": (rows(3, 42), 126, None, LOOPED, False),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_numbers_do_not_depend_on_the_walk(run_kernel, make_kernel, case):
    body, count, tile, blocks, by_fours = case
    expected = torch.ops.primtorch.philox_uniform(SEED, 7, [count], dtype=F32)
    written = torch.full((count,), -1.0)
    kernel = make_kernel(body, {"seed": torch.int64, "out": F32}, tile=tile)
    source = run_kernel(kernel, {"seed": SEED, "out": written}, blocks)
    assert ("philox_four_words" in source.text) == by_fours
    made = written != -1
    assert made.sum() >= 32
    assert torch.equal(written[made], expected[made])


@pytest.mark.parametrize("name", ["lt", "ge"])
@pytest.mark.parametrize("limit", ["of a number", 0.1, 0.9, 2.0**-30, 1 - 2.0**-25, 0.0, 1.0, -1.0])
def test_comparisons_with_a_constant(run_kernel, make_kernel, name, limit):
    numbers = torch.ops.primtorch.philox_uniform(SEED, 7, [256], dtype=F32)
    bound = float(numbers[3]) if limit == "of a number" else limit
    recorder = Recorder((256,))
    (i,) = recorder.outer
    chosen = recorder.op(name, drawn(recorder, i), recorder.constant(bound, F32))
    recorder.store("out", i, chosen, torch.bool)
    storages = {"seed": SEED, "out": torch.zeros(256, dtype=torch.bool)}
    run_kernel(make_kernel(recorder.finish(), {"seed": torch.int64, "out": torch.bool}), storages)
    expected = numbers < torch.tensor(bound, dtype=F32)
    assert torch.equal(storages["out"], expected if name == "lt" else ~expected)
