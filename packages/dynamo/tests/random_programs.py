"""Random programs of Python's constructs with graph breaks in them; each does the same compiled as it does alone.

A program is made of a seed: statements over some tensors, numbers, a list, a dict and an object, nested a few levels.
It returns all of them; what it prints and appends to `log`, in which order, and what it raises, is compared too. Run
as a program it tries many seeds: `python random_programs.py FIRST COUNT`.
"""

import contextlib
import copy
import io
import linecache
import random
import sys

import torch

import dynamo
from dynamo.testing import same

STRICT = dynamo.DynamoOptions(strict=True)


class Box:
    """An object of the program."""

    limit = 3

    def __init__(self, value):
        self.value = value

    @property
    def double(self):
        return self.value * 2

    def step(self, by):
        self.value = self.value + by
        return self


class Block:
    """A context manager that tells what happens to it, and may swallow an exception."""

    def __init__(self, log, swallow):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, error, trace):
        self.log.append(f"exit {kind and kind.__name__}")
        return self.swallow and kind is not None


@contextlib.contextmanager
def managed(log, value):
    log.append("in")
    try:
        yield value
    except ValueError as error:
        log.append(f"managed {error}")
    finally:
        log.append("out")


class Writer:
    """Writes one program."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.depth = 0
        self.names = 0
        self.loops = 0
        self.functions = []

    def line(self, text):
        self.lines.append("    " * (self.depth + 1) + text)

    def pick(self, *options):
        return self.random.choice(options)

    def fresh(self, prefix):
        self.names += 1
        return f"{prefix}{self.names}"

    # -- expressions

    def number(self):
        return self.pick(
            "i0", "i1", "i2", "1", "2", "len(items)", "i0 + 1", "i1 * 2 - i0", "(i2 % 3)", "-i1",
            "max(i0, i1)", "sum(n for n in range(3))", "len(table)", "(i0 if i1 > 2 else i2)",
            "box.limit", "abs(i2)", "i1 // 2", "min([i0, i1, 4], key=lambda n: -n)",
        )  # fmt: skip

    def condition(self):
        left, right = self.number(), self.number()
        return self.pick(
            f"{left} < {right}", f"{left} == {right}", f"0 <= {left} < 4", f"not {left} % 2",
            f"{left} in (1, 3)", "'a' in table", "items", f"isinstance({left}, int)",
            "t0.sum() > 0", "bool(t1.max() < 3)", f"{left} > 1 and {right} > 1", "t0 is t1",
            f"(w := {left}) > 2 or w == {right}", "table.get('b') is None",
        )  # fmt: skip

    def tensor(self):
        n = self.number()
        return self.pick(
            "t0", "t1", "t2", "x", f"t0 + {n}", "t1 * t2", "t0.relu()", f"t2 - {n}", "t1.sum()",
            "torch.stack([t0.mean(), t1.mean()]).sum() * t2", "box.double", "t0.abs().sqrt()",
            "torch.where(t0 > t1, t0, t2)", "helper(t1)", "(lambda v, k=2: v * k)(t0)",
            "torch.cat([t0[:2], t1[2:]])", f"helper(x, scale={n})", "t2.clone()",
        )  # fmt: skip

    def key(self):
        return self.pick("'a'", "'b'", "'c'", f"'k%d' % ({self.number()})")

    def value(self):
        return self.pick(self.tensor(), self.number(), f"({self.number()}, 'v')", "None")

    # -- statements

    def body(self, count=None):
        self.depth += 1
        for _ in range(count or self.random.randint(1, 3)):
            self.statement()
        self.depth -= 1

    def statement(self):
        simple = [
            self.assign, self.assign, self.assign, self.list_operation, self.dict_operation,
            self.note, self.graph_break, self.comprehension, self.attribute, self.text,
            self.unpack, self.raising, self.iterator,
        ]  # fmt: skip
        nested = [
            self.branch, self.loop, self.loop, self.handled, self.handled, self.block, self.closure,
            self.generator, self.while_loop, self.matched,
        ]  # fmt: skip
        choices = simple if self.depth > 3 else simple + nested
        self.random.choice(choices)()

    def assign(self):
        if self.random.random() < 0.5:
            self.line(f"{self.pick('t0', 't1', 't2')} = {self.tensor()}")
        elif self.random.random() < 0.3:
            self.line(f"{self.pick('i0', 'i1', 'i2')} += {self.pick('1', '2', '-1')}")
        elif self.random.random() < 0.2:
            self.line(self.pick("t1 = t1.clone(); t1 += 1", "t2 = t2 + 0; t2[0] = 3.0"))
        else:
            self.line(f"{self.pick('i0', 'i1', 'i2')} = {self.number()}")

    def list_operation(self):
        self.line(
            self.pick(
                f"items.append({self.value()})",
                f"items.extend([{self.value()}, 5])",
                "items.pop()",
                f"items.insert(0, {self.value()})",
                "items.reverse()",
                "del items[0]",
                f"items[-1] = {self.value()}",
                "items = items[1:] + items[:1]",
                "items = list(items)",
                "items += [i0, i1]",
                "items[:1] = [t0, 'x']",
                "items.clear()",
                "items = [*items, t1]",
            )
        )

    def dict_operation(self):
        key = self.key()
        self.line(
            self.pick(
                f"table[{key}] = {self.value()}",
                f"table.pop({key})",
                f"table.pop({key}, None)",
                f"table.setdefault({key}, []).append({self.number()})",
                f"del table[{key}]",
                f"table.update(a={self.value()})",
                f"i0 = table.get({key}, 1) and 2",
                f"table = {{**table, {key}: {self.number()}}}",
                f"t0 = t0 + len(table[{key}])",
                "log.append(list(table))",
            )
        )

    def note(self):
        self.line(
            self.pick(
                f"log.append({self.number()})",
                f"print({self.number()}, 'printed')",
                f"print(float(t0.sum()) > {self.number()})",
                "log.append(('i', i0, i1))",
                "COUNTER[0] += 1",
                "log.append(len(log))",
            )
        )

    def graph_break(self):
        self.line("dynamo.graph_break()")

    def comprehension(self):
        n = self.pick("3", "i0 % 4", "len(items)")
        self.line(
            self.pick(
                f"items = [j * 2 for j in range({n}) if j != i1]",
                f"table = {{str(j): j + i0 for j in range({n})}}",
                f"t0 = sum((t1 * j for j in range({n})), t0)",
                f"i2 = len({{j % 2 for j in range({n})}})",
                f"log.extend([j, k] for j, k in enumerate(range({n})))",
                f"items = sorted([j % 3 for j in range({n})], key=lambda v: -v)",
                f"i1 = max((j for j in range({n})), default=0)",
                f"items = [t0 + j for j in range({n})] or [t1]",
                "i0 = sum(1 for v in items if isinstance(v, int))",
            )
        )

    def attribute(self):
        self.line(
            self.pick(
                f"box.value = {self.tensor()}",
                f"box.step({self.number()})",
                "t1 = box.double",
                f"setattr(box, 'extra', {self.number()})",
                "i1 = getattr(box, 'extra', 2)",
                "box = Box(t0)",
                "del box.extra",
                "box.step(1).step(2)",
                "other = copy.copy(box); other.value = t2",
            )
        )

    def text(self):
        self.line(
            self.pick(
                "log.append(f'{i0}:{i1:>3}')",
                "log.append('%s-%d' % ('a', i2))",
                "log.append(','.join(sorted(table)))",
                "log.append(repr(i0))",
                "log.append(str((i1, 'q')))",
            )
        )

    def unpack(self):
        self.line(
            self.pick(
                "t0, t1 = t1, t0",
                "i0, *items = [i1, t0, t1]",
                "(i1, i2), t2 = (i2, i1), t0",
                "first, *_, last = [i0, i1, i2]; i0 = last - first",
                "i0, i1, i2 = sorted([i2, i1, i0])",
                "t0, t1 = (lambda *a, **k: (a[0], k['b']))(t1, b=t2)",
            )
        )

    def raising(self):
        error = self.pick("ValueError('v')", "KeyError('k')", "IndexError(i0)", "RuntimeError('r')")
        self.line(f"if {self.condition()}:")
        self.line(f"    raise {error}" + self.pick("", "", " from TypeError('cause')"))

    def iterator(self):
        self.line(
            self.pick(
                "it = iter([t0, i0, 3]); t1 = next(it) + 1; items = list(it)",
                "it = zip([i0, i1], [t0, t1]); items = list(next(it)); log.append(len(list(it)))",
                "items = list(map(lambda v: v + 1, [i0, i1]))",
                "items = list(filter(None, [i0, 0, i2]))",
                "items = list(reversed([i0, i1, t0]))",
                "items = list(itertools.chain([i0], (t1,)))",
            )
        )

    def branch(self):
        self.line(f"if {self.condition()}:")
        self.body()
        if self.random.random() < 0.4:
            self.line(f"elif {self.condition()}:")
            self.body()
        if self.random.random() < 0.5:
            self.line("else:")
            self.body()

    def loop(self):
        name = self.fresh("j")
        self.line(
            self.pick(
                f"for {name} in range({self.pick('2', '3', 'i0 % 3')}):",
                f"for {name}, v{name} in enumerate([t0, t1]):",
                f"for {name} in list(items)[:3]:",
                f"for {name}, v{name} in zip(range(3), [t0, i1]):",
                f"for {name}, v{name} in list(table.items())[:3]:",
                f"for {name} in (t0, 2, 'z'):",
                f"for {name} in numbers(t0, 2):",
            )
        )
        self.loops += 1
        self.body()
        if self.random.random() < 0.4:
            self.line(f"    if {self.condition()}:")
            self.line(f"        {self.pick('break', 'continue')}")
        if self.random.random() < 0.4:
            self.depth += 1
            self.statement()
            self.depth -= 1
        self.loops -= 1
        if self.random.random() < 0.3:
            self.line("else:")
            self.body(1)

    def while_loop(self):
        name = self.fresh("n")
        self.line(f"{name} = 0")
        self.line(f"while {name} < {self.pick('2', '3')}:")
        self.line(f"    {name} += 1")
        self.body()

    def handled(self):
        self.line("try:")
        self.body()
        if self.random.random() < 0.6:
            self.line(
                f"    {self.pick('items[9]', 'table[9]', 'int(str(i0))', 'raise ValueError(i1)', 'x.sum(dim=7)')}"
            )
        finish = self.random.random()
        if finish < 0.85:
            kinds = self.pick(
                "ValueError",
                "(KeyError, IndexError)",
                "Exception",
                "LookupError",
                "RuntimeError",
            )
            self.line(f"except {kinds} as error:")
            self.line("    log.append(type(error).__name__)")
            self.body()
            if self.random.random() < 0.25:
                self.line(self.pick("    raise", "    raise KeyError('again') from error"))
            if self.random.random() < 0.3:
                self.line("else:")
                self.body(1)
        if finish > 0.6:
            self.line("finally:")
            self.line("    log.append('finally')")
            self.body(1)

    def block(self):
        self.line(
            self.pick(
                "with Block(log, True):",
                "with Block(log, False) as b, Block(log, True):",
                "with torch.no_grad():",
                "with managed(log, i0) as i1:",
                "with contextlib.nullcontext(t0) as t1:",
                "with contextlib.suppress(ValueError, KeyError):",
            )
        )
        self.body()

    def closure(self):
        name, state = self.fresh("inner"), self.pick("i0", "i1")
        self.line(f"def {name}(v, k={self.number()}, *rest, **more):")
        self.line(f"    nonlocal {state}")
        self.line(f"    {state} += 1")
        if self.random.random() < 0.4:
            self.line("    dynamo.graph_break()")
        if self.random.random() < 0.3:
            self.line(f"    if k == {self.number()}:")
            self.line("        raise ValueError('inner')")
        self.line(f"    return v * 2 + k + len(rest) + len(more) + {state}")
        call = self.pick(
            f"{name}(t0)", f"{name}(t1, 2, 3, z=4)", f"{name}(*[t2, 1])", f"{name}(v=t0, k=i1)"
        )
        self.line(f"t0 = {call}")
        if self.random.random() < 0.3:
            self.line(f"items = [{name}(j) for j in range(2)]")

    def generator(self):
        name = self.fresh("gen")
        self.line(f"def {name}(n):")
        self.line("    try:")
        self.line("        for j in range(n):")
        self.line(f"            got = yield {self.pick('j', 't0 + j', '(j, i0)')}")
        if self.random.random() < 0.3:
            self.line("            log.append(got)")
        if self.random.random() < 0.2:
            self.line("            dynamo.graph_break()")
        self.line("    finally:")
        self.line("        log.append('generator ends')")
        use = self.fresh("g")
        self.line(f"{use} = {name}({self.pick('2', '3', 'i0 % 3')})")
        self.line(f"items = [next({use}, None)]")
        if self.random.random() < 0.5:
            self.line("dynamo.graph_break()")
        # Used up: one that is dropped after a break is closed when the call is over, not at once.
        self.line(self.pick(f"items += list({use})", f"{use}.close()", f"for v in {use}: items.append(v)",
                            f"items.append({use}.send(4)) if i0 > 1 else 0; {use}.close()"))  # fmt: skip

    def matched(self):
        self.line(f"match {self.pick('(i0, i1)', 'items', 'table', 'i2')}:")
        self.line("    case (0, other) | [other, 1]:")
        self.line("        log.append(other)")
        self.line("    case [first, *rest]:")
        self.line("        i0 = len(rest)")
        self.line("    case {'a': found}:")
        self.line("        log.append('a')")
        self.line("    case 1 | 2:")
        self.line("        i2 = 5")
        self.line("    case _:")
        self.depth += 1
        self.body(1)
        self.depth -= 1


HEAD = """\
def helper(v, scale=2):
    return (v * scale).sin()

def numbers(v, n):
    for k in range(n):
        yield v * k

def program(x, i0, items, table, box, log):
    i1, i2, t0, t1, t2, w = i0 + 1, 3, x, x + 1, x * 2, 0
"""


def source_of(seed):
    """The text of one program."""
    writer = Writer(seed)
    for _ in range(writer.random.randint(3, 8)):
        writer.statement()
    writer.line("return t0, t1, t2, i0, i1, i2, items, table")
    return HEAD + "\n".join(writer.lines) + "\n"


def compiled_from(source, seed):
    """The function `program` of a text."""
    name = f"<random program {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    import itertools

    scope = {"torch": torch, "dynamo": dynamo, "Box": Box, "Block": Block, "managed": managed,
             "contextlib": contextlib, "copy": copy, "itertools": itertools, "COUNTER": [0]}  # fmt: skip
    exec(compile(source, name, "exec"), scope)
    return scope["program"], scope["COUNTER"]


def outcome(function, counter, number, x):
    """All that can be seen of a call."""
    log, box = [], Box(x * 3)
    items, table = [x, 1, 2], {"a": x, "b": [1]}
    counter[0] = 0
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result = function(x.clone(), number, items, table, box, log)
        except Exception as error:  # noqa: BLE001 - compared
            result = (type(error), str(error), type(error.__cause__), type(error.__context__))
    return [
        result,
        log,
        items,
        table,
        dict(
            vars(box)
        ),  # a copy: CPython 3.13.0 may collect what the `__dict__` of a dead object holds
        counter[0],
        printed.getvalue(),
        torch.is_grad_enabled(),
    ]


def difference(seed):
    """What differs for one seed, as text; empty if nothing does."""
    source = source_of(seed)
    try:
        program, counter = compiled_from(source, seed)
    except SyntaxError as error:
        raise AssertionError(f"{error}\n{source}") from error
    compiled = dynamo.optimize("eager", options=STRICT)(program)
    for number, x in (
        (1, torch.arange(-1.0, 3.0)),
        (2, torch.arange(1.0, 5.0)),
        (1, torch.ones(4)),
    ):
        expected = outcome(program, counter, number, x)
        try:
            found = outcome(compiled, counter, number, x)
        except BaseException as error:  # noqa: BLE001 - reported with the program
            return f"seed {seed}: {type(error).__name__}: {error}\n{source}"
        for one, other in zip(found, expected, strict=True):
            if not same(one, other):
                return f"seed {seed}:\n  compiled {one}\n  eager    {other}\n{source}"
    dynamo.reset()
    return ""


def main():
    first, count = int(sys.argv[1]), int(sys.argv[2])
    failed = 0
    for seed in range(first, first + count):
        text = difference(seed)
        if text:
            failed += 1
            print(text, flush=True)
    print(f"{count} programs, {failed} differ")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
