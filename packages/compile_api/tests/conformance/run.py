"""Run `primtorch.check_backend` on a code generator: our C++, our Triton, or torch's inductor as the oracle.

    python run.py cpp | triton | torch [--shard 1/8] [--operator aten.mm.default] [--samples 6] [--json FILE]

Triton's kernels run in Triton's interpreter. Each operator has a process of its own, so that one that crashes or hangs
is a failure like any other. `known_failures.json` lists for each generator the pairs that are permitted to fail, with
the cause. Exit status 1 if a pair fails that isn't listed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is first imported
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch

from inductor import InductorOptions, compile_fx
from primtorch import PRIMS, check_backend
from primtorch.conformance import DTYPES
from primtorch.tables import CORE_ATEN

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


def checked(name, operator, dtypes, samples):
    """The result of one operator as plain data: pairs, failures, whether it had samples."""
    backend, fake_inputs = backend_of(name)
    report = check_backend(
        backend, operators=[operator], dtypes=dtypes, fake_inputs=fake_inputs, samples=samples
    )
    return {
        "pairs": {
            f"{r.operator} {str(r.dtype).removeprefix('torch.')}": r.passed + len(r.failures)
            for r in report.results
        },
        "failed": {
            f"{r.operator} {str(r.dtype).removeprefix('torch.')}": list(r.failures)
            for r in report.failed()
        },
        "untried": list(report.untried),
    }


def in_a_process(name, operator, dtypes, samples):
    """The same in a child; a crash or a hang is a failure of the operator."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            text = json.dumps(checked(name, operator, dtypes, samples))
        except BaseException:  # noqa: BLE001  told to the parent
            text = json.dumps({"broken": traceback.format_exc()[-600:]})
        with os.fdopen(writer, "w") as out:
            out.write(text)
        os._exit(0)
    os.close(writer)
    pieces, deadline, hung = [], time.monotonic() + PATIENCE, False
    while True:
        ready, _, _ = select.select([reader], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            hung = True
            os.kill(child, signal.SIGKILL)
            break
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        pieces.append(piece)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    found = json.loads(b"".join(pieces)) if pieces and not hung else {"broken": ""}
    if "broken" in found:
        why = "hung" if hung else found["broken"] or f"crashed with status {status}"
        return {
            "pairs": {f"{operator} all": 0},
            "failed": {f"{operator} all": [why]},
            "untried": [],
        }
    return found


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("backend", choices=("cpp", "triton", "torch"))
    parser.add_argument("--shard", default="1/1", help="k/n: every n-th operator, from the k-th")
    parser.add_argument("--operator", action="append", help="only this one (may be repeated)")
    parser.add_argument("--dtype", action="append", choices=sorted(NAMES))
    parser.add_argument("--samples", type=int, help="at most so many of each pair")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    part, parts = map(int, options.shard.split("/"))
    dtypes = [NAMES[name] for name in options.dtype or NAMES]
    known = json.loads(KNOWN.read_text()).get(options.backend, {}) if KNOWN.exists() else {}
    pairs, failed, untried, started = {}, {}, [], time.monotonic()
    for number, operator in enumerate(sorted(PRIMS | CORE_ATEN, key=str)):
        if number % parts != part - 1 or (
            options.operator and str(operator) not in options.operator
        ):
            continue
        found = in_a_process(options.backend, operator, dtypes, options.samples)
        pairs.update(found["pairs"])
        failed.update(found["failed"])
        untried += found["untried"]
        if not options.quiet:
            for pair, failures in found["failed"].items():
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
