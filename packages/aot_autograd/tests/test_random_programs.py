"""Property: any short program of views, in-place operators and outputs behaves compiled as in eager.

A program is a list of instructions over a growing list of tensors; each instruction names operands
by number (modulo what exists). Instructions that eager refuses end the program there. Everything
that `agree` compares is compared: values, layouts, aliases, versions, autograd state, gradients.
"""

import os

import hypothesis
import torch
from hypothesis import strategies as st

from aot_autograd import UnsupportedAliasing, UnsupportedOperator

LONG = int(os.environ.get("AOT_RANDOM_PROGRAMS", "60"))

VIEWS = {
    "t": lambda a: a.t() if a.dim() == 2 else a.view(-1),
    "flat": lambda a: a.view(-1),
    "rows": lambda a: a[1:],
    "row": lambda a: a[0],
    "every_other": lambda a: a[::2],
    "last": lambda a: a[..., :1],
    "unsqueeze": lambda a: a.unsqueeze(0),
    "squeeze": lambda a: a.squeeze(),
    "diagonal": lambda a: a.diagonal() if a.dim() == 2 else a.view(-1),
    "detach": lambda a: a.detach(),
    "reshape": lambda a: a.reshape(-1, 2),
    "split": lambda a: a.split(2)[-1],
    "unbind": lambda a: a.unbind(0)[-1],
    "same": lambda a: a.view_as(a),
    "expand": lambda a: a.unsqueeze(0).expand(2, *a.shape),
    "contiguous": lambda a: a.contiguous(),
    "strided": lambda a: a.as_strided((2, 2), (3, 1)),
}
PURE = {
    "sin": lambda a, b: a.sin(),
    "mul": lambda a, b: a * b,
    "add": lambda a, b: a + b,
    "scale": lambda a, b: a * 3,
    "sum": lambda a, b: a.sum(0, keepdim=True),
    "clone": lambda a, b: a.clone(),
    "relu": lambda a, b: a.relu(),
    "exp": lambda a, b: a.exp(),
    "argmax": lambda a, b: a.argmax(),
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
}
IN_PLACE = {
    "add_": lambda a, b: a.add_(1),
    "mul_": lambda a, b: a.mul_(b),
    "copy_": lambda a, b: a.copy_(b),
    "zero_": lambda a, b: a.zero_(),
    "relu_": lambda a, b: a.relu_(),
    "sin_": lambda a, b: a.sin_(),
    "setitem": lambda a, b: a.__setitem__(0, 2.0),
    "setrow": lambda a, b: a.__setitem__(0, b.sum()),
    "fill_": lambda a, b: a.fill_(0.5),
    "masked": lambda a, b: a.masked_fill_(a > 0, 0.25),
    "clamp_": lambda a, b: a.clamp_(-0.5, 0.5),
    "detach_": lambda a, b: a.detach_(),
    "t_": lambda a, b: a.t_() if a.dim() == 2 else a.unsqueeze_(0),
    "unsqueeze_": lambda a, b: a.unsqueeze_(-1),
}
EVERY = [(name, VIEWS[name]) for name in VIEWS]
EVERY += [(name, PURE[name]) for name in PURE]
EVERY += [(name, IN_PLACE[name]) for name in IN_PLACE]

instruction = st.tuples(
    st.sampled_from([name for name, _ in EVERY]),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from(["grad", "grad", "grad", "no_grad"]),
)
programs = st.tuples(
    st.lists(instruction, min_size=1, max_size=7),
    st.lists(st.integers(0, 11), min_size=1, max_size=4),
    st.sampled_from(["separate", "overlapping", "twice"]),
)


def run(program, inputs):
    instructions, chosen, _ = program
    values = list(inputs)
    for name, left, right, mode in instructions:
        a, b = values[left % len(values)], values[right % len(values)]
        with torch.set_grad_enabled(mode == "grad"):
            made = VIEWS[name](a) if name in VIEWS else {**PURE, **IN_PLACE}[name](a, b)
        if isinstance(made, torch.Tensor):
            values.append(made)
    return [values[-1 - (number % len(values))] for number in chosen]


def inputs_for(kind, tracked):
    torch.manual_seed(7)
    x = torch.randn(3, 4).requires_grad_()
    source = torch.randn(3, 4).requires_grad_()
    plain = torch.randn(3, 4)
    if kind == "overlapping":
        base = torch.randn(20)
        return tracked([x, source * 1, base[:12].view(3, 4), base[4:16].view(3, 4)], [source])
    if kind == "twice":
        return tracked([x, source * 1, plain, plain], [source])
    return tracked([x, source * 1, plain, torch.randn(3, 4)], [source])


def eager_accepts(program, tracked):
    """The program, shortened to what eager runs, forward and backward; None if nothing is left."""
    instructions, chosen, kind = program
    for length in range(len(instructions), 0, -1):
        shorter = (instructions[:length], chosen, kind)
        try:
            inputs = inputs_for(kind, tracked)
            # A stale view made under no_grad raises when autograd looks at it.
            for value in [*inputs, *run(shorter, inputs)]:
                assert value.is_leaf in (True, False)
        except (RuntimeError, IndexError, ValueError):
            continue
        return shorter
    return None


@hypothesis.settings(
    max_examples=LONG,
    deadline=None,
    suppress_health_check=[
        hypothesis.HealthCheck.function_scoped_fixture,
        hypothesis.HealthCheck.too_slow,
    ],
)
@hypothesis.given(programs)
def test_random_programs(agree, tracked, program):
    shorter = eager_accepts(program, tracked)
    hypothesis.assume(shorter is not None)
    try:
        agree(
            lambda *inputs: run(shorter, inputs),
            lambda: inputs_for(shorter[2], tracked),
            backward_may_fail=True,
        )
    except (UnsupportedOperator, UnsupportedAliasing):
        # Refused by name, so that the caller runs it by eager.
        hypothesis.reject()
