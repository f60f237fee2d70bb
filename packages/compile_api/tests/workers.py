"""One child process works through a list of jobs; what it can't survive is a failure of the job it was at.

In: (key, call) pairs, `call(say)` giving a report as a dict. Out: (key, report) pairs in their order. A job that kills
the process or is silent for longer than the patience is reported as such, and another process goes on behind it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import time
import traceback

PATIENCE = 60.0  # torch.compile takes longer for some: `run_all` takes another
JOBS_PER_PROCESS = 200


def _work(jobs, writing):
    """The child: a line of JSON for each step of each job."""

    def tell(message):
        os.write(writing, (json.dumps(message) + "\n").encode())

    faulthandler.enable()  # where a crash was, on stderr
    for number, (_, call) in enumerate(jobs):
        tell({"job": number, "at": "start"})
        try:
            report = call(lambda at, number=number: tell({"job": number, "at": at}))
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"the runner: {error!r:.300} at {where.filename}:{where.lineno}"
            report = {"failures": [text], "samples": 1, "steps": {}, "breaks": []}
        tell({"job": number, "report": report})


def _lines(reading, child, patience):
    """Messages of the child until it ends; kills it when it is silent for too long."""
    text = b""
    while True:
        deadline = time.monotonic() + patience
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            os.kill(child, signal.SIGKILL)
        part = os.read(reading, 1 << 16)
        if not part:
            return
        *lines, text = (text + part).split(b"\n")
        yield from map(json.loads, lines)


def _one_process(jobs, patience):
    """Reports of the jobs that one child came to, the last of them perhaps that it died."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _work(jobs, writing)
        finally:
            os._exit(0)
    os.close(writing)
    last = {"job": 0, "at": "start"}
    for message in _lines(reading, child, patience):
        last = message
        if "report" in message:
            yield jobs[message["job"]][0], message["report"]
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if "report" not in last:
        end = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "exited"
        failures = [f"{last['at']}: the process was {end}"]
        yield jobs[last["job"]][0], {"failures": failures, "samples": 1, "steps": {}, "breaks": []}


def run_all(jobs, patience=PATIENCE):
    """(key, report) of every job, each process taking up to `JOBS_PER_PROCESS` of them."""
    jobs = list(jobs)
    while jobs:
        done = 0
        for key, report in _one_process(jobs[:JOBS_PER_PROCESS], patience):
            done += 1
            yield key, report
        jobs = jobs[done:]


def run_once(jobs, journal, patience=PATIENCE):
    """(key, report) of every job of a dict; those in the journal, where there is one, are not run again."""
    jobs = dict(jobs)
    if journal is not None and journal.exists():
        for line in journal.read_text().splitlines():
            key, report = json.loads(line)
            if jobs.pop(key, None) is not None:
                yield key, report
    for key, report in run_all(jobs.items(), patience):
        if journal is not None:
            with journal.open("a") as file:
                file.write(json.dumps([key, report]) + "\n")
        yield key, report
