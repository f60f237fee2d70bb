"""The command line, as a person uses it."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from compile_api.command_line import main

PROGRAM = """
import torch

def main():
    return torch.relu(torch.ones(3)) + 1

def other():
    return torch.zeros(2).sin()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    runner = CliRunner()
    return lambda *arguments: runner.invoke(main, list(arguments), prog_name="compile-api")


def test_help_names_every_command(run):
    done = run("--help")
    assert done.exit_code == 0
    for name in ("demo", "doctor", "explain", "bench", "cache"):
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE)


def test_a_misspelt_command_names_the_nearest(run):
    done = run("explian")
    assert done.exit_code == 2
    assert "Did you mean 'explain'?" in done.stderr


def test_explain_writes_page_and_stages(run, tmp_path):
    done = run("explain", "program.py", "--backend", "eager", "--html", "p.html", "--stages", "s")
    assert done.exit_code == 0, done.output
    assert "main: 1 graph, 0 graph breaks" in done.stdout
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "s" / "01_graph.py").exists()
    assert run("explain", "program.py:other", "--backend", "eager").exit_code == 0


def test_errors_are_messages_without_traceback(run):
    done = run("explain", "program.py:othr")
    assert done.exit_code == 1
    assert done.stderr.startswith(
        "error: program.py has no function 'othr'\n  did you mean: 'other'?"
    )
    assert run("explain", "absent.py").stderr.startswith("error: there is no file 'absent.py'")
    assert "did you mean: 'bert'" in run("demo", "--model", "brt").stderr


def test_cache_info_and_clear(run, tmp_path):
    folder = tmp_path / "cache" / "inductor"
    folder.mkdir(parents=True)
    (folder / "entry").write_bytes(b"x" * 1_000_000)
    assert "1 files, 1.0 MB" in run("cache", "info").stdout
    assert run("cache", "clear").exit_code == 0
    assert not folder.exists()
    assert "0 files" in run("cache", "info").stdout
