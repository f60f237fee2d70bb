"""What shares a kernel, why, and that sharing changes nothing."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inductor.ir import Kernel, OperatorCall, program_text
from inductor.schedule import build

torch.manual_seed(0)
X = torch.randn(16, 64)
Y = torch.randn(16, 64)
ROW = torch.randn(64)
SQUARE = torch.randn(32, 32)


def kernels(program):
    return [step for step in program.schedule.steps if isinstance(step, Kernel)]


def operations(kernel, name):
    return [operation for _, operation, _ in kernel.body.operations() if operation.name == name]


def test_softmax_is_one_kernel_with_three_sweeps(compare):
    (kernel,) = kernels(compare(lambda x: F.softmax(x, -1), X))
    assert sum(stage.level == "inner" for stage in kernel.body.stages) == 3
    assert [local.length for local in kernel.locals] == [64]


def test_residual_and_norm_are_one_kernel(compare):
    program = compare(lambda x, y, r: F.layer_norm(x + y, (64,), r, r), X, Y, ROW)
    (kernel,) = kernels(program)
    assert {argument.access for argument in kernel.arguments} == {"read", "write"}
    assert sum(argument.access == "write" for argument in kernel.arguments) == 1


def norm_backward(grad, x, weight, mean, reciprocal):
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, [64], mean, reciprocal, weight, weight, [True, True, True]
    )


def test_norm_backward_reads_rows_once_for_rows_and_columns(compare):
    _, mean, reciprocal = torch.ops.aten.native_layer_norm(X, [64], ROW, ROW, 1e-5)
    program = compare(norm_backward, Y, X, ROW, mean, reciprocal, tolerance=1e-4)
    (kernel,) = kernels(program)
    assert len(operations(kernel, "accumulate")) == 2
    assert len(operations(kernel, "reduce")) == 2


def test_a_sum_over_columns_that_comes_first_still_runs_along_the_rows(compare):
    """As in the backward of an RMS norm, where the weight's gradient comes before the sum of the row."""

    def backward(grad, x, weight):
        scale = (x * x).mean(-1, keepdim=True).add(1e-6).rsqrt()
        columns = (grad * (x * scale)).sum(0).exp()
        scaled = grad * weight
        row = (scaled * x).sum(-1, keepdim=True)
        return columns, scaled * scale - x * row * scale**3

    program = compare(backward, Y, X, ROW, tolerance=1e-4)
    walks = [kernel for kernel in kernels(program) if operations(kernel, "accumulate")]
    assert len(walks) == 1
    assert walks[0].body.ranges == (16,)
    assert len(kernels(program)) == 2, program_text(program)


def test_a_product_between_two_nodes_keeps_them_apart(compare):
    program = compare(lambda x, y: (x * 2 + 1).relu() + ((x * 2 + 1).relu() @ y.t()).sum(), X, Y)
    (call,) = [step for step in program.schedule.steps if isinstance(step, OperatorCall)]
    assert call.operator == torch.ops.aten.mm.default
    assert len(kernels(program)) >= 2


def test_notes_say_why_neighbours_were_not_fused(compare):
    program = compare(
        lambda x: (x.exp() * 3).sum(0).exp().sum() + x.exp().t().contiguous()[0, 0], X
    )
    text = program_text(program)
    assert "fused, consumes its result" in text
    refused = [note for note in program.schedule.notes if not note.fused]
    assert all(note.reason for note in refused)


def test_transposed_reading_of_a_square_is_not_taken_for_the_same_place(compare):
    compare(lambda x: x.exp().sin() + x.exp().sin().t(), SQUARE)
    compare(lambda x: (x.exp().sin().t() * 2).softmax(-1), SQUARE)
    compare(lambda x: (x.exp().sin() * x.exp().sin().t()).sum(0), SQUARE)


def test_siblings_over_one_operand_share_its_reading(compare):
    (kernel,) = kernels(compare(lambda x: (x.sum(1), x.amax(1), x.var(1)), X))
    assert len(operations(kernel, "reduce")) == 3
    assert len(operations(kernel, "load")) == 1


def test_pieces_of_a_concatenation_share_a_kernel(compare):
    (kernel,) = kernels(compare(lambda x, y: torch.cat([x, y * 2], 1), X, Y))
    assert len(operations(kernel, "store")) == 2


def test_many_tiny_updates_share_a_kernel(compare):
    counts = [torch.tensor(n) for n in range(6)]
    (kernel,) = kernels(compare(lambda *c: tuple(n + 1 for n in c), *counts))
    assert len(operations(kernel, "store")) == 6


def test_what_is_the_same_along_a_row_is_computed_once(compare):
    images, scale = torch.randn(2, 3, 5, 7), torch.rand(3)
    program = compare(lambda x, s: x * torch.rsqrt(s + 1e-5).view(1, 3, 1, 1), images, scale)
    (kernel,) = kernels(program)
    outer = [o.name for _, o, stage in kernel.body.operations() if stage.level == "outer"]
    assert "rsqrt" in outer
    assert [stage.level for stage in kernel.body.stages] == ["outer", "inner"]


def test_loops_that_run_on_are_joined(compare):
    (kernel,) = kernels(compare(lambda x: x.exp().view(2, 8, 64) * 2, X))
    assert kernel.body.ranges == (1024,)


def test_a_row_is_vectorised_along_and_a_column_across(compare):
    (row,) = kernels(compare(lambda x: x.sum(1), X))
    (column,) = kernels(compare(lambda x: x.sum(0), X))
    assert row.decisions.vector.level == "inner"
    assert column.decisions.vector.level == "outer"
    images = torch.randn(4, 3, 8, 8)
    (channel,) = kernels(compare(lambda x: x.sum((0, 2, 3)), images))
    assert channel.decisions.vector.level == "inner"


def test_a_large_transposed_copy_is_tiled(compare):
    large = torch.randn(256, 320)
    (kernel,) = kernels(compare(lambda x: x.t().contiguous() * 2, large))
    assert kernel.decisions.tile is not None


def test_scatters_stay_alone(compare):
    index = torch.tensor([3, 3, 0, 5])
    program = compare(
        lambda i, x: torch.zeros(160, 64).index_put((i,), x[:4], accumulate=True) * 2, index, X
    )
    assert len(kernels(program)) == 3


def test_memory_of_dead_values_is_used_again(compare):
    def chain(x, y):
        for _ in range(6):
            x = (x @ y).flip(0).exp()
        return x

    program = compare(chain, SQUARE * 0.01, SQUARE * 0.01, tolerance=1e-4)
    placed = [place for place in program.memory.places.values() if place.kind == "arena"]
    assert len(placed) == 5
    assert program.memory.arena_bytes <= 2 * 32 * 32 * 4
    assert any(program.memory.release)


def test_large_values_live_no_longer_than_they_are_needed(compare):
    def chain(x, y):
        for _ in range(6):
            x = (x @ y).flip(0).exp()
        return x

    large = torch.randn(64, 64) * 0.01
    program = compare(chain, large, large, tolerance=1e-4)
    assert program.memory.arena_bytes == 0
    made = [name for names in program.memory.allocate for name in names]
    assert len(made) == 6
    released = {name for names in program.memory.release for name in names}
    assert {*made[:-1]} <= released
    assert made[-1] not in released


def test_a_kernel_writes_over_what_it_reads_last(compare):
    def blocks(x, y):
        middle = (x @ y).sin()
        return ((middle @ y).exp() + middle) @ y

    program = compare(blocks, SQUARE * 0.1, SQUARE * 0.1, tolerance=1e-4)
    pairs = [pair for kernel in kernels(program) for pair in kernel.reuses]
    assert len(pairs) == 2
    assert all(program.memory.places[new].of == old for new, old in pairs)
    assert program.memory.arena_bytes == 0


def test_what_the_library_may_hold_or_the_caller_gets_is_not_written_over(compare):
    def kept(x, y):
        product = x @ y
        order = torch.sort(product.flip(0), -1).values
        return product, product.exp(), order.sin()

    program = compare(kept, SQUARE * 0.1, SQUARE * 0.1, tolerance=1e-4)
    assert not any(kernel.reuses for kernel in kernels(program))


def test_nothing_is_written_over_while_a_later_sweep_reads_it(compare):
    def rows(x, y):
        middle = (x @ y).sin()
        return (torch.softmax(middle, -1) + middle.sum()) @ y

    program = compare(rows, SQUARE * 0.1, SQUARE * 0.1, tolerance=1e-4)
    for kernel in kernels(program):
        for new, old in kernel.reuses:
            seen = [o.buffer for _, o, _ in kernel.body.operations() if o.buffer in (new, old)]
            assert seen == sorted(seen, key=lambda name: name == new)


def test_unfused_is_one_kernel_a_node(lowered):
    graph = lowered(lambda x: F.softmax(x, -1), X)
    assert len(kernels(build(graph, fusing=False))) == len(graph.nodes)


UNARY = [torch.exp, torch.tanh, torch.neg, lambda x: x * 0.5 + 1, lambda x: x.relu()]
SHAPED = [
    lambda x: x - x.amax(-1, keepdim=True),
    lambda x: x * x.sum(-1, keepdim=True),
    lambda x: x + x.mean(0),
    lambda x: x.var(-1, keepdim=True) + x,
    lambda x: torch.softmax(x, -1),
    lambda x: torch.softmax(x, 0),
    lambda x: x.t().reshape(x.shape),
    lambda x: x.flip(0),
    lambda x: torch.cat([x[:, 2:], x[:, :2]], 1),
    lambda x: x.reshape(-1).reshape(x.shape[1], x.shape[0]).t(),
    lambda x: F.pad(x[1:], (0, 0, 1, 0)),
    lambda x: x.cumsum(1),
    lambda x: x[torch.arange(x.shape[0]).flip(0)],
]
BINARY = [torch.add, torch.mul, torch.maximum, lambda x, y: torch.where(x > 0, x, y)]


@st.composite
def programs(draw):
    steps = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["unary", "shaped", "binary"]),
                st.integers(0, 12),
                st.integers(0, 9),
                st.integers(0, 9),
            ),
            min_size=2,
            max_size=9,
        )
    )
    return draw(st.sampled_from([(4, 6), (5, 5), (3, 8)])), steps


def run_steps(steps, x, y):
    values = [x, y]
    for kind, choice, first, second in steps:
        a, b = values[first % len(values)], values[second % len(values)]
        match kind:
            case "unary":
                values.append(UNARY[choice % len(UNARY)](a))
            case "shaped":
                values.append(SHAPED[choice % len(SHAPED)](a))
            case _:
                values.append(BINARY[choice % len(BINARY)](a, b))
    scaled = [torch.tanh(value) for value in values[2:]]
    return (*scaled[-2:], values[-1].tanh().sum(0))


@pytest.mark.property
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_fused_equals_unfused_equals_eager(compare, program):
    shape, steps = program
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(shape, dtype=torch.float64, generator=generator) * 0.3
    y = torch.randn(shape, dtype=torch.float64, generator=generator) * 0.3
    compare(lambda a, b: run_steps(steps, a, b), x, y, tolerance=1e-6)
