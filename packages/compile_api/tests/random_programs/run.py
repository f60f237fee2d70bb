"""Random programs of views, in-place operators and outputs, in training, through the whole stack against eager.

    python run.py [--wider] [--first 0] [--count 2000] [--journal FILE] [--json FILE]

The programs are those of `aot_autograd`'s property test, with `--wider` those of `wider_programs.py`; here each is
captured from its bytecode, differentiated, and compiled to kernels. Compared are values, layouts, aliases, versions,
autograd state and gradients, of inputs, of what they were made from, and of outputs. Nothing may be refused: what a
stage can't compile runs in eager. Two differences are ours to have: where a graph saved a value of its own and the
program then changed the tensor that eager saved, eager's backward raises and ours gives the gradient that is right;
and gradients of gradients are computed from a graph's inputs, so ours raise where a later graph changed one that eager
did not save. An instruction that eager refuses is left out; a program that kills eager's own process (a hook of a
view that no longer is one) says nothing of ours. With `--journal` a run that was interrupted goes on where it was;
several processes may share the work, each with seeds and a journal of its own. Exit status 1 if a program differs.
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

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parents[3] / "aot_autograd" / "tests"))
import compile_api
import training_programs as programs
import wider_programs
from workers import run_once

PATIENCE = 120.0
EAGER_REFUSES = (
    "eager: backward one of the variables needed for gradient computation has bee",
    "eager: backward Trying to use a saved tensor that has been detached in-place",
)
OURS_REFUSES = "ours:  backward one of the variables needed for gradient computation has bee"
EAGER = "which instructions eager takes: the process was killed"
OPTIONS = {"fallback_random": True}


def compile_function(function):
    compile_api.reset()
    return compile_api.compile(function, dynamic=False, options=OPTIONS)


def checked(seed, wider, shrink, say):
    """The report on one program."""
    say(EAGER.partition(":")[0])
    program = wider_programs.drawn(seed) if wider else programs.accepted(programs.drawn(seed))
    if not program.instructions:
        return {"failures": [], "kind": "eager refuses its first instruction"}

    def compile_next(function):
        say(str(program))  # alive: a failure is made smaller for minutes
        return compile_function(function)

    found = programs.difference(program, compile_next)
    graphs = compile_api.graph_count()  # since `compile_function` reset it
    kind = "no graph" if not graphs else "one graph" if graphs == 1 else "several graphs"
    if found is None:
        found = "an error of a stage reached the caller"
    if not found:
        return {"failures": [], "kind": kind}
    if found.startswith(EAGER_REFUSES) and found.endswith("ours:  backward "):
        return {"failures": [], "kind": "only eager's backward raises"}
    if program.backward == "of gradients" and found.endswith(OURS_REFUSES):
        return {"failures": [], "kind": "only our second derivative raises"}
    least = programs.shrunk(program, compile_next) if shrink else program
    text = programs.difference(least, compile_next) or found
    return {"failures": [f"{least}: {text}"], "kind": kind}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--wider", action="store_true", help="programs of more kinds")
    parser.add_argument("--first", "--start", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--journal", type=Path, help="keeps what was done, and goes on behind it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-shrink", action="store_true", help="show failures as drawn")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    seeds = range(options.first, options.first + options.count)
    jobs = {
        str(seed): partial(checked, seed, options.wider, not options.no_shrink) for seed in seeds
    }
    kinds, failed = Counter(), {}
    for seed, report in run_once(jobs, options.journal, PATIENCE):
        if report["failures"] and report["failures"][0].startswith(EAGER):
            kinds["eager kills the process"] += 1
            continue
        kinds[report.get("kind", "died")] += 1
        if report["failures"]:
            failed[seed] = report["failures"][0]
            print(f"seed {seed}: {failed[seed]}", flush=True)
    result = {
        "torch": torch.__version__,
        "programs": options.count,
        "wider": options.wider,
        "first": options.first,
        "compared": "values, layouts, aliases, versions, autograd state, gradients",
        "captured as": dict(kinds.most_common()),
        "differ": failed,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{options.count} programs ({dict(kinds)}): {len(failed)} differ")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
