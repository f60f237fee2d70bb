"""Single operators through the whole stack, where what they give is more than values: layout, memory, refusals."""

import mmap

import pytest
import torch

import compile_api

STRICT = {"strict": True}


def test_pieces_of_an_unsafe_split_have_the_strides_of_views():
    x = torch.arange(24.0).reshape(2, 3, 4).requires_grad_()
    expected = torch.unsafe_split(x, 2, 1)
    found = compile_api.compile(lambda x: torch.unsafe_split(x, 2, 1), options=STRICT)(x)
    assert [piece.stride() for piece in found] == [piece.stride() for piece in expected]
    for ours, eagers in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eagers)
    (gradient,) = torch.autograd.grad(found[1].sum(), x)
    assert gradient.sum() == 8


@pytest.mark.parametrize(
    "draw", [lambda x: x.normal_(0, -1), lambda x: x.uniform_(3, -1), lambda x: x.exponential_(-1)]
)
@pytest.mark.filterwarnings("ignore::compile_api.errors.CompileWarning")
def test_refused_parameters_of_random_operators_raise_eagers_error(draw):
    with pytest.raises(RuntimeError) as expected:
        draw(torch.zeros(3))
    with pytest.raises(RuntimeError) as found:
        compile_api.compile(draw, options={"strict": False})(torch.zeros(3))
    assert str(found.value) == str(expected.value)


def untouched(length):
    """Zeros that take memory only where they are written."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.int8)


def test_more_elements_than_32_bits_count():
    length = 2**31 + 8
    x = untouched(length)
    x[-3:] = torch.tensor([5, 7, -2])

    def function(x):
        end = x[2**31 :].to(torch.int32) * 2
        return end, x.amax(), x[:: 2**30].sum(), x.view(2, -1)[1, -2:] + 1

    compiled = compile_api.compile(function, dynamic=False, options=STRICT)
    end, most, strided, last = compiled(x)
    assert end.tolist() == [0, 0, 0, 0, 0, 10, 14, -4]
    assert (most.item(), strided.item(), last.tolist()) == (7, 0, [8, -1])


def test_indices_beyond_32_bits():
    table = untouched(2**31 + 64).view(-1, 64)
    table[-1] = 3
    rows = torch.tensor([table.shape[0] - 1, 0])
    compiled = compile_api.compile(lambda table, rows: table[rows] * 2, options=STRICT)
    assert torch.equal(compiled(table, rows), table[rows] * 2)
    with pytest.raises(IndexError):
        compiled(table, rows + 1)


def test_what_eager_refuses_raises_its_error_in_strict_mode_too():
    def draw(x):
        return x.normal_(0, -1)

    with pytest.raises(RuntimeError, match="normal expects std >= 0.0") as raised:
        compile_api.compile(draw, options=STRICT)(torch.zeros(3))
    assert type(raised.value) is RuntimeError


def test_a_hash_is_of_the_bits():
    x = torch.linspace(-2, 2, 7)
    found = compile_api.compile(torch.hash_tensor, options=STRICT)(x)
    assert found.item() == torch.hash_tensor(x).item()


def test_the_variance_of_nothing_is_eagers():
    x = torch.empty(3, 0)
    found = compile_api.compile(lambda x: torch.var_mean(x, 1), options=STRICT)(x)
    torch.testing.assert_close(found, torch.var_mean(x, 1), equal_nan=True)


def test_lists_among_the_results_of_an_operator_keep_their_places():
    with torch.library._scoped_library("ci_nested", "FRAGMENT") as library:
        library.define("parts(Tensor x) -> (Tensor[], Tensor)")
        library.impl("parts", lambda x: ([x + 1, x * 2], x * 3), "CompositeExplicitAutograd")
        empty = torch.empty_like
        torch.library.register_fake(
            "ci_nested::parts", lambda x: ([empty(x), empty(x)], empty(x)), lib=library
        )

        def program(x):
            (first, second), third = torch.ops.ci_nested.parts(x)
            return first - 1, second - 2, third - 3, torch.ops.ci_nested.parts(x)[0]

        x = torch.randn(3)
        compiled = compile_api.compile(program, fullgraph=True, options=STRICT)
        torch.testing.assert_close(compiled(x), program(x))


def scaled_steps(step, model, optimizer, batches):
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    losses = [step(model, optimizer, scaler, x, y) for x, y in batches]
    return losses, [parameter.detach() for parameter in model.parameters()], scaler.state_dict()


def scaled_step(model, optimizer, scaler, x, y):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach(), scaler.get_scale()


def test_steps_with_scaled_gradients_skip_and_grow_as_eagers_do():
    """An infinite gradient skips the step and halves the scale; two good steps double it."""
    torch.manual_seed(0)
    batches = [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(5)]
    batches[2][1][0, 0] = torch.inf
    model = torch.nn.Linear(3, 2)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    expected = scaled_steps(scaled_step, model, torch.optim.SGD(model.parameters(), 0.1), batches)
    other = torch.nn.Linear(3, 2)
    other.load_state_dict(state)
    compiled = compile_api.compile(scaled_step, options=STRICT)
    found = scaled_steps(compiled, other, torch.optim.SGD(other.parameters(), 0.1), batches)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_running_sums_of_many_elements(dynamic):
    """Sums are cut into chunks; what runs along with one goes on from chunk to chunk."""
    torch.manual_seed(0)
    x = torch.rand(3, 9001)

    def program(x):
        running, total = x.cumsum(1), x.sum(1)
        return running, total, x.double().cumsum(1), x.std(1), (x + 0.5).cumprod(1)

    found = compile_api.compile(program, dynamic=dynamic, options=STRICT)(x)
    torch.testing.assert_close(found, program(x))
    assert torch.equal(found[0], x.cumsum(1))  # in double, as eager
