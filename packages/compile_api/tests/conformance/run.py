"""Run `primtorch.check_backend` on a code generator: our C++, our Triton, or torch's inductor as the oracle.

    python run.py cpp | triton | torch [--shard 1/8] [--operator aten.mm.default] [--samples 6] [--journal FILE]
                  [--json FILE]

Triton's kernels run in Triton's interpreter. An operator that crashes or hangs is a failure like any other. With
`--journal` a run that was interrupted goes on where it was. `known_failures.json` lists for each generator the pairs
that are permitted to fail, with the cause. Exit status 1 if a pair fails that isn't listed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import warnings
from functools import partial
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3] / "primtorch" / "tests"))
from inductor import InductorOptions, compile_fx
from primtorch import PRIMS, check_backend
from primtorch.conformance import DTYPES
from primtorch.tables import CORE_ATEN
from sharded_runs import add_arguments, chosen
from workers import run_once

KNOWN = Path(__file__).with_name("known_failures.json")
PATIENCE = 300
NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def ours(executor):
    """Our compiler with the given executor; a fault of it raises."""
    options = InductorOptions(executor=executor, strict=True)

    def backend(gm, example_inputs):
        return compile_fx(gm, example_inputs, options=options)

    return backend


def oracle(gm, example_inputs):
    """torch's inductor: what another compiler makes of the same graph."""
    import torch._inductor.config as config
    from torch._inductor.compile_fx import compile_fx as torch_compile_fx

    config.compile_threads = 1
    config.fallback_random = True
    return torch_compile_fx(gm, example_inputs)


def backend_of(name):
    """(compile function, whether it gets fake examples)."""
    if name == "torch":
        return oracle, False
    return ours("native" if name == "cpp" else "triton_interpreter"), True


def checked(name, operator, dtypes, samples, say):
    """The report on one operator: for each pair how many samples, and how they failed."""
    backend, fake_inputs = backend_of(name)
    pairs, failed = {}, {}
    for dtype in dtypes:
        say(str(dtype).removeprefix("torch."))  # what a crash is put down to
        report = check_backend(
            backend, operators=[operator], dtypes=[dtype], fake_inputs=fake_inputs, samples=samples
        )
        for result in report.results:
            pair = f"{result.operator} {str(result.dtype).removeprefix('torch.')}"
            pairs[pair] = result.passed + len(result.failures)
            if result.failures:
                failed[pair] = list(result.failures)
    return {"pairs": pairs, "failed": failed, "failures": []}


def jobs_of(options):
    """(operator, what a worker does for it) of the shard."""
    dtypes = [NAMES[name] for name in options.dtype or NAMES]
    operators = sorted(PRIMS | CORE_ATEN, key=str)
    for name, operator in chosen(options, ((str(one), one) for one in operators)):
        yield name, partial(checked, options.backend, operator, dtypes, options.samples)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("backend", choices=("cpp", "triton", "torch"))
    add_arguments(parser, NAMES)
    parser.add_argument("--journal", type=Path, help="keeps what was done, and goes on behind it")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    known = json.loads(KNOWN.read_text()).get(options.backend, {}) if KNOWN.exists() else {}
    pairs, failed, untried, started = {}, {}, [], time.monotonic()
    for operator, report in run_once(dict(jobs_of(options)), options.journal, PATIENCE):
        found = report.get("failed", {})
        if report["failures"]:  # the operator's process died; at which dtype the text says
            found = {f"{operator} all": report["failures"]}
        pairs.update(report.get("pairs", dict.fromkeys(found, 0)))
        failed.update(found)
        if not report.get("pairs") and not found:
            untried.append(operator)
        if not options.quiet:
            for pair, failures in found.items():
                mark = "known " if pair in known else ""
                print(f"{mark}{pair}: {failures[0]}", flush=True)
    unexpected = sorted(set(failed) - set(known))
    report = {
        "backend": options.backend,
        "shard": options.shard,
        "torch": torch.__version__,
        "pairs": len(pairs),
        "samples": sum(pairs.values()),
        "failed": failed,
        "unexpected": unexpected,
        "no samples": untried,
        "seconds": round(time.monotonic() - started, 1),
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{options.backend}: {len(pairs)} pairs, {sum(pairs.values())} samples, {len(failed)} fail, "
        f"{len(unexpected)} unexpected; {len(untried)} operators without samples"
    )
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
