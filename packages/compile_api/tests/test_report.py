"""The page of an explanation, in a real browser where there is one."""

import shutil
import subprocess

import pytest
import torch

from compile_api.explain import Explanation, Kernel, Stage
from compile_api.report import page
from compile_api.timeline import Span

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


def explanation() -> Explanation:
    graph = torch.fx.symbolic_trace(lambda x, w: torch.softmax(x @ w, -1) + x)
    texts = {"01_graph.py": graph.code, "08_kernel.cpp": "for (i = 0; i < n; ++i) a[i] = b[i] & 1;"}
    stages = {name: Stage(name, text, 0.01) for name, text in texts.items()}
    return Explanation(
        what="<lambda>",
        graphs=(graph,),
        graph_breaks=('model.py:41  print("<b>bold</b>")',),
        guards=("isinstance(x, Tensor)",),
        recompiles=("f: shape of x: expected (3,), found (4,)",),
        kernels=(
            Kernel(
                "07_schedule.txt",
                "k0",
                "read a, write b",
                ("n0", "n1"),
                "parallel 1, vector r0",
                "reads 96 bytes, writes 32 bytes",
            ),
        ),
        stages=stages,
        seconds=0.5,
        cache=("f: not kept (an operator of a library)",),
        spans=(
            Span("capture and compile", "f", 0.0, 900.0, 1, 0),
            Span("inductor", "forward", 300.0, 500.0, 1, 1),
        ),
        memory={"07_schedule.txt": "4096"},
    )


def test_it_stands_alone_and_escapes():
    text = page(explanation())
    for outside in ("http:", "https:", "src=", "<script", "@import"):
        assert outside not in text
    assert "&lt;lambda&gt;" in text
    assert "<b>bold" not in text
    assert "i &lt; n" in text


def test_it_has_all_that_a_reader_asks_for():
    text = page(explanation())
    for shown in (
        "expected (3,), found (4,)",
        "reads 96 bytes, writes 32 bytes",
        "parallel 1, vector r0",
        "4096 bytes",
        "not kept (an operator of a library)",
        "inductor forward",
        "0.5 ms",
        "<svg",
    ):
        assert shown in text


def test_an_empty_explanation_says_so():
    text = page(Explanation("f", (), (), (), (), (), {}, 0.0))
    assert "Nothing was captured." in text
    assert "the whole call was captured" in text


@pytest.mark.skipif(BROWSER is None, reason="no chromium here; apt-get install chromium")
def test_a_browser_lays_it_out(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page(explanation()))
    picture = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1000,1400"]
    done = subprocess.run(
        [BROWSER, *flags, f"--screenshot={picture}", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 20_000  # a blank page of this size is about 6 KB
    shown = subprocess.run(
        [BROWSER, *flags, "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert "<svg" in shown
    assert "softmax" in shown
    assert 'print("&lt;b&gt;bold&lt;/b&gt;")' in shown
