"""The means that the README and docs/performance.md tell are those of the committed measurements.

A page is searched for the figure alone, as printed, so that its sentences stay free.
"""

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "performance.md"
SECOND_SIZE = "bert 4x128"  # the means over models take each model once

# results, their ratio, which rows, the pages that tell the geometric mean
MEANS = [
    ("micro_1_thread", "torch / ours", {}, [README, PERFORMANCE]),
    ("micro_1_thread", "eager / ours", {}, [PERFORMANCE]),
    ("micro_2_threads", "torch / ours", {}, [README, PERFORMANCE]),
    ("micro_2_threads", "eager / ours", {}, [PERFORMANCE]),
    ("models_2_threads", "torch / ours", {"mode": "inference"}, [README, PERFORMANCE]),
    ("models_2_threads", "eager / ours", {"mode": "inference"}, [README, PERFORMANCE]),
    ("models_2_threads", "torch / ours", {"mode": "training"}, [README, PERFORMANCE]),
    ("models_2_threads", "eager / ours", {"mode": "training"}, [README, PERFORMANCE]),
    ("models_1_thread", "torch / ours", {"mode": "inference"}, [PERFORMANCE]),
    ("models_1_thread", "eager / ours", {"mode": "inference"}, [PERFORMANCE]),
    ("models_1_thread", "torch / ours", {"mode": "training"}, [PERFORMANCE]),
    ("models_1_thread", "eager / ours", {"mode": "training"}, [PERFORMANCE]),
    ("gpu_inference", "ours_over_torch", {}, [README, PERFORMANCE]),
    ("gpu_inference", "ours_over_eager", {}, [README, PERFORMANCE]),
    ("gpu_training", "ours_over_torch", {}, [README, PERFORMANCE]),
    ("gpu_training", "ours_over_eager", {}, [README, PERFORMANCE]),
    ("gpu_micro", "torch / ours", {}, [README, PERFORMANCE]),
]


@pytest.mark.parametrize(
    ("results", "ratio", "which", "pages"),
    MEANS,
    ids=[" ".join([name, ratio, *which.values()]) for name, ratio, which, _ in MEANS],
)
def test_a_mean_is_the_measured_one(results, ratio, which, pages):
    lines = (ROOT / "benchmarks" / "results" / f"{results}.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if ratio in row and row["name"] != SECOND_SIZE]
    chosen = [row[ratio] for row in rows if which.items() <= row.items()]
    figure = f"{statistics.geometric_mean(chosen):.2f}"
    untold = [
        page.name for page in pages if not re.search(rf"\b{re.escape(figure)}\b", page.read_text())
    ]
    assert untold == [], f"{figure} is what was measured"


def test_the_models_means_are_those_of_their_page():
    told = re.findall(
        r"(?:geometric mean|over ours) (\d+\.\d\d)\b", (ROOT / "docs" / "models.md").read_text()
    )
    assert len(told) >= 4
    readme = README.read_text()
    rounded = {figure: {figure, f"{float(figure):.1f}", f"{float(figure):.0f}"} for figure in told}
    missing = [
        one
        for one, ways in rounded.items()
        if not any(re.search(rf"\b{re.escape(way)}\b", readme) for way in ways)
    ]
    assert missing == []
