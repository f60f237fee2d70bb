"""Random programs over tensors whose sizes change from call to call, and what they do compiled and in eager.

A program is lines of text drawn from a seed, each kept only if eager takes it at the ordinary sizes (at the edges, 0,
1 and 2, it may raise: then ours must too). It is called at a series of sizes, in inference or in training. Compared
are values, dtypes, strides, aliases, what happened to the inputs, errors, gradients and their strides, and how often
it was compiled: a program without branches on sizes once as it comes and once for all sizes that follow.
"""

import linecache
import math
import random
import re
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from sized_lines import KINDS

COUNTED = re.compile(r"unbind|\.split\((?!\[)|chunk\(|stack\(.*range")
"""How many tensors there are follows from a size: one version for each number of them."""
LARGEST = 3e3  # greater values are left out: rounding would decide
SCOPE = {"torch": torch, "F": F, "math": math}
ORDINARY = ((5, 7, 4), (6, 9, 5), (8, 8, 6), (11, 5, 9), (7, 12, 7))
EDGES = ((2, 3, 2), (1, 6, 3), (6, 1, 1), (0, 4, 3), (5, 0, 2), (1, 1, 1), (2, 2, 0))

SHAPES = {
    "rows": ("n", "n 4", "n m", "m n", "4", "m", "n 1"),
    "batches": ("2 n 6", "n m 4", "n 6", "6 m", "n m", "1 n 6", "n 1 m"),
    "images": ("2 3 n m", "n 3 m m", "1 3 n n", "3", "n 4 6 m", "2 3 1 m"),
    "volumes": ("1 2 n m 4", "2 2 n 3 n", "n m"),
}
LAYOUTS = (
    "contiguous", "contiguous", "contiguous", "transposed", "channels last", "expanded", "window", "steps", "offset",
    "overlapping",
)  # fmt: skip


@dataclass(frozen=True)
class Input:
    """One tensor: its dimensions by name, how it lies in memory, and what it was made from."""

    shape: str
    layout: str
    leaf: bool
    gradient: bool

    def make(self, sizes, dtype):
        """(the tensor, the leaf with a gradient)."""
        shape = [sizes[word] if word in sizes else int(word) for word in self.shape.split()]
        base, view = _LAYOUT[self.layout](shape, dtype)
        if self.leaf:
            tensor = view(base).detach()
            return tensor.requires_grad_(self.gradient), tensor
        base.requires_grad_(self.gradient)
        return view(base), base


def _transposed(shape, dtype):
    return torch.randn(shape[::-1], dtype=dtype), lambda base: base.permute(
        *range(base.dim() - 1, -1, -1)
    )


def _channels_last(shape, dtype):
    if len(shape) < 3:
        return _transposed(shape, dtype)
    moved = [shape[0], *shape[2:], shape[1]]
    return torch.randn(moved, dtype=dtype), lambda base: base.movedim(-1, 1)


def _expanded(shape, dtype):
    return torch.randn([1, *shape[1:]], dtype=dtype), lambda base: base.expand(shape)


def _window(shape, dtype):
    wider = [size + 3 for size in shape]
    inner = tuple(slice(1, size + 1) for size in shape)
    return torch.randn(wider, dtype=dtype), lambda base: base[inner]


def _steps(shape, dtype):
    wider = [*shape[:-1], 2 * shape[-1]]
    return torch.randn(wider, dtype=dtype), lambda base: base[..., ::2]


def _offset(shape, dtype):
    count = math.prod(shape)
    return torch.randn(count + 5, dtype=dtype), lambda base: base[3 : 3 + count].view(shape)


def _overlapping(shape, dtype):
    strides = [1] * len(shape)
    return torch.randn(sum(shape) + 2, dtype=dtype), lambda base: base.as_strided(shape, strides, 1)


_LAYOUT = {
    "contiguous": lambda shape, dtype: (torch.randn(shape, dtype=dtype), lambda base: base[...]),
    "transposed": _transposed,
    "channels last": _channels_last,
    "expanded": _expanded,
    "window": _window,
    "steps": _steps,
    "offset": _offset,
    "overlapping": _overlapping,
}


@dataclass(frozen=True)
class Program:
    """What is called, with what, at which sizes, compiled how."""

    inputs: tuple[Input, ...]
    lines: tuple[str, ...]
    returned: tuple[str, ...]
    sizes: tuple[tuple[int, int, int], ...]
    dtype: torch.dtype
    training: bool
    dynamic: bool | None
    branches: bool

    @property
    def text(self):
        names = [f"x{number}" for number in range(len(self.inputs))]
        body = "".join(f"    {line}\n" for line in self.lines)
        return (
            f"def program({', '.join(names)}, k):\n{body}    return {', '.join(self.returned)},\n"
        )

    def __str__(self):
        inputs = ", ".join(
            f"x{number}: [{one.shape}] {one.layout}{' leaf' if one.leaf else ''}{' grad' if one.gradient else ''}"
            for number, one in enumerate(self.inputs)
        )
        return (
            f"# {self.dtype} training={self.training} dynamic={self.dynamic} {inputs}\n"
            f"# sizes {self.sizes}\n{self.text}"
        )

    def function(self):
        name = f"<sized program {hash(self.text)}>"
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        scope = dict(SCOPE)
        exec(compile(self.text, name, "exec"), scope)
        return scope["program"]


def sizes_of(row):
    """The names of sizes, and the integer argument."""
    return {"n": row[0], "m": row[1]}, row[2]


def make_inputs(program, row):
    """(tensors, number, the leaves they were made from)."""
    torch.manual_seed(3 + 7 * row[0] + row[1])
    sizes, number = sizes_of(row)
    made = [one.make(sizes, program.dtype) for one in program.inputs]
    return [tensor for tensor, _ in made], number, [leaf for _, leaf in made]


class Writer:
    """Draws one program."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        draw = self.random
        family = draw.choice(list(SHAPES))
        inputs = tuple(
            Input(
                draw.choice(SHAPES[family]),
                draw.choice(LAYOUTS),
                draw.random() < 0.5,
                draw.random() < 0.7,
            )
            for _ in range(draw.randint(1, 3))
        )
        training = draw.random() < 0.5
        if not training:
            inputs = tuple(replace(one, gradient=False) for one in inputs)
        ordinary = list(ORDINARY)
        edges = draw.sample(EDGES, 4)
        order = [*ordinary[:4], *edges, ordinary[4], ordinary[0]]
        if draw.random() < 0.4:
            draw.shuffle(order)
        self.program = Program(
            inputs,
            (),
            (),
            tuple(order),
            draw.choice([torch.float32, torch.float64]),
            training,
            draw.choice([None, None, True]),
            False,
        )
        self.scopes = []
        for row in order:
            tensors, number, _ = make_inputs(self.program, row)
            scope = {**SCOPE, **{f"x{n}": one for n, one in enumerate(tensors)}, "k": number}
            self.scopes.append((row, scope))
        self.tensors = [f"x{number}" for number in range(len(inputs))]
        self.numbers = ["k", "2"]
        self.count = 0

    def value(self, name):
        """What it holds at an ordinary size."""
        return next(scope[name] for row, scope in self.scopes if row in ORDINARY)

    def fill(self, template):
        draw = self.random
        recent = self.tensors[-3:] + self.tensors
        a, b = draw.choice(recent), draw.choice(recent)
        rank = max(self.value(a).dim(), 1)
        values = {
            "a": a,
            "b": b,
            "x": draw.choice([t for t in self.tensors if t[0] == "x"]),
            "d": draw.randrange(-rank, rank),
            "e": draw.randrange(-rank, rank),
            "i": draw.choice(self.numbers),
            "j": draw.choice(self.numbers),
            "t": str(self.program.dtype),
            "s": f"{a} = {a} * 1.5 + 1",
        }
        return re.sub(r"\{(\w)\}", lambda found: str(values[found[1]]), template)

    def draw_line(self):
        draw = self.random
        kind = draw.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        line = self.fill(draw.choice(KINDS[kind][1]))
        name = f"v{self.count}"
        if kind == "branches":
            return kind, line, None
        if kind == "input writes":
            name = line.partition("[")[0].partition(".")[0]
            one = self.program.inputs[int(name[1:])]
            dense = one.layout not in ("expanded", "overlapping")
            return kind, line if dense else "pass", None
        if kind == "statements":
            return kind, re.sub(r"\b[v]\b", name, line), name
        return kind, f"{name} = {line}", name

    def accepts(self, line, name):
        """Whether eager takes it at the ordinary sizes, and its values stay small."""
        code = compile(line.replace("\n    ", "\n"), "<line>", "exec")
        refused = 0
        for row, scope in self.scopes:
            if scope is None:
                continue
            trial = dict(scope)
            try:
                exec(code, trial)
            except Exception:  # noqa: BLE001 - eager refuses
                if row in ORDINARY:
                    return None
                refused += 1
                continue
            value = trial.get(name)
            if isinstance(value, torch.Tensor):
                if value.numel() > 20_000 or value.dim() > 5:
                    return None
                found = value.detach()
                if row in ORDINARY and not (found.abs() < LARGEST).all():
                    return None
            elif value is not None and (not isinstance(value, int) or abs(value) > 500):
                return None
        if refused and self.random.random() > 0.25:
            return None
        return code

    def keep(self, kind, line, name, code):
        for number, (row, scope) in enumerate(self.scopes):
            if scope is None:
                continue
            try:
                exec(code, scope)
            except Exception:  # noqa: BLE001 - the program ends here at this size
                self.scopes[number] = (row, None)
        lines = (*self.program.lines, *line.split("\n    "))
        self.program = replace(
            self.program,
            lines=lines,
            branches=self.program.branches or kind == "branches" or bool(COUNTED.search(line)),
        )
        if name is None:
            return
        value = self.value(name)
        (self.tensors if isinstance(value, torch.Tensor) else self.numbers).append(name)
        self.count += 1

    def write(self):
        wanted = self.random.randint(2, 9)
        for _ in range(60):
            if len(self.program.lines) >= wanted:
                break
            kind, line, name = self.draw_line()
            try:
                code = self.accepts(line, name)
            except SyntaxError as error:
                raise AssertionError(line) from error
            if code is not None:
                self.keep(kind, line, name, code)
        made = [name for name in self.tensors if name[0] == "v"]
        numbers = [name for name in self.numbers if name[0] == "v"]
        returned = [*self.random.sample(made, min(len(made), 3)), *made[-1:], *numbers[-2:]]
        if self.random.random() < 0.1:
            returned.append("x0")
        return replace(self.program, returned=tuple(dict.fromkeys(returned)) or ("x0",))


def drawn(seed):
    """The program of a seed."""
    return Writer(seed).write()


# -- what a call does


def _layout(values):
    """Geometry and aliases, a line a value."""
    lines = []
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            lines.append(f"{type(value).__name__} {value}")
            continue
        memory = value.untyped_storage()._cdata
        shares = [
            other
            for other, one in enumerate(values[:number])
            if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata == memory
        ]
        offset = value.storage_offset() if shares else 0
        lines.append(
            f"{value.dtype} {tuple(value.shape)} {_steps_of(value)} offset {offset} shares {shares} "
            f"grad {value.requires_grad}"
        )
    return lines


def _steps_of(tensor):
    """The strides that lead from one element to another."""
    if not tensor.numel():
        return ()
    return tuple(
        None if size == 1 else step
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def observed(function, program, row):
    """(error or None, layouts, numbers) of one call and its backward."""
    tensors, number, leaves = make_inputs(program, row)
    try:
        outputs = list(function(*tensors, number))
    except Exception as error:  # noqa: BLE001 - compared
        return f"{type(error).__name__}: {error}", [], [one.detach() for one in tensors]
    values = [*tensors, *outputs]
    layouts = _layout(values)
    numbers = [one.detach() for one in values if isinstance(one, torch.Tensor)]
    if program.training:
        asked = [one for one in leaves if one.requires_grad]
        total = [
            (one * torch.linspace(0.5, 1.5, one.numel(), dtype=one.dtype).view(one.shape)).sum()
            for one in outputs
            if isinstance(one, torch.Tensor) and one.requires_grad
        ]
        if asked and total:
            try:
                sum(total).backward()
                grads = [one.grad for one in asked]
            except Exception as error:  # noqa: BLE001 - compared
                return f"backward {type(error).__name__}: {error}", layouts, numbers
            layouts += [
                "no gradient" if one is None else f"gradient {one.dtype} {_steps_of(one)}"
                for one in grads
            ]
            numbers += [one for one in grads if one is not None]
    return None, layouts, numbers


def near(found, wanted):
    """Whether numbers agree but for rounding."""
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    tolerance = 1e-3 if wanted.dtype is torch.float32 else 1e-8
    finite = wanted[wanted.isfinite()]
    scale = max(float(finite.abs().max()), 1.0) if finite.numel() else 1.0
    return torch.allclose(found, wanted, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _kind(error):
    return None if error is None else error.partition(":")[0]


def difference(program, compiled):
    """The first difference between eager and a compiled form over all sizes, as text; "" if none."""
    eager = program.function()
    for row in program.sizes:
        error, layouts, numbers = observed(eager, program, row)
        ours, found_layouts, found = observed(compiled, program, row)
        at = f"at {row}: "
        if _kind(error) != _kind(ours):
            return f"{at}error\n  eager {error}\n  ours  {ours}"
        if layouts != found_layouts:
            pairs = zip(layouts, found_layouts, strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), (layouts, found_layouts))
            return f"{at}layout\n  eager {first[0]}\n  ours  {first[1]}"
        for number, (a, b) in enumerate(zip(found, numbers, strict=True)):
            if not near(a, b):
                return f"{at}value {number}\n  eager {b.flatten()[:8]}\n  ours  {a.flatten()[:8]}"
    return ""


def smaller(program):
    """Programs that are a step simpler."""
    for number in range(len(program.lines)):
        yield replace(program, lines=program.lines[:number] + program.lines[number + 1 :])
    if len(program.returned) > 1:
        for number in range(len(program.returned)):
            kept = program.returned[:number] + program.returned[number + 1 :]
            yield replace(program, returned=kept)
    if len(program.sizes) > 1:
        for number in range(len(program.sizes)):
            yield replace(program, sizes=program.sizes[:number] + program.sizes[number + 1 :])
    for number, one in enumerate(program.inputs):
        for changed in (
            replace(one, layout="contiguous"),
            replace(one, gradient=False),
            replace(one, leaf=True),
        ):
            if changed != one:
                inputs = list(program.inputs)
                inputs[number] = changed
                yield replace(program, inputs=tuple(inputs))
    if program.training:
        yield replace(program, training=False)


def fails_alike(program, fault_of, kind):
    try:
        program.function()
    except SyntaxError:
        return False
    text = fault_of(program)
    return bool(text) and "NameError" not in text and "UnboundLocal" not in text and kind(text)


def shrunk(program, fault_of, limit=120):
    """A small program with a fault of the same kind."""
    words = fault_of(program).partition("\n")[0]
    word = re.sub(r"at .*?: ", "", words).split(" ")[0]

    def alike(text):
        return word in text.partition("\n")[0]

    progress = True
    while progress and limit > 0:
        progress = False
        for one in smaller(program):
            limit -= 1
            if limit <= 0:
                break
            if fails_alike(one, fault_of, alike):
                program, progress = one, True
                break
    return program
