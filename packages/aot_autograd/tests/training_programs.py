"""Programs of views, in-place operators, changes of layout and outputs, and what they do compiled and in eager.

A program is plain data drawn from a seed: how its inputs are made, a list of instructions over a growing list of
values, and what it returns. Instructions name operands by number, modulo what exists; one that eager refuses ends a
program. Everything is compared: values, layouts, aliases, versions, autograd state, gradients, of inputs, of what
the inputs were made from, and of outputs. `wider_programs.py` adds operations, inputs and ways to differentiate.
"""

import random
import re
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

import aot_autograd
import primtorch.errors

REFUSED = (
    aot_autograd.UnsupportedAliasing,
    aot_autograd.UnsupportedOperator,
    primtorch.errors.DataDependentError,
)

VIEWS = {
    "t": lambda a: a.t() if a.dim() == 2 else a.view(-1),
    "flat": lambda a: a.view(-1),
    "rows": lambda a: a[1:],
    "row": lambda a: a[0],
    "every other": lambda a: a[::2],
    "last": lambda a: a[..., :1],
    "narrow": lambda a: a.narrow(-1, 1, 2),
    "unsqueeze": lambda a: a.unsqueeze(0),
    "squeeze": lambda a: a.squeeze(),
    "diagonal": lambda a: a.diagonal() if a.dim() == 2 else a.view(-1),
    "reshape": lambda a: a.reshape(-1, 2),
    "movedim": lambda a: a.movedim(0, -1),
    "split": lambda a: a.split(2)[-1],
    "chunk": lambda a: a.chunk(2, -1)[0],
    "unbind": lambda a: a.unbind(0)[-1],
    "same": lambda a: a.view_as(a),
    "expand": lambda a: a.unsqueeze(0).expand(2, *a.shape),
    "contiguous": lambda a: a.contiguous(),
    "strided": lambda a: a.as_strided((2, 2), (3, 1)),
    "unfold": lambda a: a.unfold(0, 2, 1),
}
CUTS = {
    "detach": lambda a: a.detach(),
    "data": lambda a: a.data,
    "detached row": lambda a: a.detach()[0],
    "row detached": lambda a: a[0].detach(),
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
    "sigmoid": lambda a, b: a.sigmoid(),
    "argmax": lambda a, b: a.argmax(),
    "long": lambda a, b: a.long(),
    "bool": lambda a, b: a > 0,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "matmul": lambda a, b: a.reshape(1, -1) @ b.reshape(-1, 1),
    "zeros": lambda a, b: torch.zeros_like(a),
    "max": lambda a, b: a.max(0)[0],
}
IN_PLACE = {
    "add_": lambda a, b: a.add_(1),
    "mul_": lambda a, b: a.mul_(b),
    "addcmul_": lambda a, b: a.addcmul_(b, b, value=0.5),
    "copy_": lambda a, b: a.copy_(b),
    "zero_": lambda a, b: a.zero_(),
    "relu_": lambda a, b: a.relu_(),
    "sin_": lambda a, b: a.sin_(),
    "sigmoid_": lambda a, b: a.sigmoid_(),
    "set item": lambda a, b: a.__setitem__(0, 2.0),
    "set row": lambda a, b: a.__setitem__(0, b.sum()),
    "set slice": lambda a, b: a.__setitem__(slice(1, None), b[1:]),
    "fill_": lambda a, b: a.fill_(0.5),
    "masked fill_": lambda a, b: a.masked_fill_(a > 0, 0.25),
    "masked set": lambda a, b: a.__setitem__(a > 0, 0.5),
    "clamp_": lambda a, b: a.clamp_(-0.5, 0.5),
    "index add_": lambda a, b: a.index_add_(0, torch.zeros(1, dtype=torch.long), b[:1]),
    "out": lambda a, b: torch.sin(b, out=a),
}
METADATA = {
    "detach_": lambda a, b: a.detach_(),
    "t_": lambda a, b: a.t_() if a.dim() == 2 else a.unsqueeze_(0),
    "transpose_": lambda a, b: a.transpose_(0, -1),
    "unsqueeze_": lambda a, b: a.unsqueeze_(-1),
    "squeeze_": lambda a, b: a.squeeze_(),
}
INPUTS = (
    "separate",
    "overlapping",
    "twice",
    "views",
    "view and base",
    "tracked views",
    "tracked view and base",
    "data of one",
)
MODES = ("grad", "grad", "grad", "no_grad")
KINDS = (
    "view",
    "view",
    "view",
    "pure",
    "pure",
    "in place",
    "in place",
    "in place",
    "metadata",
    "cut",
)
OPERATIONS = {
    **{name: ("view", function) for name, function in VIEWS.items()},
    **{name: ("cut", function) for name, function in CUTS.items()},
    **{name: ("pure", function) for name, function in PURE.items()},
    **{name: ("in place", function) for name, function in IN_PLACE.items()},
    **{name: ("metadata", function) for name, function in METADATA.items()},
}
NAMES = {
    kind: [name for name, (one, _) in OPERATIONS.items() if one == kind] for kind in set(KINDS)
}


@dataclass(frozen=True)
class Instruction:
    name: str
    left: int
    right: int
    mode: str


@dataclass(frozen=True)
class Program:
    inputs: str
    instructions: tuple[Instruction, ...]
    returned: tuple  # numbers of values counted from the last, or constants in a 1-tuple
    differentiated: int  # outputs whose gradient is asked for, as bits
    grad_mode: bool = True
    backward: str = "once"  # or "twice", "asked for", "of gradients"
    packed: bool = False  # whether hooks see the tensors that the call saves
    watched: int = (
        0  # outputs that retain their gradient (even ones) or have a hook that doubles it, as bits
    )


def drawn(seed):
    """The program of a seed."""
    source = random.Random(seed)
    instructions = tuple(
        Instruction(
            source.choice(NAMES[source.choice(KINDS)]),
            source.randrange(10),
            source.randrange(10),
            source.choice(MODES),
        )
        for _ in range(source.randint(1, 8))
    )
    returned = tuple(
        (source.choice([None, 3, "text", 1.5]),) if source.random() < 0.1 else source.randrange(12)
        for _ in range(source.randint(1, 4))
    )
    return Program(
        source.choice(INPUTS),
        instructions,
        returned,
        source.choice([-1, -1, source.getrandbits(8)]),
        source.random() > 0.1,
        watched=watched(seed),
    )


def watched(seed):
    """The outputs that the program of a seed looks at, as bits."""
    return random.Random(f"watched {seed}").choice([0, -1, 1, 2, 5])


def run_program(program, inputs):
    """Execute a program on tensors."""
    values = list(inputs)
    for instruction in program.instructions:
        kind, function = OPERATIONS[instruction.name]
        a = values[instruction.left % len(values)]
        b = values[instruction.right % len(values)]
        with torch.set_grad_enabled(instruction.mode != "no_grad" and torch.is_grad_enabled()):
            if instruction.mode == "packed":
                with torch.autograd.graph.saved_tensors_hooks(torch.clone, _itself):
                    made = function(a) if kind in ("view", "cut") else function(a, b)
            else:
                made = function(a) if kind in ("view", "cut") else function(a, b)
        if isinstance(made, torch.Tensor):
            values.append(made)
    return [
        number[0] if isinstance(number, tuple) else values[-1 - (number % len(values))]
        for number in program.returned
    ]


def _itself(tensor):
    return tensor


MORE_INPUTS = {}
"""Further kinds, by name: what makes (inputs, what they were made from)."""


def make_inputs(kind):
    """(inputs, what they were made from)."""
    torch.manual_seed(7)
    if kind in MORE_INPUTS:
        return MORE_INPUTS[kind]()
    x = torch.randn(3, 4).requires_grad_()
    source = torch.randn(3, 4).requires_grad_()
    base = torch.randn(20)
    tracked = base.clone().requires_grad_()
    match kind:
        case "overlapping":
            return [x, source * 1, base[:12].view(3, 4), base[4:16].view(3, 4)], [source, base]
        case "twice":
            return [x, source * 1, base[:12].view(3, 4).clone()] * 2, [source]
        case "views":
            return [x, base[:12].view(3, 4), torch.ones(3, 4, dtype=torch.long)], [base]
        case "view and base":
            return [source * 1, base, base[8:].view(3, 4)], [source]
        case "data of one":
            return [x, base[:12].view(3, 4), base.data[4:16].view(3, 4), source * 1], [source, base]
        case "tracked views":
            whole = tracked * 1
            return [x, whole[:12].view(3, 4), whole[4:16].view(3, 4)], [tracked, whole]
        case "tracked view and base":
            whole = tracked * 1
            return [x, whole[8:].view(3, 4), whole], [tracked]
    return [x, source * 1, base[:12].view(3, 4).clone(), torch.randn(3, 4)], [source]


def instructions_that_run(program):
    """How many instructions eager accepts."""
    for length in range(len(program.instructions), 0, -1):
        shorter = replace(program, instructions=program.instructions[:length])
        try:
            inputs, made_from = make_inputs(program.inputs)
            with torch.set_grad_enabled(program.grad_mode):
                outputs = run_program(shorter, inputs)
            # A stale view made under no_grad raises when autograd looks at it.
            for value in [*inputs, *outputs, *made_from]:
                assert not isinstance(value, torch.Tensor) or value.is_leaf in (True, False)
        except (RuntimeError, IndexError, ValueError, TypeError):
            continue
        return length
    return 0


def smaller(program):
    """Programs that are a step simpler, for whoever looks at a failure."""
    for number in range(len(program.instructions)):
        kept = program.instructions[:number] + program.instructions[number + 1 :]
        yield replace(program, instructions=kept)
    for number in range(len(program.returned)):
        kept = program.returned[:number] + program.returned[number + 1 :]
        yield replace(program, returned=kept)
    if program.differentiated != -1:
        yield replace(program, differentiated=-1)
    if program.backward != "once":
        yield replace(program, backward="once")
    if program.packed:
        yield replace(program, packed=False)
    if program.inputs != "separate":
        yield replace(program, inputs="separate")
    for number, one in enumerate(program.instructions):
        for changed in (replace(one, mode="grad"), replace(one, left=0), replace(one, right=0)):
            if changed != one:
                before, after = program.instructions[:number], program.instructions[number + 1 :]
                yield replace(program, instructions=(*before, changed, *after))
    for number, one in enumerate(program.returned):
        if one != 0:
            yield replace(
                program,
                returned=(*program.returned[:number], 0, *program.returned[number + 1 :]),
            )


def state_of(values, versions):
    """Everything about tensors but their numbers, as text."""
    lines = []
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            lines.append(repr(value))
            continue
        earlier = [one if isinstance(one, torch.Tensor) else None for one in values[:number]]
        same = [other for other, one in enumerate(earlier) if one is value]
        memory = value.untyped_storage()._cdata
        shares = [
            other
            for other, one in enumerate(earlier)
            if one is not None and one.untyped_storage()._cdata == memory
        ]
        offset = value.storage_offset() if set(shares).difference(same) else 0
        version = value._version - versions.get(number, 0)
        lines.append(
            f"{value.dtype} {tuple(value.shape)} {value.stride()} "
            f"offset {offset} is {same} shares {shares} version {version} "
            f"requires_grad {value.requires_grad} is_leaf {value.is_leaf} grad_fn {value.grad_fn is not None} "
            f"is_view {value._is_view()} retains {value.retains_grad} lazy {value.is_conj()} {value.is_neg()}"
        )
    return lines


def total_of(values, chosen):
    total = None
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor) or not value.requires_grad or value.is_leaf:
            continue
        if not chosen >> (number % 8) & 1:
            continue
        term = (value * torch.linspace(0.5, 1.5, value.numel()).view(value.shape)).sum()
        if term.is_complex():
            term = term.real + 2 * term.imag
        total = term if total is None else total + term
    return total


def watch(outputs, numbers):
    """Look at what arrives at outputs, by their bits: even ones retain it, a hook doubles it at the others."""
    for number, one in enumerate(outputs):
        if numbers >> number & 1:
            # A view of what was written gets its history here; eager's own functions lose what they do, or crash.
            assert one.grad_fn is not None
            if number % 2:
                one.register_hook(lambda gradient: None if gradient is None else gradient * 2)
            else:
                one.retain_grad()


def watchable(program):
    """The outputs, as bits, that can be looked at, and those of them that are neither views nor arguments."""
    inputs, made_from = make_inputs(program.inputs)
    with torch.set_grad_enabled(program.grad_mode):
        outputs = run_program(program, inputs)
    others = {id(one) for one in (*inputs, *made_from)}
    every = own = 0
    for number, one in enumerate(outputs):
        if isinstance(one, torch.Tensor) and one.requires_grad and not one.is_leaf:
            every |= 1 << number
            if id(one) not in others and not one._is_view():
                own |= 1 << number
    return every, own


def observed(function, program):
    """What a program does: (state, numbers, gradients)."""
    inputs, made_from = make_inputs(program.inputs)
    tensors = [*inputs, *made_from]
    versions = {number: one._version for number, one in enumerate(tensors)}
    leaves = [one for one in tensors if one.is_leaf and one.requires_grad]
    with torch.set_grad_enabled(program.grad_mode), ExitStack() as stack:
        if program.packed:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(torch.clone, _itself))
        outputs = list(function(*inputs))
    watch(outputs, program.watched)
    values = [*tensors, *outputs]
    state = state_of(values, versions)
    numbers = [one.detach().clone() for one in values if isinstance(one, torch.Tensor)]
    failure, found = "", []
    total = total_of(values, program.differentiated)
    if total is not None:
        try:
            found = differentiated(total, leaves, program.backward)
        except RuntimeError as error:
            failure = str(error)[:60]
    kept = [one for one in values if isinstance(one, torch.Tensor) and one.retains_grad]
    # A backward that fails leaves whatever it had reached.
    grads = [
        None if failure or one.grad is None else one.grad.detach().clone()
        for one in [*leaves, *kept]
    ]
    return [*state, f"backward {failure}"], numbers, [*found, *grads]


def differentiated(total, leaves, how):
    """Run the backwards of a program; the gradients that no tensor holds afterwards."""
    match how:
        case "once":
            total.backward()
        case "twice":
            total.backward(retain_graph=True)
            total.backward()
        case "asked for":
            found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
            return [*found, *torch.autograd.grad(total, leaves[::-1], allow_unused=True)]
        case "of gradients":
            found = torch.autograd.grad(total, leaves, create_graph=True, allow_unused=True)
            terms = [
                one.abs().square().sum() for one in found if one is not None and one.requires_grad
            ]
            if terms:
                sum(terms).backward()
            return [None if one is None else one.detach() for one in found]
    return []


def by_aot(compiler):
    """What compiles a function of tensors with this package alone."""

    def compile_function(function):
        options = {"fallback_random": True, "verify": True}
        return aot_autograd.aot_function(function, compiler, options=options)

    return compile_function


def difference(program, compile_function):
    """What differs from eager, as text; empty where nothing does, None where the program is refused.

    Views and arguments are not looked at where a warning says that it would be in vain.
    """
    every, own = watchable(program) if program.watched else (0, 0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", aot_autograd.IncompleteGradient)
        found = difference_of(replace(program, watched=program.watched & every), compile_function)
    if found and any(issubclass(one.category, aot_autograd.IncompleteGradient) for one in told):
        return difference_of(replace(program, watched=program.watched & own), compile_function)
    return found


def difference_of(program, compile_function):
    """The same, with all that is looked at."""
    compiled = compile_function(lambda *inputs: run_program(program, inputs))
    state, numbers, grads = observed(lambda *inputs: run_program(program, inputs), program)
    try:
        ours_state, ours_numbers, ours_grads = observed(compiled, program)
    except REFUSED:
        return None
    except Exception as error:  # noqa: BLE001 - whatever it is, eager did not raise it
        return f"{type(error).__name__}: {error}"
    for want, got in zip(state, ours_state, strict=True):
        if want != got and not _owned_instead(want, got):
            return f"eager: {want}\nours:  {got}"
    for number, (want, got) in enumerate(zip(numbers, ours_numbers, strict=True)):
        if not close(want, got, 1e-5, 1e-6):
            return f"value {number}, eager: {want}\nours:  {got}"
    for want, got in zip(grads, ours_grads, strict=True):
        if (
            program.backward == "of gradients"
            and got is None
            and want is not None
            and not want.any()
        ):
            continue  # a gradient that is zero whatever happens needs no history
        if (want is None) != (got is None):
            return f"gradient, eager: {want}\nours:  {got}"
        if want is not None and not close(want, got, 1e-4, 1e-5):
            return f"gradient, eager: {want}\nours:  {got}"
    return ""


def _owned_instead(want, got):
    """Whether a view of a temporary that nobody else holds, perhaps lazily conjugated, is one that holds its values."""

    def without_view(state):
        return state.replace("is_view True", "is_view False")

    owned = re.sub(r"lazy \w+ \w+$", "lazy False False", without_view(want))
    return "is_view True" in want and owned == without_view(got)


def close(want, got, rtol, atol):
    """Whether two tensors agree; of a complex number that is not finite the parts need not."""
    if want.dtype != got.dtype or want.shape != got.shape:
        return False
    if want.is_complex():
        infinite = ~want.isfinite()
        if not torch.equal(infinite, ~got.isfinite()):
            return False
        want, got = want.masked_fill(infinite, 0), got.masked_fill(infinite, 0)
    return torch.allclose(want, got, rtol=rtol, atol=atol, equal_nan=True)


def accepted(program):
    length = instructions_that_run(program)
    return replace(program, instructions=program.instructions[:length])


def shrunk(program, compile_function):
    """The smallest program found that differs, too."""
    found = True
    while found:
        found = False
        for simpler in smaller(program):
            if accepted(simpler) == simpler and difference(simpler, compile_function):
                program, found = simpler, True
                break
    return program
