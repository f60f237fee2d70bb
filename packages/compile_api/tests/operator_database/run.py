"""Compare compiled operators with eager over torch.testing's operator database, through the whole stack.

    python run.py [--shard 1/4] [--operator NAME] [--dtype float32] [--samples 2] [--errors only] [--failed FILE]
                  [--journal FILE] [--json FILE]
    python run.py --jobs 15 --journal FOLDER [--json FILE]   # all pairs in 15 processes, merged
    python run.py --merge FOLDER/*.jsonl [--json FILE]       # one report of the journals of shards

`pairs.py` says what is compared, `workers.py` how crashes and hangs are survived. `known_failures.json` lists the pairs
that are permitted to fail, with the cause; a complete run reports those that pass, so that the list only shrinks.
Printed at the end: how many pairs ran in our kernels alone, with declared calls of the library, or with fallbacks. With
`--journal` a run that was interrupted goes on where it was, with `--jobs` too, which has a journal for each part;
`--failed FILE` takes only the pairs that failed in the report FILE, and with `--peer torch` says which of them
torch.compile passes; a report gets that by `--beside`. Exit status 1 if a pair fails that isn't listed.

The committed report of 15 processes, from the repository's root (the first two lines may run elsewhere, and again
after an interruption; the third and fourth are short):

    run="packages/compile_api/tests/operator_database/run.py"
    python $run --jobs 15 --journal FOLDER --json FOLDER/mine.json --quiet
    python $run --peer torch --failed FOLDER/mine.json --json FOLDER/peer.json --quiet
    python $run --merge FOLDER/*.jsonl --beside FOLDER/peer.json --note "..." --json ${run%/*}/complete_run.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.testing._internal.common_methods_invocations import op_db

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from pairs import BASE, DTYPES, PEERS, run_errors, run_pair, share_of, watch_programs

from workers import PATIENCE, run_once

ROOT = Path(__file__).parents[4]
KNOWN = Path(__file__).with_name("known_failures.json")
PARTS_OF_A_PROCESS = 4  # with several processes: parts are smaller, so that all end together


def jobs_of(options):
    """(key, what a worker does for it) of the shard, operator by operator."""
    wanted = set(json.loads(options.failed.read_text())["failed"]) if options.failed else None
    for name, info in BASE.chosen(options, ((BASE.full_name(info), info) for info in op_db)):
        jobs = []
        if options.errors != "without" and info.error_inputs_func is not None:
            jobs.append((f"{name} errors", lambda say, info=info: run_errors(info, say)))
        for dtype_name, dtype in DTYPES.items() if options.errors != "only" else ():
            if dtype in info.supported_dtypes("cpu") and (
                not options.dtype or dtype_name in options.dtype
            ):
                jobs.append(
                    (
                        f"{name} {dtype_name}",
                        lambda say, info=info, dtype=dtype: run_pair(
                            info, dtype, options.samples, say
                        ),
                    )
                )
        yield from (job for job in jobs if wanted is None or job[0] in wanted)


def summary(options, reports, known, missing, seconds):
    """What the whole run says, as JSON."""
    ran = {key: report for key, report in reports.items() if report["samples"]}
    pairs = {key: report for key, report in ran.items() if not key.endswith(" errors")}
    failed = {key: report["failures"] for key, report in ran.items() if report["failures"]}
    shares = {key: share_of(report) for key, report in pairs.items()}
    steps: dict[str, Counter] = {"vendor": Counter(), "fallback": Counter()}
    for report in pairs.values():
        for step in report["steps"]:
            kind, _, operator = step.partition(" ")
            if kind in steps:
                steps[kind][operator] += 1
    broken: dict[str, list[str]] = {}
    for key, report in pairs.items():
        if shares[key] == "not captured":
            reasons = (text.partition("why: ")[2] or text for text in report["breaks"])
            broken.setdefault(" ".join(reasons)[:160], []).append(key)
    peer = json.loads(options.beside.read_text())["failed"] if options.beside else {}
    good = sum(not report["failures"] for report in pairs.values())
    return {
        "torch": torch.__version__,
        "commit": commit(),
        "shard": options.shard,
        "samples": options.samples,
        "note": options.note,
        "not run": missing,
        "pairs": len(pairs),
        "equal": good,
        "equal share": round(good / max(1, len(pairs)), 4),
        "error inputs: operators": len(ran) - len(pairs),
        "error inputs: as eager": sum(
            not report["failures"] for key, report in ran.items() if key not in pairs
        ),
        "shares": dict(Counter(shares.values()).most_common()),
        "by dtype": {
            name: dict(
                Counter(s for k, s in shares.items() if k.endswith(f" {name}")).most_common()
            )
            for name in DTYPES
        },
        "vendor operators": dict(steps["vendor"].most_common()),
        "fallback operators": dict(steps["fallback"].most_common()),
        "not captured": broken,
        "failed": failed,
        # without a report on torch.compile these are all that fail, more than there can be
        "torch.compile passes and we fail": sorted(key for key in failed if key not in peer),
        "unexpected": sorted(set(failed) - set(known)),
        "known that pass": sorted(key for key in known if key in ran and key not in failed),
        "seconds": round(seconds, 1),
    }


def commit():
    """The commit that these sources are of, with a plus where they were changed; empty outside of a repository."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+", "--abbrev=8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def in_processes(options, arguments):
    """Reports of all jobs, done by `options.jobs` processes that each take one part after another."""
    parts = options.jobs * PARTS_OF_A_PROCESS
    options.journal.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run_part(part):
        journal = options.journal / f"part_{part:03}_of_{parts}.jsonl"
        own = ["--jobs", "1", "--shard", f"{part}/{parts}", "--journal", str(journal), "--quiet"]
        command = [sys.executable, __file__, *arguments, *own, "--json", str(os.devnull)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        text = done.stdout.strip() or done.stderr[-2000:]
        print(f"part {part} of {parts}: {text}", flush=True)
        return journal

    with ThreadPoolExecutor(options.jobs) as pool:
        return journaled(pool.map(run_part, range(1, parts + 1)))


def journaled(journals):
    """What the journals hold, of each key the last."""
    lines = [line for path in journals if path.exists() for line in path.read_text().splitlines()]
    return dict(map(json.loads, lines))


def in_this_process(options, known):
    """Reports of the jobs of this shard; failures are printed as they come."""
    reports = {}
    patience = 10 * PATIENCE if options.peer else PATIENCE
    for key, report in run_once(dict(jobs_of(options)), options.journal, patience):
        reports[key] = report
        if report["failures"] and not options.quiet:
            mark = "known " if key in known else ""
            print(f"{mark}{key}: {report['failures'][0]}", flush=True)
    return reports


def parsed(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    BASE.add_arguments(parser, DTYPES, samples=2)
    parser.add_argument("--journal", type=Path, help="keeps what was done, and goes on behind it")
    parser.add_argument("--jobs", type=int, default=1, help="processes; their journals in a folder")
    parser.add_argument("--merge", type=Path, nargs="+", help="a report of these journals")
    parser.add_argument("--failed", type=Path, help="only what failed in this report")
    parser.add_argument("--errors", choices=("with", "only", "without"), default="with")
    parser.add_argument("--peer", choices=("torch",), help="judge torch.compile in our place")
    parser.add_argument("--beside", type=Path, help="the report of a run with `--peer torch`")
    parser.add_argument("--note", default="", help="said in the report")
    options = parser.parse_args(arguments)
    if options.jobs > 1 and options.journal is None:
        parser.error("--jobs keeps the journals of its parts in a folder: --journal FOLDER")
    return options


def main(arguments):
    options = parsed(arguments)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    watch_programs()
    PEERS.extend([options.peer] if options.peer else [])
    known = json.loads(KNOWN.read_text()) if KNOWN.exists() else {}
    started = time.monotonic()
    if options.merge:
        reports = journaled(options.merge)
    elif options.jobs > 1:
        reports = in_processes(options, arguments)
    else:
        reports = in_this_process(options, known)
    missing = [key for key, _ in jobs_of(options) if key not in reports]
    result = summary(options, reports, known, missing, time.monotonic() - started)
    if options.json:
        text = json.dumps(result, indent=1).replace(f"{ROOT}/", "")
        options.json.write_text(text + "\n")
    parts = ", ".join(f"{count} {share}" for share, count in result["shares"].items())
    print(
        f"{result['pairs']} pairs ({parts}): {result['equal']} equal eager ({result['equal share']:.2%}); "
        f"errors as eager's for {result['error inputs: as eager']} of {result['error inputs: operators']} "
        f"operators; {len(result['unexpected'])} unexpected failures, "
        f"{len(result['known that pass'])} listed ones pass"
    )
    return 1 if result["unexpected"] or missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
