"""Random calls of single operators, compiled strictly against eager.

    python run.py [--first 0] [--count 2000] [--journal FILE] [--json FILE]

`calls.py` draws them. Compared are values (NaN, infinities and signs of zero too, but of complex numbers and where
eager chooses among equals by the number of elements), dtypes, shapes, strides, and what is raised. A floating-point
value may differ by the rounding of a few operations of its dtype. Calls that eager takes are compiled several to a
graph; those of a graph that differs, and those that eager refuses, one by one. Several processes may share the work,
each with seeds and a journal of its own; a journal made of theirs gives the whole report. Exit status 1 if a call
differs.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from calls import drawn

import compile_api
from workers import run_once

TOGETHER = 12
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 4e-6,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
    torch.complex64: 1e-5,
    torch.complex128: 1e-11,
}


def attempt(call):
    try:
        return call(), None
    except Exception as error:  # noqa: BLE001  any error of either side is the datum
        return None, error


def _steps(tensor):
    if not tensor.numel():
        return ()
    return tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)


# Of equal zeros eager's vectors take the one, its scalars the other: which, hangs on the number of elements.
EITHER_ZERO = (
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "clamp of",
    "amax",
    "amin",
    "max(",
    "min(",
    "sort",
)


def _different_values(left, right, signs):
    if left.is_complex():
        signs = False  # its products of zeros and infinities are the library's own
        left, right = (
            torch.view_as_real(left.resolve_conj()),
            torch.view_as_real(right.resolve_conj()),
        )
        tolerance = TOLERANCE[torch.complex64 if left.dtype is torch.float32 else torch.complex128]
    elif not left.is_floating_point():
        return not torch.equal(left, right)
    else:
        tolerance = TOLERANCE[left.dtype]
    left, right = left.resolve_neg().double(), right.resolve_neg().double()
    zeros = (left == 0) & (right == 0)
    same = (left == right) & (not signs or ~zeros | (left.signbit() == right.signbit()))
    same |= left.isnan() & right.isnan()
    finite = left.isfinite() & right.isfinite()
    same |= finite & ~zeros & ((left - right).abs() <= tolerance * left.abs() + 1e-300)
    return not bool(same.all())


def difference(expected, found, text=""):
    """What distinguishes two results, or an empty string."""
    left, right = pytree.tree_leaves(expected), pytree.tree_leaves(found)
    if len(left) != len(right):
        return f"{len(right)} results for {len(left)}"
    for one, other in zip(left, right, strict=True):
        if one.dtype is not other.dtype or one.shape != other.shape:
            return f"{other.dtype} {tuple(other.shape)} for {one.dtype} {tuple(one.shape)}"
        if _steps(one) != _steps(other):
            return f"strides {other.stride()} for {one.stride()} of {tuple(one.shape)}"
        if _different_values(one, other, not text.startswith(EITHER_ZERO)):
            return f"{other.tolist()} for {one.tolist()}"
    return ""


def compiled(function):
    compile_api.reset()
    return compile_api.compile(function, dynamic=False, options={"strict": True})


def alone(call, expected, failure):
    """What differs when the call is compiled for itself."""
    found, error = attempt(lambda: compiled(call.function)(*call.tensors))
    if failure is not None or error is not None:
        if type(failure) is type(error):
            return ""
        return f"raised {error!r:.200} for {failure!r:.120}"
    return difference(expected, found, call.text)


def checked(first, count, say):
    """The report on these seeds."""
    calls = {seed: drawn(seed) for seed in range(first, first + count)}
    eager = {seed: attempt(lambda c=call: c.function(*c.tensors)) for seed, call in calls.items()}
    good = [seed for seed in calls if eager[seed][1] is None]

    def program(*groups):
        return [calls[seed].function(*group) for seed, group in zip(good, groups, strict=True)]

    say("together")
    found, error = attempt(lambda: compiled(program)(*[calls[seed].tensors for seed in good]))
    suspects = [seed for seed in calls if eager[seed][1] is not None]
    for position, seed in enumerate(good):
        if error is not None or difference(eager[seed][0], found[position], calls[seed].text):
            suspects.append(seed)
    failures = {}
    for seed in suspects:
        say(calls[seed].text)
        message = alone(calls[seed], *eager[seed])
        if not message and seed in good and error is None:
            message = f"only beside others: {difference(eager[seed][0], found[good.index(seed)], calls[seed].text)}"
        if message:
            failures[seed] = f"{calls[seed].text}: {message}"
    refused = sum(failure is not None for _, failure in eager.values())
    return {"failures": [f"{s}: {text}" for s, text in failures.items()], "refused": refused}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--journal", type=Path, help="keeps what was done, and goes on behind it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    last = options.first + options.count
    jobs = {
        str(start): partial(checked, start, min(TOGETHER, last - start))
        for start in range(options.first, last, TOGETHER)
    }
    failed, numbers = [], Counter()
    for _, report in run_once(jobs, options.journal, 120.0):
        numbers["refused by eager"] += report.get("refused", 0)
        failed += report["failures"]
        for text in report["failures"]:
            print(text[:600], flush=True)
    result = {
        "torch": torch.__version__,
        "first": options.first,
        "calls": options.count,
        "compared": "values, signs of zero, dtypes, shapes, strides, exceptions",
        **numbers,
        "differ": failed,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{options.count} calls ({dict(numbers)}): {len(failed)} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
