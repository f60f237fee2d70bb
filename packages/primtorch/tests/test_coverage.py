"""What becomes of every ATen overload, and the command line that tells it."""

from pathlib import Path

import pytest

from primtorch import PRIMS, coverage_report
from primtorch.__main__ import main
from primtorch.coverage import Status
from primtorch.registry import registered


@pytest.fixture(scope="module")
def report():
    return coverage_report()


def test_every_overload_has_one_status(report):
    names = [entry.name for entry in report.operators]
    assert len(names) == len(set(names)) > 2500
    assert sum(report.counts().values()) == len(names)


def test_statuses_follow_the_sets(report):
    prims = {str(op) for op in PRIMS if op.namespace == "aten"}
    decomposed = {str(op) for op in registered()}
    for entry in report.operators:
        assert (entry.status is Status.PRIM) == (entry.name in prims)
        assert (entry.status is Status.DECOMPOSED) == (entry.name in decomposed)
        assert bool(entry.reason) == (entry.status is Status.FALLBACK)


def test_entries_say_what_becomes_of_an_operator(report):
    silu = report.of("aten.silu.default")
    assert silu.status is Status.DECOMPOSED
    assert "aten.exp.default" in silu.becomes
    assert "aten.amax.default" in report.of("aten._softmax.default").becomes
    assert report.of("aten.add_.Tensor").becomes == ("aten.add.Tensor",)
    assert report.of("aten.add.out").becomes == ("aten.add.Tensor",)
    assert report.of("aten.reshape.default").status is Status.COMPOSITE
    assert "sparse" in report.of("aten._to_sparse.default").reason
    with pytest.raises(KeyError):
        report.of("aten.no_such.default")


def test_most_named_operators_lead_to_prims(report):
    """What decompositions name is itself a prim, decomposed, or a declared fallback: nothing dangles."""
    known = {entry.name: entry for entry in report.operators}
    dangling = {
        name
        for entry in report.operators
        if entry.status is Status.DECOMPOSED
        for name in entry.becomes
        if name.startswith("aten.") and known[name].status in (Status.COMPOSITE, Status.FUNCTIONAL)
    }
    assert not dangling


def test_the_command_line_tells_it(capsys):
    assert main(["coverage", "--status", "fallback"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].endswith("fallback")
    assert "aten.segment_reduce.default" in text
    assert "aten.silu.default" not in text
    assert main(["coverage", "--markdown"]) == 0
    assert "| `aten.silu.default` | decomposed |" in capsys.readouterr().out
    assert main(["prims"]) == 0
    assert "## Reduction" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["coverage", "--status", "nonsense"])


def test_the_page_of_prims_is_current(capsys):
    page = Path(__file__).parents[3] / "docs" / "reference" / "prims.md"
    if not page.exists():
        pytest.skip("the pages are not part of the distribution")
    main(["prims"])
    assert page.read_text() == capsys.readouterr().out
