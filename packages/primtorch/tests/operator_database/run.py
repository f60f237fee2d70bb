"""Compare every decomposition with eager over torch.testing's operator database.

    python run.py [--shard 1/4] [--table prims] [--operator NAME] [--dtype float32] [--samples 10] [--json FILE]
    python run.py --merge 1.json 2.json ... --json complete_run.json

For each operator, dtype and sample: values, dtype, shape, stride; for floating dtypes gradients too; and the error
type over the database's error inputs (`--errors`). What each decomposition returns is compared with its operator's
shape rule as well. A (operator, dtype) pair fails if any of its samples does. `known_failures.json`
lists the pairs that are permitted to fail, with the cause; a pair there that passes is reported, so that the list
only shrinks. Exit status 1 if a pair fails that isn't listed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from faking import difference_on_fakes
from taking_apart import TakingApart

from primtorch import decomposition_table, is_prim
from primtorch.coverage import Status, coverage_report
from primtorch.registry import overload, registered
from sharded_runs import add_arguments, chosen

KNOWN = Path(__file__).with_name("known_failures.json")
DTYPES = {
    str(d).removeprefix("torch."): d
    for d in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.bool,
        torch.complex64,
    )
}
TOLERANCE = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (5e-5, 5e-5),
    torch.bfloat16: (1.6e-2, 1e-2),
    torch.float16: (2e-3, 2e-3),
    torch.complex64: (2e-5, 2e-5),
    torch.complex128: (1e-7, 1e-7),
}


def full_name(info):
    return f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name


def tensors_of(value):
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def significant_strides(tensor):
    return (
        tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
        if tensor.numel()
        else ()
    )


def differences(expected, found, random):
    """What distinguishes two results, or an empty string."""
    expected, found = pytree.tree_leaves(expected), pytree.tree_leaves(found)
    if len(expected) != len(found):
        return f"{len(found)} results for {len(expected)}"
    for position, (left, right) in enumerate(zip(expected, found, strict=True)):
        if not isinstance(left, torch.Tensor):
            if type(left) is not type(right) or (left != right and left == left and not random):
                return f"result {position}: {right!r} for {left!r}"
            continue
        if not isinstance(right, torch.Tensor):
            return f"result {position}: {type(right).__name__} for a tensor"
        if left.layout is not torch.strided:
            continue
        for what in ("dtype", "shape", "device"):
            if getattr(left, what) != getattr(right, what):
                return f"result {position}: {what} {getattr(right, what)} for {getattr(left, what)}"
        if significant_strides(left) != significant_strides(right):
            return f"result {position}: stride {right.stride()} for {left.stride()} of shape {tuple(left.shape)}"
        if not random:
            relative, absolute = TOLERANCE.get(left.dtype, (0, 0))
            try:
                torch.testing.assert_close(
                    right, left, rtol=relative, atol=absolute, equal_nan=True
                )
            except AssertionError as error:
                return f"result {position}: " + " ".join(str(error).split())[:160]
    return ""


def gradients(outputs, inputs):
    chosen = [o for o in tensors_of(outputs) if o.requires_grad and o.layout is torch.strided]
    if not chosen or not inputs:
        return []
    # Uneven tangents tell apart what a sum of ones would hide; detached halves keep the magnitude modest.
    tangents = [
        (torch.arange(o.numel(), dtype=torch.float64) % 7 / 4 - 0.5).reshape(o.shape).to(o.dtype)
        for o in chosen
    ]
    return list(torch.autograd.grad(chosen, inputs, tangents, allow_unused=True))


def attempt(call):
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001  any error of either side is the datum
        return None, error


def closer_than_eager(info, sample, expected, found):
    """Whether a half-precision result lies no further from the float32 result than eager's does.

    Some of eager's kernels round intermediate values to the half type; a decomposition that rounds
    once need not reproduce that.
    """

    def widened(leaf):
        half = isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.bfloat16, torch.float16)
        return leaf.detach().float() if half else leaf

    arguments = pytree.tree_map(widened, (sample.input, sample.args, sample.kwargs))
    exact, error = attempt(lambda: info(arguments[0], *arguments[1], **arguments[2]))
    if error is not None:
        return False
    if any(t.layout is not torch.strided for t in tensors_of((expected, found))):
        return False
    triples = list(zip(tensors_of(exact), tensors_of(expected), tensors_of(found), strict=False))
    for reference, left, right in triples:
        if left.dtype is not right.dtype or left.shape != right.shape:
            return False
        if not left.dtype.is_floating_point or significant_strides(left) != significant_strides(
            right
        ):
            return False
        ours, theirs = (torch.nan_to_num((t.float() - reference).abs()) for t in (right, left))
        if ours.numel() and ours.max() > theirs.max() + 1e-6:
            return False
    return bool(triples)


class Remains(Counter):
    """How often each operator was left; `reached`: for each operator that was called, what remained of it."""

    def __init__(self):
        super().__init__()
        self.reached = {}
        self.gradients = 0  # how many samples' gradients were compared

    def add(self, mode):
        self.update(mode.leaves)
        for operator, left in mode.reached.items():
            self.reached.setdefault(operator, set()).update(left)

    def in_prims(self):
        """The operators that were called and of which only prims remained."""
        return {op for op, left in self.reached.items() if all(map(reduces_to_prim, left))}


def run_sample(info, sample, table, dtype, leaves, fakes=None):
    """An empty string if eager and the decomposed program agree on this sample, else what differs."""
    leaf_inputs = [
        t for t in tensors_of((sample.input, sample.args, sample.kwargs)) if t.requires_grad
    ]

    def program(clone):
        arguments = pytree.tree_map(clone, (sample.input, sample.args, sample.kwargs))
        return info(arguments[0], *arguments[1], **arguments[2])

    torch.manual_seed(0)
    expected, failure = attempt(lambda: program(lambda x: x))
    on_fakes = []

    def watch(operator, function, args, kwargs, out):
        message = difference_on_fakes(table, function, args, kwargs, out, fakes == "symbolic")
        if message:
            on_fakes.append(f"{operator} on fakes: {message}")

    mode = TakingApart(table, watch if fakes else None)

    def decomposed():
        with mode:
            return program(lambda x: x)

    torch.manual_seed(0)
    found, error = attempt(decomposed)
    leaves.add(mode)
    if failure is not None or error is not None:
        if failure is None:
            return f"raised {type(error).__name__}: {str(error)[:200]}"
        if error is None:
            return f"didn't raise {type(failure).__name__}: {str(failure)[:120]}"
        return "" if type(failure) is type(error) else f"raised {error!r:.150} for {failure!r:.150}"
    half = dtype in (torch.bfloat16, torch.float16)
    if half and closer_than_eager(info, sample, expected, found):
        return ""
    if on_fakes:
        return on_fakes[0]
    random = any(op.namespace == "primtorch" for op in mode.leaves) or "empty" in info.name
    message = differences(expected, found, random)
    if message or random or not leaf_inputs:
        return message
    expected_gradients, failure = attempt(lambda: gradients(expected, leaf_inputs))
    backward = TakingApart(table, watch if fakes else None)

    def decomposed_gradients():
        with backward:
            return gradients(found, leaf_inputs)

    found_gradients, error = attempt(decomposed_gradients)
    leaves.add(backward)
    if failure is not None:
        return ""
    if error is not None:
        return f"gradient raised {type(error).__name__}: {str(error)[:200]}"
    if on_fakes:
        return on_fakes[0]
    leaves.gradients += any(tensor is not None for tensor in expected_gradients)
    message = differences(expected_gradients, found_gradients, random=False)
    return f"gradient {message}" if message else ""


def run_pair(info, dtype, table, samples, leaves, fakes=None):
    """The failures of one operator in one dtype, at most one text for each sample."""
    wants_gradient = (dtype.is_floating_point or dtype.is_complex) and info.supports_autograd
    wants_gradient = wants_gradient and dtype in info.supported_backward_dtypes("cpu")
    torch.manual_seed(1)
    inputs, error = attempt(
        lambda: list(
            itertools.islice(
                info.sample_inputs("cpu", dtype, requires_grad=wants_gradient), samples
            )
        )
    )
    if error is not None:
        return [], 0
    failures = []
    for position, sample in enumerate(inputs):
        message = run_sample(info, sample, table, dtype, leaves, fakes)
        if message:
            failures.append(f"sample {position}: {message}")
    return failures, len(inputs)


def run_errors(info, table):
    """The error inputs of an operator that the decomposed program refuses otherwise than eager."""
    if info.error_inputs_func is None:
        return []
    failures = []
    for position, case in enumerate(info.error_inputs("cpu")):
        sample = case.sample_input

        def program(sample=sample):
            return info(sample.input, *sample.args, **sample.kwargs)

        _, expected = attempt(program)
        mode = TakingApart(table)

        def decomposed(mode=mode, program=program):
            with mode:
                return program()

        _, found = attempt(decomposed)
        if expected is not None and type(found) is not type(expected):
            failures.append(f"error {position}: {found!r:.150} for {expected!r:.150}")
    return failures


def reduces_to_prim(operator):
    """Whether an operator that was left is a prim, or the in-place or out form of one."""
    covered = coverage_report().of(str(operator)) if operator.namespace == "aten" else None
    if covered is None or covered.status is not Status.FUNCTIONAL:
        return is_prim(operator)
    functional = overload(covered.becomes[0])
    return is_prim(functional) or functional in registered()


def merged(reports):
    """One report of several shards'; those of `--errors` give the line about errors."""
    errors = [report for report in reports if report["errors"]]
    shards = [report for report in reports if not report["errors"]]
    failed = {key: texts for report in shards for key, texts in report["failed"].items()}
    left = {}
    for report in shards:
        for operator, remains in report["reached"].items():
            left.setdefault(operator, set()).update(remains)
    open_ = {op: sorted(remains) for op, remains in sorted(left.items()) if remains}
    leaves = Counter()
    for report in shards:
        leaves.update(report["leaves"])
    return {
        "table": shards[0]["table"],
        "torch": shards[0]["torch"],
        "dtypes": list(DTYPES),
        "samples": shards[0]["samples"],
        "checked": "values, dtypes, shapes, strides, gradients against autograd's, shape rules",
        "operators": sum(report["operators"] for report in shards),
        "pairs": sum(report["pairs"] for report in shards),
        "pairs with gradients": sum(report["pairs with gradients"] for report in shards),
        "failed": dict(sorted(failed.items())),
        "unexpected": sorted(key for report in reports for key in report["unexpected"]),
        "operators with error inputs": sum(report["pairs"] for report in errors),
        "errors that differ": {k: v for report in errors for k, v in report["failed"].items()},
        "overloads reached": len(left),
        "of which reduce to prims": len(left) - len(open_),
        "share that reduces to prims": round(1 - len(open_) / max(len(left), 1), 4),
        "overloads that don't reduce": open_,
        "leaves": dict(leaves.most_common()),
        "seconds": round(sum(report["seconds"] for report in reports), 1),
    }


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    add_arguments(parser, DTYPES, samples=10)
    parser.add_argument("--table", default="prims")
    parser.add_argument(
        "--fakes", choices=("static", "symbolic"), help="run each decomposition on fake tensors too"
    )
    parser.add_argument("--errors", action="store_true", help="only what is refused, and how")
    parser.add_argument("--merge", type=Path, nargs="+", help="reports of shards, to make one of")
    options = parser.parse_args(arguments)
    if options.merge:
        report = merged([json.loads(path.read_text()) for path in options.merge])
        options.json.write_text(json.dumps(report, indent=1) + "\n")
        print({key: value for key, value in report.items() if not isinstance(value, dict)})
        return 1 if report["unexpected"] else 0
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    table = decomposition_table(options.table).verified()
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    leaves = Remains()
    pairs, operators, with_gradients, failed, started = 0, 0, 0, {}, time.monotonic()
    for operator, info in chosen(options, ((full_name(info), info) for info in op_db)):
        operators += 1
        if options.errors:
            failures = run_errors(info, table)
            pairs += info.error_inputs_func is not None
            if failures:
                failed[f"{operator} errors"] = failures
                if not options.quiet:
                    print(f"{operator} errors: {failures[0]}", flush=True)
            continue
        for name, dtype in DTYPES.items():
            if dtype not in info.supported_dtypes("cpu") or (
                options.dtype and name not in options.dtype
            ):
                continue
            compared = leaves.gradients
            failures, count = run_pair(info, dtype, table, options.samples, leaves, options.fakes)
            pairs += bool(count)
            with_gradients += leaves.gradients > compared
            if failures:
                key = f"{operator} {name}"
                failed[key] = failures
                if not options.quiet:
                    print(f"{'known ' if key in known else ''}{key}: {failures[0]}", flush=True)
    unexpected = sorted(set(failed) - set(known))
    reached = {str(op) for op in leaves}
    in_prims = leaves.in_prims()
    report = {
        "table": options.table,
        "shard": options.shard,
        "torch": torch.__version__,
        "errors": options.errors,
        "samples": options.samples,
        "operators": operators,
        "pairs": pairs,
        "pairs with gradients": with_gradients,
        "failed": failed,
        "unexpected": unexpected,
        "overloads reached": len(leaves.reached),
        "of which reduce to prims": len(in_prims),
        "share that reduces to prims": round(len(in_prims) / max(len(leaves.reached), 1), 4),
        "reached": {
            str(op): sorted(str(o) for o in left if not reduces_to_prim(o))
            for op, left in leaves.reached.items()
        },
        "leaves": {str(op): n for op, n in leaves.most_common()},
        "leaves that are no prims": sorted(str(op) for op in leaves if not reduces_to_prim(op)),
        "seconds": round(time.monotonic() - started, 1),
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(
        f"{pairs} pairs, {len(failed)} fail, {len(unexpected)} unexpected; {len(in_prims)} of "
        f"{len(leaves.reached)} overloads reduce to prims; {len(reached)} operators remain"
    )
    return 1 if unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
