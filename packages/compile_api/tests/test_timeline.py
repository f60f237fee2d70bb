"""What compiling takes: the spans, the trace file, the line on a terminal, the profiler's ranges."""

import io
import json
import subprocess
import sys
import threading

import pytest
import torch

import compile_api
from compile_api import timeline
from compile_api.timeline import Timeline


def f(x):
    return torch.softmax(x * 2, -1)


def test_explain_has_the_steps_one_inside_the_other():
    found = compile_api.explain(f, torch.randn(3, 4))
    steps = {span.name: span for span in found.spans}
    whole, part = steps["capture and compile"], steps["inductor"]
    assert whole.depth == 0
    assert part.depth == 2
    assert whole.start <= part.start
    assert part.start + part.length <= whole.start + whole.length
    assert "lower to loops" in steps
    assert "generate and compile kernels" in steps


def test_the_option_writes_a_chrome_trace(tmp_path):
    path = tmp_path / "trace.json"
    compile_api.compile(f, options={"trace": str(path)})(torch.randn(3, 4))
    events = json.loads(path.read_text())["traceEvents"]
    assert {"capture and compile", "aot_autograd", "inductor"} <= {e["name"] for e in events}
    for event in events:
        assert event["ph"] == "X"
        assert event["dur"] >= 0
    before = path.read_text()
    compile_api.compile(f, options={"trace": str(path)})(torch.randn(5, 4))
    assert len(json.loads(path.read_text())["traceEvents"]) > len(json.loads(before)["traceEvents"])


def test_spans_of_threads_do_not_mix():
    line = Timeline()

    def work():
        for _ in range(50):
            with line.span("outer"), line.span("inner"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(span.name, span.depth) for span in line.spans} == {("outer", 0), ("inner", 1)}
    assert len(line.spans) == 400


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("patience", "shown"), [(0.05, True), (30.0, False)])
def test_a_terminal_shows_what_takes_long(monkeypatch, patience, shown):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(timeline, "_PATIENCE", patience)
    line = Timeline()
    with line.span("capture and compile", "my_model"):
        threading.Event().wait(0.6)
    assert ("my_model" in stream.getvalue()) is shown
    assert timeline._line._timer is None


def test_no_line_where_it_is_no_terminal_or_not_wanted(monkeypatch):
    monkeypatch.setattr(timeline, "_PATIENCE", 0.01)
    for stream, wanted in ((io.StringIO(), "1"), (Terminal(), "0")):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("COMPILE_API_PROGRESS", wanted)
        with Timeline().span("capture and compile", "my_model"):
            threading.Event().wait(0.1)
        assert stream.getvalue() == ""


def test_the_profiler_sees_each_graph_by_module_and_line():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x).relu()

    compiled = compile_api.compile(Block(), options={"profile_ranges": True})
    with torch.no_grad():
        compiled(torch.randn(2, 4))
        with torch.profiler.profile() as profile:
            compiled(torch.randn(2, 4))
    names = [event.key for event in profile.key_averages() if "compile_api" in event.key]
    assert len(names) == 1
    assert ":" in names[0].removeprefix("compile_api:")


def test_the_command_writes_a_trace(tmp_path):
    (tmp_path / "program.py").write_text(
        "import torch\ndef main():\n    return torch.ones(3).sin()\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "compile_api", "trace", "program.py", "--out", "t.json"],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "capture and compile main" in done.stdout
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


class Halves(torch.nn.Module):
    """Two kernels with a product between them."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x):
        return self.norm(self.first(torch.exp(x) + 1))


def _ranges(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return [event.name for event in profile.events() if event.name.startswith("loops_")]


@pytest.mark.parametrize("training", [False, True])
def test_the_profiler_sees_each_kernel_by_what_it_computes_and_where(training):
    compile_api.reset()
    model, x = Halves(), torch.randn(3, 8)

    def call(run):
        with torch.set_grad_enabled(training):
            result = run(x)
            if training:
                result.sum().backward()

    compiled = compile_api.compile(model)
    call(compiled)
    found = _ranges(lambda: call(compiled))
    assert found[0].startswith("loops_exp"), found
    assert "test_timeline.py:" in found[0]
    assert any("norm" in name.split(", ")[1] for name in found), found
    again = compile_api.compile(Halves())  # restored
    compile_api.reset()
    call(again)
    assert [name.split(", ")[0] for name in _ranges(lambda: call(again))] == [
        name.split(", ")[0] for name in found
    ]
