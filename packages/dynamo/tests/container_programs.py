"""Random programs over containers from outside, called several times, against eager.

`difference(seed, grow=...)` is "" or says what differs: results, contents, their order, and which names are one
object. With `grow` the program only adds, and takes at most two compiles. Between calls the outside changes
containers too, and two names may become one container. Both guard evaluators answer before every call.
"""

import collections
import random
import sys
import types

import torch

import dynamo
from dynamo.testing import CompileCounter

CALLS = 6
LISTS = ("l", "m", "o.log")
GROWS = (
    "{L}.append(x + {K})",
    "{L}.append(x)",
    "{L}.append({K})",
    "{L}.extend([x, {K}])",
    "{L} += [x * {K}]",
    "{L}.append(({K}, x))",
    "q.append(x + {K})",
    "q.extend((x, x * 2))",
    "s.add({K})",
    "s.add('t')",
    "d['{N}'] = x + {K}",
    "d['{N}'] = {K}",
    "c['n'] = c.get('n', 0) + {K}",
    "o.n += 1",
    "o.last = x",
    "r = r + x * {K}",
    "k['{N}'] += {K}",
)
READS = (
    "brk()",
    "put({L}, x)",
    "put({L}, len({L}))",
    "r = r + of(take({L}))",
    "d.setdefault('{N}', {K})",
    "r = r + len({L})",
    "if {L}: r = r * 2",
    "if len({L}) > {K}: {L}.pop(0)",
    "if len({L}) > {K}: del {L}[0]",
    "if {L}: r = r + of({L}[-1])",
    "if {L}: r = r + of({L}[0])",
    "if len({L}) > 2: r = r + of({L}[-2]); {L}[1] = {K}",
    "r = r + sum(of(v) for v in {L})",
    "{L}.insert(0, {K})",
    "if {L}: {L}.pop()",
    "{L}.clear()",
    "{L}[:] = [x, {K}]",
    "{L}.reverse()",
    "{L}.extend(m)",
    "m.extend(l)",
    "r = r + ({L} is m)",
    "r = r + ({K} in s)",
    "s.discard({K})",
    "if {K} in s: s.remove({K})",
    "r = r + len(s)",
    "q.appendleft({K})",
    "if q: r = r + of(q[-1])",
    "if q: q.popleft()",
    "r = r + len(q)",
    "r = r + d.get('{N}', 3)",
    "if '{N}' in d: r = r - 1",
    "if '{N}' in d: del d['{N}']",
    "d.pop('{N}', None)",
    "r = r + sum(i * of(v) for i, v in enumerate(d.values()))",
    "d.update({{'{N}': x, 'u': {K}}})",
    "r = r + len(d)",
    "o.log = {L}",
    "o.log = list({L})",
    "r = r + x * o.n",
    "{L}[-1:] = [{K}]",
    "r = r + of(tuple({L})[:1])",
)


def of(value):
    """A number or tensor of any element."""
    if isinstance(value, tuple | list):
        return sum(of(one) for one in value)
    return value


def put(where, what):
    where.append(what)


def take(where):
    try:
        return where.pop()
    except IndexError:
        return 5


def program(seed, *, grow):
    """The source text of `f(x, l, m, q, s, d, c, k, o)`."""
    chosen = random.Random(seed)
    lines = ["def f(x, l, m, q, s, d, c, k, o):", "    r = x * 1"]
    for _ in range(chosen.randint(2, 7)):
        template = chosen.choice(GROWS if grow or chosen.random() < 0.5 else READS)
        words = {"L": chosen.choice(LISTS), "K": chosen.randint(1, 4), "N": chosen.choice("abc")}
        lines.append("    " + template.format(**words))
    return "\n".join([*lines, "    return r"])


def world(chosen):
    """The containers, as one call finds them."""
    x = torch.ones(2)
    m = [x * 5] if chosen.random() < 0.3 else []
    return {
        "l": [x, 2] if chosen.random() < 0.5 else [],
        "m": m,
        "q": collections.deque([1] if chosen.random() < 0.5 else [], maxlen=chosen.choice([None, 1, 3])),
        "s": {1, 9} if chosen.random() < 0.5 else set(),
        "d": {"a": x, "z": 1} if chosen.random() < 0.5 else {},
        "c": {},
        "k": collections.Counter(),
        "o": types.SimpleNamespace(log=m if chosen.random() < 0.2 else [], n=0),
    }  # fmt: skip


def disturb(chosen, held, *, grow):
    """What the rest of the program does between two calls."""
    step = chosen.random()
    if step < 0.2:
        held["l"].append(7)
    elif step < 0.3:
        held["d"]["c"] = 4
    elif step < 0.4 and not grow:
        held["l"] = held["m"]
    elif step < 0.5 and not grow:
        held["l"] = list(held["m"])
    elif step < 0.6 and not grow:
        held["o"].log = held["l"]


def picture(value, seen, tensors):
    """The contents with every container and tensor by the order in which it was met."""
    if isinstance(value, int | str | float) or value is None:
        return value
    if id(value) in seen:
        return f"<{seen[id(value)]}>"
    seen[id(value)] = len(seen)
    name = f"<{len(seen) - 1} {type(value).__name__}>"
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return f"{name} {value.tolist()}"
    if isinstance(value, dict):
        return name, [(key, picture(item, seen, tensors)) for key, item in value.items()]
    if isinstance(value, set):
        return name, sorted(map(str, value))
    if isinstance(value, types.SimpleNamespace):
        return name, picture(vars(value), seen, tensors)
    return name, [picture(item, seen, tensors) for item in value]


def _evaluators_agree(compiled, arguments):
    for entry in compiled.cache.entries:
        found = entry.program.match(arguments, compiled.__wrapped__)
        again = entry.program.match_in_python(arguments, compiled.__wrapped__)
        if (found is None) != (again is None):
            return f"C says {found is not None}, Python says {again is not None}"
    return ""


def difference(seed, *, grow):
    """What differs from eager; "" for nothing."""
    text = program(seed, grow=grow)
    names = {"of": of, "put": put, "take": take, "brk": dynamo.graph_break}
    exec(compile(text, f"<containers {seed}>", "exec"), names)
    dynamo.reset()
    counter = CompileCounter()
    compiled = dynamo.optimize(counter)(names["f"])
    histories = []
    for function in (names["f"], compiled):
        chosen = random.Random(seed)
        held, history, calls = world(chosen), [], []
        for call in range(CALLS):
            arguments = (torch.ones(2) * call, *held.values())
            if function is compiled and (wrong := _evaluators_agree(compiled, arguments)):
                return f"{text}\ncall {call}: {wrong}"
            calls.append(function(*arguments))
            history.append(repr(picture([calls, held], {}, [])))
            disturb(chosen, held, grow=grow)
        histories.append(history)
    for call, (expected, found) in enumerate(zip(*histories, strict=True)):
        if expected != found:
            return f"{text}\nseed {seed}, call {call}:\n{expected}\n{found}"
    if grow and counter.frame_count > 2:
        return f"{text}\nseed {seed}: {counter.frame_count} compiles"
    return ""


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    found = [
        difference(seed, grow=grow)
        for seed in range(first, first + count)
        for grow in (True, False)
    ]
    wrong = [text for text in found if text]
    print("\n\n".join([*wrong[:5], f"{len(found)} programs, {len(wrong)} differ"]))
    sys.exit(bool(wrong))
