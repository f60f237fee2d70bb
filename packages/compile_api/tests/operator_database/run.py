"""Compare compiled operators with eager over torch.testing's operator database, through the whole stack.

    python run.py [--shard 1/4] [--operator NAME] [--dtype float32] [--samples 2] [--errors] [--json FILE]

For each operator, dtype and sample: values, dtype, shape, stride, the type of a raised error, and gradients of what
is differentiable; with `--errors`, the database's error inputs instead. Each operator has a process of its own, so that
one that crashes or hangs is a failure like any other. `known_failures.json` lists the pairs that are permitted to
fail, with the cause; a complete run reports those that pass, so that the list only shrinks. Printed at the end: how
many pairs ran in our kernels alone, with declared calls of the library, or with fallbacks. Exit status 1 if a pair
fails that isn't listed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import select
import signal
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db

import compile_api
from compile_api import wiring

KNOWN = Path(__file__).with_name("known_failures.json")
PATIENCE = 240
WITHOUT_MEANING = frozenset({"empty", "empty_like", "new_empty", "new_empty_strided"})
WITHOUT_MEANING |= {"empty_strided", "empty_permuted"}
STEPS: Counter = Counter()


def _comparison():
    """The comparison of results that the decompositions are judged by."""
    folder = Path(__file__).parents[3] / "primtorch" / "tests" / "operator_database"
    sys.path.insert(0, str(folder))
    try:
        specification = importlib.util.spec_from_file_location(
            "decomposition_run", folder / "run.py"
        )
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


BASE = _comparison()


def _watched(compile_fx):
    """`compile_fx` that counts the steps of its programs by kind."""

    def watched(graph, inputs, **rest):
        made = compile_fx(graph, inputs, **rest)
        program = getattr(made, "program", None)
        STEPS["kernel" if program is not None else "reference"] += 1
        for step in program.schedule.steps if program is not None else ():
            kind = getattr(step, "kind", None)
            if kind is not None:
                STEPS[f"{kind} {step.operator}"] += 1
        return made

    return watched


def compiled_program(info, *, strict=True):
    """The operator as a function of a sample, compiled; a fault of ours raises if strict."""
    operator = info.op

    def program(first, args, kwargs):
        return operator(first, *args, **kwargs)

    return program, compile_api.compile(program, dynamic=False, options={"strict": strict})


def is_random(program, arguments, expected):
    """Whether another seed gives other values."""
    torch.manual_seed(7)
    again, error = BASE.attempt(lambda: program(*arguments))
    return error is None and bool(BASE.differences(expected, again, random=False))


def run_sample(info, sample, dtype):
    """An empty string if eager and the compiled program agree on this sample, else what differs."""
    program, compiled = compiled_program(info)
    arguments = (sample.input, sample.args, sample.kwargs)
    leaves = [tensor for tensor in BASE.tensors_of(arguments) if tensor.requires_grad]
    torch.manual_seed(0)
    expected, failure = BASE.attempt(lambda: program(*arguments))
    torch.manual_seed(0)
    found, error = BASE.attempt(lambda: compiled(*arguments))
    if failure is not None or error is not None:
        if failure is None:
            return f"raised {type(error).__name__}: {str(error)[-300:]}"
        if error is None:
            return f"didn't raise {type(failure).__name__}: {str(failure)[:120]}"
        return "" if type(failure) is type(error) else f"raised {error!r:.200} for {failure!r:.150}"
    half = dtype in (torch.bfloat16, torch.float16)
    if half and BASE.closer_than_eager(info, sample, expected, found):
        return ""
    random = info.name in WITHOUT_MEANING or is_random(program, arguments, expected)
    message = BASE.differences(expected, found, random)
    if message or random or not leaves:
        return message
    expected_gradients, failure = BASE.attempt(lambda: BASE.gradients(expected, leaves))
    found_gradients, error = BASE.attempt(lambda: BASE.gradients(found, leaves))
    if failure is not None:
        return ""
    if error is not None:
        return f"gradient raised {type(error).__name__}: {str(error)[-300:]}"
    message = BASE.differences(expected_gradients, found_gradients, random=False)
    return f"gradient {message}" if message else ""


def samples_of(info, dtype, count):
    """The first samples of an operator, requiring gradients where it has them."""
    differentiable = (dtype.is_floating_point or dtype.is_complex) and info.supports_autograd
    differentiable = differentiable and dtype in info.supported_backward_dtypes("cpu")
    torch.manual_seed(1)
    found, error = BASE.attempt(
        lambda: list(
            itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=differentiable), count)
        )
    )
    return [] if error is not None else found


def run_pair(info, dtype, count, say):
    """Run the samples of one pair; tells `say` what it starts, and each failure."""
    STEPS.clear()
    samples = samples_of(info, dtype, count)
    failures = []
    for position, sample in enumerate(samples):
        say({"at": f"sample {position}"})
        message = run_sample(info, sample, dtype)
        compile_api.reset()
        if message:
            failures.append(f"sample {position}: {message}")
    say({"failures": failures, "samples": len(samples), "steps": dict(STEPS)})


def run_errors(info, say):
    """The error inputs of an operator: the compiled program raises what eager raises."""
    failures = []
    for position, case in enumerate(info.error_inputs("cpu")):
        say({"at": f"error {position}"})
        sample = case.sample_input
        program, compiled = compiled_program(info, strict=False)
        arguments = (sample.input, sample.args, sample.kwargs)
        _, expected = BASE.attempt(lambda p=program, a=arguments: p(*a))
        _, found = BASE.attempt(lambda c=compiled, a=arguments: c(*a))
        compile_api.reset()
        if expected is not None and type(found) is not type(expected):
            failures.append(f"error {position}: {found!r:.200} for {expected!r:.150}")
    say({"failures": failures, "samples": 1, "steps": {}})


def isolated(call):
    """What `call(say)` told in a process of its own: (the last report, where it stood, its end)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            call(lambda message: os.write(writing, (json.dumps(message) + "\n").encode()))
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            report = {"failures": [f"the runner: {error!r:.300}"], "samples": 1, "steps": {}}
            os.write(writing, (json.dumps(report) + "\n").encode())
        os._exit(0)
    os.close(writing)
    text, deadline = b"", time.monotonic() + PATIENCE
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reading, 1 << 16) if ready else b""
        if not ready:
            os.kill(child, signal.SIGKILL)
        if not part:
            break
        text += part
    os.close(reading)
    _, status = os.waitpid(child, 0)
    messages = [json.loads(line) for line in text.splitlines()]
    if messages and "failures" in messages[-1]:
        return messages[-1]
    at = messages[-1]["at"] if messages else "start"
    end = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "exited"
    return {"failures": [f"{at}: the process was {end}"], "samples": 1, "steps": {}}


def pairs_of(options):
    """(key, what to run in a process of its own) of the shard."""
    part, parts = map(int, options.shard.split("/"))
    for number, info in enumerate(op_db):
        name = BASE.full_name(info)
        if number % parts != part - 1 or (options.operator and name not in options.operator):
            continue
        if options.errors:
            if info.error_inputs_func is not None:
                yield f"{name} errors", lambda say, info=info: run_errors(info, say)
            continue
        for dtype_name, dtype in BASE.DTYPES.items():
            if dtype in info.supported_dtypes("cpu") and (
                not options.dtype or dtype_name in options.dtype
            ):
                yield (
                    f"{name} {dtype_name}",
                    lambda say, info=info, dtype=dtype: run_pair(info, dtype, options.samples, say),
                )


def share_of(steps):
    """How a pair ran: in our kernels alone, with the library's declared calls, or with fallbacks."""
    if not steps:
        return "not captured"
    kinds = {step.partition(" ")[0] for step in steps}
    return next((kind for kind in ("reference", "fallback", "vendor") if kind in kinds), "compiled")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--shard", default="1/1", help="k/n: every n-th operator, from the k-th")
    parser.add_argument("--operator", action="append", help="only this operator (may be repeated)")
    parser.add_argument("--dtype", action="append", choices=sorted(BASE.DTYPES))
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--errors", action="store_true", help="only what is refused, and how")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    wiring.compile_fx = _watched(wiring.compile_fx)
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    ran, failed, started = {}, {}, time.monotonic()
    fallbacks: Counter = Counter()
    for key, call in pairs_of(options):
        report = isolated(call)
        if not report["samples"]:
            continue
        ran[key] = share_of(report["steps"])
        fallbacks.update(
            step.partition(" ")[2] for step in report["steps"] if step.startswith("fallback ")
        )
        if report["failures"]:
            failed[key] = report["failures"]
            if not options.quiet:
                mark = "known " if key in known else ""
                print(f"{mark}{key}: {report['failures'][0]}", flush=True)
    unexpected = sorted(set(failed) - set(known))
    shares = Counter(ran.values())
    result = {
        "shard": options.shard,
        "torch": torch.__version__,
        "pairs": len(ran),
        "shares": dict(shares),
        "fallbacks": dict(fallbacks.most_common()),
        "failed": failed,
        "unexpected": unexpected,
        "known that pass": sorted(key for key in known if key in ran and key not in failed),
        "seconds": round(time.monotonic() - started, 1),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    parts = ", ".join(f"{count} {share}" for share, count in shares.most_common())
    print(f"{len(ran)} pairs ({parts}); {len(failed)} fail, {len(unexpected)} unexpected")
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
