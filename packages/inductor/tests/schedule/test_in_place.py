"""New values of inputs are computed in the inputs' memory, wherever nobody needs what was there."""

import pytest
import torch

import inductor
from inductor.codegen.program import build_kernels
from inductor.codegen.program_python import PythonLauncher
from inductor.ir import Kernel
from inductor.lowering import lower
from inductor.runtime import BuildSettings, ReferenceCallable
from inductor.schedule import build, verify_program
from inductor.schedule.checks import may_refuse

pytestmark = pytest.mark.cxx
X, OTHER = torch.randn(4, 6, 8), torch.randn(4, 6, 8)
INDEX, ROWS = torch.tensor([2]), torch.randn(4, 1, 8)


def _in_python(module):
    program = build(lower(module))
    verify_program(program)
    built = build_kernels(program, BuildSettings.from_environment(), strict=True)
    return PythonLauncher(program, built, ReferenceCallable(module))


EXECUTORS = {
    "launcher": lambda module: inductor.compile_fx(
        module, [], options=inductor.InductorOptions(strict=True, verify=True)
    ),
    "its twin": _in_python,
    "interpreter": lambda module: inductor.compile_fx(
        module, [], options=inductor.InductorOptions(executor="interpreter")
    ),
}


def _written(traced, function, inputs, pairs):
    module = traced(function, *inputs)
    module.meta["written"] = pairs
    return module


def _places(module):
    """The names of buffers that lie in inputs, and the program."""
    program = build(lower(module))
    verify_program(program)
    inputs = {entry.name for entry in program.graph.inputs}
    return {n: p.of for n, p in program.memory.places.items() if p.of in inputs}, program


def updated(x, other):
    moved = x * 0.9 + other
    return moved, moved.sum()


def row_copied(x, index, rows):
    new = torch.ops.aten.index_copy(x, 1, index, rows)
    return new, (new * 2).sum(-1)


def rows_put(x, index, rows):
    new = torch.ops.aten.index_put(x, [None, index], rows)
    return new, new.sum(-1)


def normalised(x, other):
    return torch.softmax(x + other, -1), other * 2


CASES = {
    "pointwise": (updated, (X, OTHER)),
    "one row": (row_copied, (X, INDEX, ROWS)),
    "rows put": (rows_put, (X, INDEX, ROWS)),
    "by rows": (normalised, (X, OTHER)),
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("case", CASES)
def test_the_value_is_the_input(traced, case, executor):
    function, inputs = CASES[case]
    given = [value.clone() for value in inputs]
    expected = function(*inputs)
    compiled = EXECUTORS[executor](_written(traced, function, inputs, ((0, 0),)))
    found = compiled(list(given))
    assert found[0].data_ptr() == given[0].data_ptr()
    torch.testing.assert_close(given[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])
    assert given[0]._version == 0  # whoever handed the input in counts


def test_of_a_row_that_is_written_no_other_row_is_touched(traced):
    module = _written(traced, row_copied, (X, INDEX, ROWS), ((0, 0),))
    inside, program = _places(module)
    assert set(inside.values()) == {"x0"}
    (writer,) = [step for step in program.schedule.steps if step.body.writes & inside.keys()]
    assert "x0" not in writer.body.reads | program.read_buffers


def read_later(x, other):
    new = x + 1
    return new, (other @ x.transpose(1, 2)) + new.sum()


def read_elsewhere(x):
    return (x.flip(0) + x,)


def returned_before(x):
    return x + 1, x[0]


def returned_twice(x):
    new = x + 1
    return new, new


def made_by_the_library(x):
    return (torch.bmm(x, x.transpose(1, 2)) @ x,)


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (read_elsewhere, (X,)),
        (returned_before, (X,)),
        (returned_twice, (X,)),
        (made_by_the_library, (X,)),
    ],
)
def test_what_somebody_needs_stays(traced, function, inputs):
    inside, _ = _places(_written(traced, function, inputs, ((0, 0),)))
    assert not inside


def test_what_is_read_after_it_stays_or_is_read_first(traced):
    module = _written(traced, read_later, (X, OTHER), ((0, 0),))
    given = X.clone()
    found = EXECUTORS["launcher"](module)([given, OTHER.clone()])
    expected = read_later(X, OTHER)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


def test_another_layout_or_dtype_is_no_place(traced):
    turned = X.transpose(1, 2)
    for function, inputs in (
        (lambda x: (x.to(torch.float64),), (X,)),
        (lambda x, other: (x.contiguous() + other,), (turned, turned.contiguous())),
    ):
        module = _written(traced, function, inputs, ((0, 0),))
        inside, program = _places(module)
        view = program.graph.outputs[0]
        same = view.stride == program.graph.buffers["x0"].stride
        assert bool(inside) == (same and view.dtype == torch.float32)


@pytest.mark.parametrize("function", [row_copied, rows_put])
def test_an_index_out_of_bounds_leaves_the_input_as_it_was(traced, function):
    given = X.clone()
    compiled = EXECUTORS["launcher"](_written(traced, function, (X, INDEX, ROWS), ((0, 0),)))
    with pytest.raises(IndexError):
        compiled([given, torch.tensor([9]), ROWS.clone()])
    assert torch.equal(given, X)


def test_nothing_is_written_before_a_kernel_that_may_refuse(traced):
    def looked_up(x, table, at):
        far = (at.sum(-1) * 3).to(torch.float32).relu().to(torch.int64)  # known when it is computed
        return x + 1, table[far] * x.sum()

    inputs = (X, torch.randn(9, 3), torch.tensor([[1, 1]]))
    module = _written(traced, looked_up, inputs, ((0, 0),))
    inside, program = _places(module)
    steps = [step for step in program.schedule.steps if isinstance(step, Kernel)]
    writers = [n for n, step in enumerate(steps) if step.body.writes & inside.keys()]
    refusing = [
        n
        for n, step in enumerate(steps)
        if any(may_refuse(operation) for _, operation, _ in step.body.operations())
    ]
    assert refusing
    assert all(check < writer for check in refusing for writer in writers)
    given = X.clone()
    with pytest.raises(IndexError):
        EXECUTORS["launcher"](module)([given, inputs[1], torch.tensor([[1, 9]])])
    assert torch.equal(given, X)
