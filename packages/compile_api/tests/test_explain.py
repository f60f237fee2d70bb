"""What `explain` shows of a call."""

import logging

import pytest
import torch
from torch.nn import functional

import compile_api


def gelu_sum(x):
    return functional.gelu(x).sum()


def test_every_stage_of_an_inference_is_there(tmp_path):
    found = compile_api.explain(gelu_sum, torch.linspace(-1, 1, 8))
    names = set(found.stages)
    assert {"00_bytecode.txt", "01_graph.py", "02_guards.py", "04_forward.py", "06_loops.txt",
            "07_schedule.txt"} <= names  # fmt: skip
    assert any(name.startswith("08_kernel") for name in names)
    assert any(name.startswith("09_program") for name in names)
    assert (len(found.graphs), found.graph_breaks) == (1, ())
    assert found.guards
    assert [kernel.name for kernel in found.kernels] == ["k0"]
    paths = found.write(tmp_path)
    assert [path.name for path in paths] == sorted(names)
    assert "gelu" in (tmp_path / "01_graph.py").read_text()


def test_gradients_bring_joint_and_backward_and_leave_no_grad():
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    found = compile_api.explain(gelu_sum, x)
    assert {"03_joint.py", "05_backward.py", "06_loops.backward.txt"} <= set(found.stages)
    assert x.grad is None


def test_a_graph_break_is_shown_with_the_users_line():
    def breaks(x):
        y = x + 1
        print("between")
        return y * 2

    found = compile_api.explain(breaks, torch.ones(3))
    assert len(found.graphs) == 2
    assert len(found.graph_breaks) == 1
    assert "test_explain.py" in found.graph_breaks[0]
    assert 'print("between")' in found.graph_breaks[0]


def test_the_summary_and_the_page(tmp_path):
    found = compile_api.explain(gelu_sum, torch.ones(4))
    assert str(found).startswith("gelu_sum: 1 graph, 0 graph breaks, ")
    page = found.to_html(tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "<script" not in page


def test_the_page_escapes_what_the_program_says(tmp_path):
    def odd(x):
        return x + len("<script>alert(1)</script>")

    page = compile_api.explain(odd, torch.ones(4)).to_html(tmp_path / "p.html").read_text()
    assert "<script>alert" not in page


def test_what_the_function_raises_comes_through():
    def wrong(_x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        compile_api.explain(wrong, torch.ones(2))


def test_logs_reach_a_programs_own_handlers(caplog):
    with caplog.at_level(logging.INFO, logger="compile_api.graph"):
        compile_api.compile(gelu_sum, backend="eager")(torch.ones(3))
    assert any(record.name == "compile_api.graph" for record in caplog.records)
    caplog.clear()
    compile_api.compile(gelu_sum, backend="eager")(torch.ones(3))
    assert not caplog.records
