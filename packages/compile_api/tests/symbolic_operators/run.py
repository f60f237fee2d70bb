"""Every small call of `calls.py` with `dynamic=True` at three sizes: one graph, at most two compiles, equal to eager.

`python run.py --help` tells the options; `nox -s symbolic_operators` writes the report.
"""

import argparse
import collections
import json
import sys
import warnings
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parent))

from calls import CALLS, PINNED, SIZES, function_of, inputs

import compile_api
from dynamo.testing import same

LIMIT = 2  # compiles


def outcome(function, tensors):
    torch.manual_seed(0)
    return function(*[tensor.clone() for tensor in tensors])


def fault_of(name, backend):
    """What is wrong with one call, in a line: nothing is ""."""
    function, names = function_of(CALLS[name])
    sizes = [[inputs(size)[one] for one in names] for size in SIZES]
    try:
        expected = [outcome(function, tensors) for tensors in sizes]
    except Exception as error:  # noqa: BLE001 - then the table is wrong
        return f"eager: {type(error).__name__}: {error}".splitlines()[0]
    compile_api.reset()
    compiled = compile_api.compile(
        function, dynamic=True, backend=backend, fullgraph=True, options={"strict": True}
    )
    try:
        for tensors, wanted in zip(sizes, expected, strict=True):
            found = outcome(compiled, tensors)
            if not same(found, wanted, tolerance=1e-4):
                return f"differs at {[tuple(one.shape) for one in tensors]}"
    except Exception as error:  # noqa: BLE001 - reported
        lines = f"{type(error).__name__}: {error}".splitlines()
        return " | ".join(line.strip() for line in lines[:3])
    count = compile_api.graph_count()
    return "" if count <= LIMIT else f"{count} compiles"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--only", nargs="*", help="calls whose name or text contains one of these")
    parser.add_argument("--json", type=Path, help="where the report goes")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    names = [
        name
        for name, text in CALLS.items()
        if not given.only or any(word in name or word in text for word in given.only)
    ]
    counts = collections.Counter()
    faults: dict[str, str] = {}
    for name in names:
        fault = fault_of(name, given.backend)
        counts["failed" if fault else "passed"] += 1
        if fault:
            faults[name] = PINNED.get(name) or fault
            print(f"{name}: {CALLS[name]}\n    {fault}", flush=True)
    print(f"{given.backend}: {counts['passed']} passed, {counts['failed']} failed")
    if given.json:
        report = {"torch": torch.__version__, "backend": given.backend, **counts, "faults": faults}
        given.json.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(not PINNED.keys() >= faults.keys())


if __name__ == "__main__":
    main()
