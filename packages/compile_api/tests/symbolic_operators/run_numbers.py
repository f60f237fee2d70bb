"""Every small call of `number_calls.py` with six floats, inference and training: at most two compiles, as eager.

`python run_numbers.py --help` tells the options; `nox -s symbolic_operators` writes the report.
"""

import argparse
import collections
import json
import re
import sys
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))

from number_calls import (
    CONSTANT,
    NAMES,
    NUMBER_CALLS,
    NUMBERS,
    PINNED_NUMBERS,
    RANDOM_CALLS,
    number_inputs,
)

import compile_api
from dynamo.testing import same

LIMIT = 2  # compiles: one for the first number, one for all
NO_DERIVATIVE = frozenset({"remainder scalar", "floor_divide", "zeta"})  # eager has none


def function_of(expression):
    """The expression as a function of its tensors and the number, and the tensors' names."""
    names = [
        name
        for name in number_inputs()
        if re.search(rf"(?<![\w.'])\b{name}\b(?!\s*=[^=])", expression)
    ]
    scope = dict(NAMES)
    exec(f"def program({', '.join((*names, 'a'))}):\n    return {expression}\n", scope)
    return scope["program"], names


def outcome(function, names, number, *, training):
    """The result, and with `training` the gradients of a weighted sum of it."""
    tensors = []
    for name, tensor in number_inputs().items():
        if name in names:
            wanted = training and name not in CONSTANT and tensor.is_floating_point()
            tensors.append(tensor.requires_grad_(wanted))
    torch.manual_seed(0)
    result = function(*tensors, number)
    if not (training and result.requires_grad):
        return [result.detach()]
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).reshape(result.shape)
    wanted = [tensor for tensor in tensors if tensor.requires_grad]
    found = torch.autograd.grad((result * weights).sum(), wanted, allow_unused=True)
    return [result.detach(), *[one for one in found if one is not None]]


def number_fault_of(name, backend, *, training):
    """What is wrong with one call in a line, nothing is "", and whether all bits were eager's."""
    expression = NUMBER_CALLS.get(name) or RANDOM_CALLS[name]
    function, names = function_of(expression)
    expected = [outcome(function, names, number, training=training) for number in NUMBERS]
    compile_api.reset()
    options = {"strict": True}
    if name in RANDOM_CALLS and backend != "eager":
        options["fallback_random"] = True
    compiled = compile_api.compile(function, backend=backend, fullgraph=True, options=options)
    exact = True
    try:
        for number, wanted in zip(NUMBERS, expected, strict=True):
            found = outcome(compiled, names, number, training=training)
            if not same(found, wanted, tolerance=1e-4 if training else 1e-5):
                return f"differs for {number}", False
            exact &= all(map(torch.equal, found, wanted))
    except Exception as error:  # noqa: BLE001 - reported
        lines = f"{type(error).__name__}: {error}".splitlines()
        return " | ".join(line.strip() for line in lines[:3]), False
    count = compile_api.graph_count()
    return ("" if count <= LIMIT else f"{count} compiles"), exact


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--only", nargs="*", help="calls whose name or text contains one of these")
    parser.add_argument("--json", type=Path, help="where the report goes")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    counts = collections.Counter()
    faults: dict[str, str] = {}
    for name, text in {**NUMBER_CALLS, **RANDOM_CALLS}.items():
        if given.only and not any(word in name or word in text for word in given.only):
            continue
        for training in (False, True) if name not in NO_DERIVATIVE else (False,):
            fault, exact = number_fault_of(name, given.backend, training=training)
            counts["failed" if fault else "passed"] += 1
            counts["bit for bit"] += exact
            if fault:
                faults[name] = PINNED_NUMBERS.get(name) or fault
                print(f"{name}{', training' * training}: {text}\n    {fault}", flush=True)
    print(f"{given.backend}: {dict(counts)}")
    if given.json:
        report = {"torch": torch.__version__, "backend": given.backend, **counts, "faults": faults}
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(not PINNED_NUMBERS.keys() >= faults.keys())


if __name__ == "__main__":
    main()
