"""The parts of the demo: subjects, errors against float64, paired timing, the table."""

import json

import pytest
import torch

from compile_api import errors
from compile_api.demo.accuracy import largest_error
from compile_api.demo.run import Request, run_demo
from compile_api.demo.subjects import SUBJECTS, Sizes, build_subject
from compile_api.demo.table import report_json, report_markdown, report_table
from compile_api.demo.timing import Paired, time_paired

SMALL = Sizes(length=8, layers=1, hidden=64, vocabulary=200)


def test_errors_are_relative_and_a_zero_gradient_is_judged_by_the_others():
    truth = {"a": torch.tensor([3.0, 4.0]).double(), "b": torch.zeros(2).double()}
    actual = {"a": torch.tensor([3.0, 4.5]), "b": torch.tensor([1e-9, 0.0])}
    error = largest_error(actual, truth)
    assert error.name == "a"
    assert error.value == pytest.approx(0.1)
    assert largest_error({"a": truth["a"], "b": torch.tensor([1e-3, 0])}, truth).name == "b"


def test_a_nan_is_the_largest_error():
    truth = {"a": torch.ones(2).double(), "b": torch.ones(2).double()}
    error = largest_error({"a": torch.ones(2), "b": torch.tensor([1.0, float("nan")])}, truth)
    assert error.name == "b"


def test_ratios_are_paired_by_round():
    paired = Paired({"slow": (2.0, 20.0, 200.0), "quick": (1.0, 10.0, 100.0)})
    assert paired.ratio("quick", "slow") == 2.0
    assert paired.interval("quick", "slow") == (2.0, 2.0)
    assert paired.median("slow") == 20.0


def test_every_system_runs_in_every_round():
    ran = {"a": 0, "b": 0}

    def work(name):
        ran[name] += 1

    paired = time_paired(
        {name: lambda name=name: work(name) for name in ran}, rounds=4, sample_seconds=0, warm_up=2
    )
    assert ran == {"a": 7, "b": 7}
    assert all(len(samples) == 4 for samples in paired.samples.values())


@pytest.mark.parametrize("name", sorted(set(SUBJECTS) - {"resnet50"}))
def test_a_subject_is_the_same_each_time(name):
    first, second = build_subject(name, SMALL), build_subject(name, SMALL)
    with torch.no_grad():
        one = first.outputs(first.module.eval()(**first.inputs))
        two = second.outputs(second.module.eval()(**second.inputs))
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=0, atol=0)
    assert first.loss(first.module(**first.training_inputs)).requires_grad


def test_unknown_model_and_device(golden):
    with pytest.raises(errors.InvalidArgument) as caught:
        build_subject("brt", SMALL)
    assert f"{caught.value}\n" == golden
    with pytest.raises(errors.InvalidArgument, match="device 'nowhere' can't be used"):
        run_demo(Request(device="nowhere"))
    with pytest.raises(errors.InvalidArgument, match="no function json.compile"):
        run_demo(Request(sizes=SMALL, compare="json", rounds=3, backend="eager"))


def test_a_small_demo_runs_on_the_eager_backend():
    report = run_demo(Request(sizes=SMALL, rounds=3, backend="eager"))
    inference, training = report.rows
    assert (inference.graphs, inference.breaks) == (1, 0)
    assert training.mode == "training step"
    assert training.ours.gradient_error is not None
    assert training.ours.gradient_error.value < 1e-4
    parsed = json.loads(report_json(report))
    assert parsed["rows"][0]["ours"]["output_error"]["value"] < 1e-4
    assert report_table(report).row_count == 2
    lines = report_markdown(report, "torch").splitlines()
    assert lines[2].startswith("| model | mode | graphs |")
    assert lines[4].startswith("| BertForMaskedLM | inference, 1 x 8 | 1 | 0 |")
    assert len({line.count("|") for line in lines[2:4]}) == 1
