"""Random programs whose sizes change from call to call, through the whole stack against eager.

    python run.py [--first 0] [--count 1500] [--backend inductor] [--journal FILE] [--json FILE]

The programs are those of `sized.py`. With `--journal` a run that was interrupted goes on where it was; several
processes may share the work, each with seeds and a journal of its own. Exit status 1 if a program differs, or one
without branches on sizes was compiled more than twice at its ordinary sizes.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.append(str(Path(__file__).parent))
import sized

import compile_api
from compile_api.api import Arguments, compile_watched
from compile_api.watch import Watch
from workers import run_once

PATIENCE = 120.0
LIMIT = 2  # compiles without a branch on a size, at sizes above two
STATED = {
    r"unfold\(|rot90|avg_pool\w+\(\w+, \(|avg_pool1d\(\w+, max": "the operator takes a number",
    r"new_tensor\(\[1\.0": "a float and a size in one list become a tensor's data",
    r"expected \(*(float|math)\b.* is [-\d]": "a float that is no exact fraction is rounded to a size",
    r"\[.*:.*\]": "a slice past the end, or without elements",
    r"<<|not \(s\d+ < 2\)": "a power of two by a size, a size that is now 0 or 1",
    r"F\.pad\(": "padding by nothing keeps an order of strides that padding does not",
    r"diagonal": "which of two sizes is smaller",
    r"expected \w+ < \w+,": "strides of overlapping memory are ordered by sizes",
    r"expected s\d+ == s\d+|strides of": "sizes or strides that agree by chance",
}
"""What a reason to compile again shows, and its cause."""


class Reasons(Watch):
    """Keeps why something was compiled again, and no stages."""

    active = True

    def for_capture(self):
        return self._see_capture

    def for_graph(self, graph):
        compile_api.watch.ledger.add()
        return lambda role: None

    def _see_capture(self, stage, text):
        if stage in ("break", "recompile"):
            (self.breaks if stage == "break" else self.recompiles).append(text)


def compiled_form(program, backend, watch=None):
    compile_api.reset()
    options = {"strict": True, "fallback_random": True} if backend == "inductor" else None
    arguments = Arguments(dynamic=program.dynamic, backend=backend, options=options)
    return compile_watched(program.function(), watch or Watch(), arguments)


def fault_of(program, backend):
    """What is wrong with one program, "" if nothing."""
    found = sized.difference(program, compiled_form(program, backend))
    if found or program.branches:
        return found
    ordinary = sized.replace(
        program, sizes=tuple(row for row in program.sizes if row in sized.ORDINARY)
    )
    watch = Reasons()
    function = compiled_form(program, backend, watch)
    for row in ordinary.sizes:
        sized.observed(function, program, row)
    count = compile_api.graph_count()
    if watch.breaks:
        return ""
    unstated = [
        reason
        for reason in watch.recompiles
        if "sizes: expected" in reason and not any(re.search(one, reason) for one in STATED)
    ]
    if count > LIMIT and unstated:
        return f"compiles: {count}\n" + "\n".join(watch.recompiles)
    return ""


def checked(seed, backend, shrink, say):
    """The report on one program."""
    say("drawing")
    program = sized.drawn(seed)
    say(str(program))
    found = fault_of(program, backend)
    count = compile_api.graph_count()
    if not found:
        return {"failures": [], "count": count}

    def fault(one):
        say(str(one))
        return fault_of(one, backend)

    least = sized.shrunk(program, fault) if shrink else program
    return {"failures": [f"{least}{fault_of(least, backend) or found}"], "count": count}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=1500)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--journal", type=Path, help="keeps what was done, and goes on behind it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--no-shrink", action="store_true", help="show failures as drawn")
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    seeds = range(options.first, options.first + options.count)
    jobs = {
        str(seed): partial(checked, seed, options.backend, not options.no_shrink) for seed in seeds
    }
    counts, failed = Counter(), {}
    for seed, report in run_once(jobs, options.journal, PATIENCE):
        counts[report.get("count", "died")] += 1
        if report["failures"]:
            failed[seed] = report["failures"][0]
            print(f"==== seed {seed}: {failed[seed]}", flush=True)
    print(f"{options.count} programs, compiles {dict(counts)}: {len(failed)} differ")
    if options.json:
        result = {
            "torch": torch.__version__,
            "backend": options.backend,
            "programs": options.count,
            "first": options.first,
            "differ": failed,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
