"""One operator in one dtype: eager and compiled side by side.

In: an entry of torch.testing's operator database and a dtype. Out: a report {failures, samples, steps, breaks}: what
differed, sample by sample, and what ran. Judged are values, dtype, shape, stride, whether a result requires a gradient,
is a leaf and how often it was written, the type of a raised error, and the gradients of what is
differentiable. A floating-point value may differ from eager's more than the tolerance where its
distance from the result in the next wider dtype is at most twice that of eager's.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import sys
from collections import Counter
from pathlib import Path

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.utils import _pytree as pytree

import compile_api
from compile_api import wiring

WITHOUT_MEANING = frozenset({"empty", "empty_like", "new_empty", "new_empty_strided"})
WITHOUT_MEANING |= {"empty_strided", "empty_permuted"}
COUNTED_INSIDE = frozenset({"linalg.matrix_rank", "nn.functional.linear_cross_entropy"})
"""Their versions count what ATen writes into memory of its own; under any dispatch mode eager's are others, too."""
WIDER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}
STEPS: Counter = Counter()
FAULTS: list[str] = []


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
DTYPES = {**BASE.DTYPES, "float16": torch.float16, "int32": torch.int32}


def call_as_it_is(operator, *args, **kwargs):
    """What the database's random operators are called by, without its own seed and its saved generator state."""
    return operator(*args, **kwargs)


database.wrapper_set_seed = call_as_it_is


class _Faults(logging.Handler):
    """Keeps what the compiler says when it goes on without its kernels."""

    def emit(self, record):
        text = record.getMessage()
        position = text.find("error:")
        FAULTS.append(text[max(0, position) :][:300])


def watch_programs():
    """From now on counts the steps of compiled programs in `STEPS`, by kind and operator."""
    logger = logging.getLogger("inductor")
    logger.handlers, logger.propagate = [_Faults(logging.WARNING)], False
    compile_fx = wiring.compile_fx

    def watched(graph, inputs, **rest):
        made = compile_fx(graph, inputs, **rest)
        program = getattr(made, "program", None)
        STEPS["program" if program is not None else "reference"] += 1
        for step in program.schedule.steps if program is not None else ():
            kind = getattr(step, "kind", None)
            STEPS["kernel" if kind is None else f"{kind} {step.operator}"] += 1
        return made

    wiring.compile_fx = watched


PEERS: list[str] = []
"""Holds "torch" where torch.compile is run in our place."""


def compiled_program(info, *, strict=True):
    """The operator as a function of a sample, compiled; a fault of ours raises if strict."""
    operator = info.op

    def program(first, args, kwargs):
        return operator(first, *args, **kwargs)

    if PEERS:
        torch._dynamo.reset()
        return program, torch.compile(program, dynamic=False)
    return program, compile_api.compile(program, dynamic=False, options={"strict": strict})


def described(error):
    """An exception and what it came from, shortly."""
    texts = []
    while error is not None:
        lines = " ".join(str(error).split())
        _, _, why = lines.partition("why: ")
        texts.append(f"{type(error).__name__}: {(why or lines)[:200]}")
        error = error.__cause__
    return texts[0].partition(":")[0] + " <- " + texts[-1] if len(texts) > 1 else texts[0]


def is_random(program, arguments, expected):
    """Whether another seed gives other values."""
    torch.manual_seed(7)
    again, error = BASE.attempt(lambda: program(*arguments))
    return error is None and bool(BASE.differences(expected, again, random=False))


def _widened(leaf):
    """A leaf in the next wider dtype, detached from its history but not from the wish for a gradient."""
    if not isinstance(leaf, torch.Tensor) or leaf.dtype not in WIDER:
        return WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf
    wide = leaf.detach().to(WIDER[leaf.dtype])
    return wide.requires_grad_() if leaf.requires_grad else wide


def gradients(outputs, inputs):
    """Gradients by uneven tangents in the layout of the outputs, which is what compiled backwards make of others."""
    chosen = [
        out for out in BASE.tensors_of(outputs) if out.requires_grad and out.layout is torch.strided
    ]
    if not chosen or not inputs:
        return []
    tangents = []
    for out in chosen:
        values = torch.arange(out.numel(), dtype=torch.float64) % 7 / 4 - 0.5
        tangents.append(torch.empty_like(out).copy_(values.reshape(out.shape)))
    return list(torch.autograd.grad(chosen, inputs, tangents, allow_unused=True))


def _no_further(exact, expected, found):
    """Whether each found tensor has eager's form and is at most twice as far from the exact one as eager's."""
    triples = list(zip(*map(BASE.tensors_of, (exact, expected, found)), strict=False))
    for reference, left, right in triples:
        same = left.dtype is right.dtype and left.shape == right.shape == reference.shape
        if not same or BASE.significant_strides(left) != BASE.significant_strides(right):
            return False
        if left.dtype not in WIDER:
            if not torch.equal(left, right):
                return False
            continue
        ours, theirs = (
            torch.nan_to_num((value.to(reference.dtype) - reference).abs())
            for value in (right, left)
        )
        if not torch.equal(left.isnan(), right.isnan()) and not torch.equal(
            reference.isnan(), right.isnan()
        ):
            return False
        if ours.numel() and ours.max() > theirs.max() * 2 + torch.finfo(left.dtype).tiny:
            return False
    return bool(triples)


def as_exact_as_eager(program, arguments, expected, found, *, with_gradients=False):
    """Whether the found results (or gradients) are right by the result in the next wider dtype."""
    if any(leaf.layout is not torch.strided for leaf in BASE.tensors_of((expected, found))):
        return False
    wide = pytree.tree_map(_widened, arguments)
    torch.manual_seed(0)
    exact, error = BASE.attempt(lambda: program(*wide))
    if error is None and with_gradients:
        leaves = [leaf for leaf in BASE.tensors_of(wide) if leaf.requires_grad]
        exact, error = BASE.attempt(lambda: gradients(exact, leaves))
    return error is None and _no_further(exact, expected, found)


def state_of(tensor):
    """What a result is to autograd, and how often it was written."""
    return tensor.requires_grad, tensor.is_leaf, tensor._version


def run_sample(info, sample):
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
            return f"raised {described(error)}"
        if error is None:
            return f"didn't raise {type(failure).__name__}: {str(failure)[:120]}"
        if type(failure) is type(error):
            return ""
        return f"raised {described(error)} for {failure!r:.150}"
    random = info.name in WITHOUT_MEANING or is_random(program, arguments, expected)
    states = [[state_of(leaf) for leaf in BASE.tensors_of(one)] for one in (expected, found)]
    if states[0] != states[1] and info.name not in COUNTED_INSIDE:
        return f"state {states[1]} for {states[0]}"[:300]
    message = BASE.differences(expected, found, random)
    if message and not random and as_exact_as_eager(program, arguments, expected, found):
        message = ""
    if message or random or not leaves:
        return message
    expected_gradients, failure = BASE.attempt(lambda: gradients(expected, leaves))
    found_gradients, error = BASE.attempt(lambda: gradients(found, leaves))
    if failure is not None:
        return ""
    if error is not None:
        return f"gradient raised {described(error)}"
    message = BASE.differences(expected_gradients, found_gradients, random=False)
    if message and as_exact_as_eager(
        program, arguments, expected_gradients, found_gradients, with_gradients=True
    ):
        message = ""
    return f"gradient {message}" if message else ""


def samples_of(info, dtype, count):
    """`count` samples of an operator, spread over its first ones, requiring gradients where it has them."""
    differentiable = (dtype.is_floating_point or dtype.is_complex) and info.supports_autograd
    differentiable = differentiable and dtype in info.supported_backward_dtypes("cpu")
    torch.manual_seed(1)
    drawn = info.sample_inputs("cpu", dtype, requires_grad=differentiable)
    found, error = BASE.attempt(lambda: list(itertools.islice(drawn, 6 * count)))
    if error is not None or not found:
        return []
    return found[:: max(1, len(found) // count)][:count]


def reasons_of_breaks(info, sample):
    """Why the operator isn't in a graph."""
    program, _ = compiled_program(info)
    arguments = (sample.input, sample.args, sample.kwargs)
    seen, error = BASE.attempt(lambda: compile_api.explain(program, *arguments))
    if error is not None:
        return [described(error)]
    return [" ".join(str(item).split())[:300] for item in seen.graph_breaks]


def run_pair(info, dtype, count, say):
    """The report on the samples of one pair; tells `say` which one it is at."""
    STEPS.clear()
    samples = samples_of(info, dtype, count)
    failures = []
    for position, sample in enumerate(samples):
        say(f"sample {position}")
        FAULTS.clear()
        message = run_sample(info, sample) or "; ".join(FAULTS)
        compile_api.reset()
        if message:
            failures.append(f"sample {position}: {message}")
    steps = dict(STEPS)
    breaks = [] if steps or not samples else reasons_of_breaks(info, samples[0])
    compile_api.reset()
    return {"failures": failures, "samples": len(samples), "steps": steps, "breaks": breaks}


def run_errors(info, say):
    """The report on an operator's error inputs: the compiled program raises what eager raises."""
    failures, count = [], 0
    for position, case in enumerate(info.error_inputs("cpu")):
        say(f"error {position}")
        sample = case.sample_input
        program, compiled = compiled_program(info, strict=False)
        arguments = (sample.input, sample.args, sample.kwargs)
        _, expected = BASE.attempt(lambda p=program, a=arguments: p(*a))
        _, found = BASE.attempt(lambda c=compiled, a=arguments: c(*a))
        compile_api.reset()
        count += 1
        if expected is not None and type(found) is not type(expected):
            failures.append(f"error {position}: {found!r:.200} for {expected!r:.150}")
    return {"failures": failures, "samples": count, "steps": {}, "breaks": []}


def share_of(report):
    """How a pair ran: in our kernels alone, with the library's declared calls, or with fallbacks."""
    if not report["steps"] and (report["breaks"] or report["failures"]):
        return "not captured"
    kinds = {step.partition(" ")[0] for step in report["steps"]}
    for kind in ("reference", "fallback", "vendor"):
        if kind in kinds:
            return kind
    return "compiled" if "kernel" in kinds else "views and sizes only"
