"""More of what training programs do, for the random programs of `training_programs.py`.

Dtypes that promote, `out=`, writes through views of what was detached, complex and empty tensors, indices that
repeat, `where`, hooks of tensors, kept gradients, hooks of saved tensors, checkpoints, dropout, gradients inside,
two backwards, gradients of gradients. Importing it adds the operations and inputs to the tables there; `drawn` draws
a program from all of them.
"""

import random
from dataclasses import replace

import torch
from torch.nn.functional import dropout
from torch.utils.checkpoint import checkpoint

import training_programs as programs
from training_programs import Instruction, Program


def as_complex(a):
    return a if a.is_complex() else torch.complex(a.float(), a.float().cos())


def positions(a):
    """Rows to write to, of which one comes twice."""
    return torch.tensor([0, a.shape[0] - 1, 0])


def like_rows(a, b):
    """As many equal rows for `positions`, so that their order is all the same."""
    return b.sum().to(a.dtype).expand(3, *a.shape[1:])


PROMOTION = {
    "double": lambda a, b: a.double(),
    "to float": lambda a, b: a.real.float() if a.is_complex() else a.float(),
    "int32": lambda a, b: a.detach().int(),
    "small": lambda a, b: a.detach().clamp(-3, 3).to(torch.int8),
    "as other": lambda a, b: a.to(b.dtype),
    "number": lambda a, b: a + 1.5,
    "whole number": lambda a, b: a * 2,
    "power": lambda a, b: a.abs() ** 2,
    "exponent": lambda a, b: 2**a,
    "divide": lambda a, b: a / 3,
    "divide whole": lambda a, b: a.detach() // 2,
    "remainder": lambda a, b: a % 3,
    "double scalar": lambda a, b: a * torch.tensor(2.5, dtype=torch.float64),
    "double row": lambda a, b: a + torch.ones(1, dtype=torch.float64),
    "of bools": lambda a, b: (a > 0) + b,
    "equal": lambda a, b: (a == b).sum(),
    "long and other": lambda a, b: a + b.detach().real.long(),
    "add double_": lambda a, b: a.add_(torch.ones(1, dtype=torch.float64)),
    "mul mixed_": lambda a, b: a.mul_(b.to(torch.float64 if a.is_floating_point() else b.dtype)),
    "copy of other_": lambda a, b: a.copy_(b.double()),
}
OUT = {
    "sin out": lambda a, b: torch.sin(b.detach(), out=a),
    "add out": lambda a, b: torch.add(a.detach(), b.detach(), out=torch.empty_like(a.detach())),
    "mul out": lambda a, b: torch.mul(a.detach(), 2, out=a.detach()),
    "sum out": lambda a, b: torch.sum(a.detach(), 0, out=b.detach()[0]),
    "cat out": lambda a, b: torch.cat(
        [a.detach(), b.detach()], out=a.new_empty(a.shape[0] + b.shape[0], *a.shape[1:])
    ),
    "max out": lambda a, b: torch.max(
        a.detach(), 0, out=(a.new_empty(a.shape[1:]), a.new_empty(a.shape[1:], dtype=torch.long))
    )[0],
    "wide out": lambda a, b: torch.add(
        a.detach(), b.detach(), out=torch.empty(a.shape, dtype=torch.float64)
    ),
    "column out": lambda a, b: torch.exp(a.detach(), out=torch.empty(2, *a.shape)[1]),
    "matmul out": lambda a, b: torch.matmul(
        a.detach().reshape(1, -1), b.detach().reshape(-1, 1), out=a.new_empty(1, 1)
    ),
    "where out": lambda a, b: torch.where(a.detach() > 0, a.detach(), b.detach(), out=b.detach()),
}
BEHIND = {
    "behind row_": lambda a, b: a.detach()[0].mul_(2),
    "behind flat_": lambda a, b: a.detach().view(-1).add_(1),
    "behind slice_": lambda a, b: a.detach()[1:].copy_(b.detach()[1:]),
    "behind diagonal_": lambda a, b: a.detach().diagonal().zero_(),
    "behind t_": lambda a, b: a.detach().t_().sub_(1),
    "behind item_": lambda a, b: a.detach().unsqueeze(0).__setitem__((0, 0), 0.25),
    "clone's row_": lambda a, b: a.clone().detach()[0].mul_(b.detach()[0]),
    "row of product_": lambda a, b: (a * b)[0].mul_(2),
}
COMPLEX = {
    "complex": lambda a, b: as_complex(a),
    "complex of two": torch.complex,
    "polar": lambda a, b: torch.polar(a.abs(), b),
    "times i": lambda a, b: a * 1j,
    "plus complex": lambda a, b: a + (1 + 2j),
    "conj": lambda a, b: as_complex(a).conj(),
    "conj product": lambda a, b: as_complex(a).conj() * b,
    "real": lambda a, b: as_complex(a).real,
    "imag": lambda a, b: as_complex(a).imag,
    "as real": lambda a, b: torch.view_as_real(as_complex(a).resolve_conj()),
    "as complex": lambda a, b: torch.view_as_complex(a.reshape(-1, 2)),
    "magnitude": lambda a, b: as_complex(a).abs(),
    "angle": lambda a, b: as_complex(a).angle(),
    "complex exp": lambda a, b: as_complex(a).exp(),
    "complex matmul": lambda a, b: as_complex(a).reshape(1, -1) @ as_complex(b).reshape(-1, 1),
    "real part_": lambda a, b: as_complex(a).real.mul_(2),
    "imag part_": lambda a, b: as_complex(a).imag.copy_(b.real),
    "rotate_": lambda a, b: as_complex(a).mul_(1j),
    "as real_": lambda a, b: torch.view_as_real(as_complex(a)).mul_(3),
    "conj row_": lambda a, b: as_complex(a).conj()[0].mul_(2),
}
EMPTY = {
    "none": lambda a, b: a[:0],
    "none last": lambda a, b: a[..., :0],
    "sum of none": lambda a, b: a[:0].sum(),
    "mean of none": lambda a, b: a[:0].mean(),
    "product of none": lambda a, b: a[:0].prod(0),
    "cat none": lambda a, b: torch.cat([a[:0], b]),
    "times none": lambda a, b: a[:0].reshape(0, -1).mT @ b[:0].reshape(0, -1),
    "new none": lambda a, b: a.new_empty((0, 4)),
    "write none_": lambda a, b: a[:0].mul_(2),
    "set none_": lambda a, b: a.__setitem__(slice(0, 0), 1.0),
    "none's index": lambda a, b: a[torch.zeros(0, dtype=torch.long)],
    "softmax of none": lambda a, b: a[:0].softmax(-1),
    "where none": lambda a, b: torch.where(a[:0] > 0, a[:0], b[:0]),
}
INDEX = {
    "where number": lambda a, b: torch.where(a > 0, a, 2),
    "where numbers": lambda a, b: torch.where(a > 0, 1.5, 2),
    "where promoting": lambda a, b: torch.where(a > 0, a.double(), b),
    "where broadcast": lambda a, b: torch.where(b.bool(), a[:1], b),
    "where scalar": lambda a, b: torch.where(a > 0, a.sum(), b),
    "where both": lambda a, b: a.where(a.isfinite() & (b > 0), b),
    "put": lambda a, b: a.index_put((positions(a),), like_rows(a, b)),
    "put_": lambda a, b: a.index_put_((positions(a),), like_rows(a, b)),
    "put added_": lambda a, b: a.index_put_(
        (positions(a),), a.new_ones(3, *a.shape[1:]), accumulate=True
    ),
    "put rows added_": lambda a, b: a.index_put_((positions(a),), b[:1], accumulate=True),
    "put pairs_": lambda a, b: a.index_put_(
        (positions(a), torch.tensor([0, 1, 0])), b.sum().to(a.dtype), accumulate=True
    ),
    "item added_": lambda a, b: a.__setitem__(positions(a), a[positions(a)] + 1),
    "rows": lambda a, b: a[positions(a)],
    "rows and columns": lambda a, b: a[positions(a)][..., None, 0],
    "pairs": lambda a, b: a[positions(a), torch.tensor([1, 0, 1])],
    "select rows": lambda a, b: a.index_select(0, positions(a)),
    "take": lambda a, b: a.take(torch.tensor([0, 3, 0])),
    "gather": lambda a, b: a.gather(-1, torch.zeros(a.shape, dtype=torch.long)),
    "scatter add": lambda a, b: a.scatter_add(0, torch.zeros(b.shape, dtype=torch.long), b),
    "scatter add_": lambda a, b: a.scatter_add_(
        -1, torch.zeros(a.shape, dtype=torch.long), a.clone()
    ),
    "scatter number_": lambda a, b: a.scatter_(
        0, torch.zeros(1, *a.shape[1:], dtype=torch.long), 0.5
    ),
    "index add twice_": lambda a, b: a.index_add_(0, torch.tensor([0, 0]), b[:2], alpha=2),
    "index fill_": lambda a, b: a.index_fill_(0, positions(a), 0.25),
    "index copy": lambda a, b: a.index_copy(0, torch.tensor([0]), b[:1]),
    "masked scatter": lambda a, b: a.masked_scatter(a > 0, b),
}


def hooked(a, b):
    if a.requires_grad:
        a.register_hook(lambda gradient: None if gradient is None else gradient * 2)


def hooked_twice(a, b):
    if a.requires_grad:
        a.register_hook(lambda gradient: None if gradient is None else gradient.sin())
        handle = a.register_hook(lambda gradient: gradient * 5)
        handle.remove()


def watched(a, b):
    if a.requires_grad:
        a.register_hook(lambda gradient: None)


def retained(a, b):
    if a.requires_grad:
        a.retain_grad()


def inner_gradient(a, b):
    with torch.enable_grad():
        y = a.detach().clone().requires_grad_()
        return (
            torch.autograd.grad((y.sin() * y).real.sum(), y)[0] * 1
        )  # versions of sums are the engine's


def inner_gradient_of_product(a, b):
    with torch.enable_grad():
        y = a.detach().clone().requires_grad_()
        return torch.autograd.grad((y * y * b).real.sum(), y, create_graph=True)[0] * 1


def gradient_of_argument(a, b):
    if not a.requires_grad:
        return None
    return torch.autograd.grad((a.sin() * 2).real.sum(), a, retain_graph=True)[0] * 1


def written_inside(a, b):
    made = a * b
    made[0].mul_(2)
    return made.sin_().view(-1)


TRAINING = {
    "hook": hooked,
    "hooks": hooked_twice,
    "watch": watched,
    "retain": retained,
    "retain again": retained,
    "checkpoint": lambda a, b: checkpoint(
        lambda a, b: (a.sin() * b).exp(), a, b, use_reentrant=False
    ),
    "checkpoint of writes": lambda a, b: checkpoint(written_inside, a, b, use_reentrant=False),
    "checkpoint of dropout": lambda a, b: checkpoint(
        lambda a: dropout(a, 0.5) * a, a, use_reentrant=False
    ),
    "dropout": lambda a, b: dropout(a, 0.5),
    "dropout_": lambda a, b: dropout(a, 0.5, inplace=True),
    "random": lambda a, b: a * torch.rand_like(a.real.float()),
    "inner gradient": inner_gradient,
    "inner gradient of product": inner_gradient_of_product,
    "gradient of argument": gradient_of_argument,
    "softmax": lambda a, b: a.softmax(-1),
    "normal": lambda a, b: (a - a.mean()) / (a.square().mean() + 1e-5).sqrt(),
    "tanh_": lambda a, b: a.tanh_(),
    "exp_": lambda a, b: a.exp_(),
}
GROUPS = {
    "promotion": PROMOTION, "out": OUT, "behind": BEHIND, "complex": COMPLEX,
    "empty": EMPTY, "index": INDEX, "training": TRAINING,
}  # fmt: skip
for _group in GROUPS.values():
    programs.OPERATIONS.update({name: ("pure", function) for name, function in _group.items()})


def complex_inputs():
    x = torch.randn(3, 4, dtype=torch.complex64).requires_grad_()
    source = torch.randn(3, 4, dtype=torch.complex64).requires_grad_()
    base = torch.randn(12, dtype=torch.complex64)
    return [x, source * 1, base.view(3, 4), torch.randn(3, 4)], [source, base]


def lazy_inputs():
    source = torch.randn(3, 4, dtype=torch.complex64).requires_grad_()
    base = torch.randn(3, 4, dtype=torch.complex64)
    return [torch.randn(3, 4).requires_grad_(), source.conj(), base.conj(), base.imag], [
        source,
        base,
    ]


def empty_inputs():
    x = torch.randn(0, 4).requires_grad_()
    source = torch.randn(3, 4).requires_grad_()
    base = torch.randn(12)
    return [x, source * 1, base[:0].view(0, 4), base.view(3, 4)], [source, base]


def mixed_inputs():
    x = torch.randn(3, 4).requires_grad_()
    source = torch.randn(3, 4, dtype=torch.float64).requires_grad_()
    whole = torch.arange(12).view(3, 4)
    return [x, source * 1, whole, whole % 2 == 0, torch.tensor(2.0).requires_grad_()], [source]


programs.MORE_INPUTS.update(
    {"complex": complex_inputs, "lazy": lazy_inputs, "empty": empty_inputs, "mixed": mixed_inputs}
)
INPUTS = (*programs.INPUTS, "separate", "separate", *programs.MORE_INPUTS, "complex", "mixed")
MODES = (*["grad"] * 8, "no_grad", "packed")
BACKWARDS = ("once", "once", "twice", "of gradients", "of gradients", "asked for")


def _choice(source):
    if source.random() < 0.4:
        return source.choice(programs.NAMES[source.choice(programs.KINDS)])
    return source.choice(sorted(GROUPS[source.choice(sorted(GROUPS))]))


def accepted(program):
    """The program without the instructions that eager refuses."""
    while len(program.instructions) > (length := programs.instructions_that_run(program)):
        kept = program.instructions[:length] + program.instructions[length + 1 :]
        program = replace(program, instructions=kept)
    return program


def drawn(seed):
    """The program of a seed, of instructions that eager accepts."""
    source = random.Random(f"wider {seed}")
    instructions = tuple(
        Instruction(
            _choice(source), source.randrange(10), source.randrange(10), source.choice(MODES)
        )
        for _ in range(source.randint(1, 8))
    )
    returned = tuple(source.randrange(12) for _ in range(source.randint(1, 4)))
    program = Program(
        source.choice(INPUTS),
        instructions,
        returned,
        source.choice([-1, -1, source.getrandbits(8)]),
        source.random() > 0.05,
        source.choice(BACKWARDS),
        source.random() < 0.1,
        programs.watched(f"wider {seed}"),
    )
    return accepted(program)
