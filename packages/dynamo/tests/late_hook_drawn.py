"""Programs drawn at random that register tensor hooks between operators, as source text.

Each has views or writes, not both: on a view whose base was written torch's own `register_hook` may crash.
"""

import linecache
import random

import torch

_HOOKS = (
    "{name}.register_hook(lambda gradient: gradient * {factor})",
    "{name}.register_hook(lambda gradient: seen.append(({at}, gradient.clone())))",
    "{name}.register_hook(lambda gradient: seen.append(({at}, gradient.clone())) or gradient + {factor})",
    "{name}.register_hook(lambda gradient, other={name}: gradient * other.detach().cos())",
    "{name}.retain_grad()",
    "{name}.register_hook(lambda gradient: gradient * {factor}).remove()",
)
_STEPS = (
    "{new} = {name}.sin()",
    "{new} = {name} * {other}",
    "{new} = {name}.t()",
    "{new} = {name} + {other}.detach()",
    "{new} = {name} * {factor}",
    "{new} = torch.stack({name}.unbind()[::-1])",
)
_WRITES = ("{name}.mul_({factor})", "{name}.add_({other})", "{name}[0] = {factor}")


def drawn(seed):
    """A function of two leaves, a tensor with a history and a list; results are a tuple."""
    random_numbers = random.Random(seed)
    names, made = ["x", "w", "h"], []
    written = random_numbers.random() < 0.5
    steps = [step for step in _STEPS if not (written and ".t()" in step)]
    lines = ["def program(x, w, h, seen):"]
    for at in range(random_numbers.randint(3, 8)):
        kind = random_numbers.random()
        fields = {
            "name": random_numbers.choice(names),
            "other": random_numbers.choice(names),
            "factor": random_numbers.randint(2, 4),
            "new": f"y{at}",
            "at": at,
        }
        if kind < 0.45:
            lines.append(random_numbers.choice(_HOOKS).format(**fields))
        elif kind < 0.9 or not (made and written):
            lines.append(random_numbers.choice(steps).format(**fields))
            names.append(fields["new"])
            made.append(fields["new"])
        else:
            fields["name"] = random_numbers.choice([*made, "h"])
            lines.append(random_numbers.choice(_WRITES).format(**fields))
    outputs = random_numbers.sample(names[3:], min(len(made), random_numbers.randint(1, 3)))
    lines.append(f"return {''.join(name + ', ' for name in outputs) or 'x * w,'}")
    text = "\n    ".join(lines) + "\n"
    filename = f"<drawn {seed}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = {"torch": torch}
    exec(compile(text, filename, "exec"), scope)
    return scope["program"]
