"""A fixed shard of the operator database, eager against decomposed, really and on fakes.

The whole database takes a minute or more: `python operator_database/run.py`.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "operator_database"


@pytest.fixture(scope="module")
def runner():
    sys.path.insert(0, str(FOLDER))
    try:
        specification = importlib.util.spec_from_file_location(
            "operator_database_run", FOLDER / "run.py"
        )
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    finally:
        sys.path.remove(str(FOLDER))
    return module


@pytest.mark.parametrize("fakes", ["static", "symbolic"])
def test_a_shard_agrees_with_eager(runner, fakes, tmp_path):
    report = tmp_path / "report.json"
    arguments = [
        "--shard",
        "3/32",
        "--samples",
        "2",
        "--dtype",
        "float32",
        "--fakes",
        fakes,
        "--json",
        str(report),
    ]
    status = runner.main(arguments)
    found = json.loads(report.read_text())
    assert status == 0, found["failed"]
    assert found["pairs"] >= 15


def test_half_and_integer_types_agree_with_eager(runner, tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--shard", "5/32", "--samples", "2", "--json", str(report)]
    for dtype in ("bfloat16", "int64", "bool"):
        arguments += ["--dtype", dtype]
    assert runner.main(arguments) == 0, json.loads(report.read_text())["failed"]


def test_what_eager_refuses_is_refused_likewise(runner, tmp_path):
    report = tmp_path / "report.json"
    long = os.environ.get("HYPOTHESIS_PROFILE") == "long"  # all of them take half a minute
    arguments = ["--errors", "--shard", "1/1" if long else "3/8", "--json", str(report)]
    assert runner.main(arguments) == 0, json.loads(report.read_text())["failed"]


def test_known_failures_have_a_cause_and_stay_few():
    known = json.loads((FOLDER / "known_failures.json").read_text())
    assert all(len(cause) > 10 for cause in known.values())
    assert len(known) <= 3


def test_a_wrong_decomposition_is_found(runner):
    """The comparison itself: a function that is wrong in value, stride or on fakes is reported."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from primtorch import decomposition_table

    hardswish = next(info for info in op_db if info.name == "nn.functional.hardswish")

    def right(self):
        return self * (self + 3).clamp(0, 6) / 6

    wrong = {
        "not close": lambda self: self * 0.5,
        "dtype": lambda self: right(self).double(),
        "stride": lambda self: right(self).transpose(-1, -2).contiguous().transpose(-1, -2),
        "": right,
    }
    for text, function in wrong.items():
        table = decomposition_table("prims").extended({torch.ops.aten.hardswish.default: function})
        failures, count = runner.run_pair(hardswish, torch.float32, table, 2, runner.Remains())
        assert count
        assert bool(failures) == bool(text)
        assert all(text in failure for failure in failures), (text, failures)
