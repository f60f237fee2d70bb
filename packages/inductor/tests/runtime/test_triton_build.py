"""The pool that compiles GPU kernels, with workers that are played here: what is asked for, and how often."""

import base64
import threading

import pytest

from inductor.codegen.triton import TritonSource
from inductor.runtime import triton_build
from inductor.runtime.triton_build import TritonBuilder, TritonBuildError, TritonTarget

TARGET = TritonTarget.named("sm_90")


class Worker:
    """Answers when it is let go."""

    def __init__(self, asked, gate):
        self.asked, self.gate, self.process = asked, gate, self

    def kill(self):
        """There is no process."""

    def ask(self, request):
        self.asked.append(request["text"])
        assert self.gate.wait(20)
        if request["text"] == "bad":
            return {"error": "no such thing"}
        binary = base64.b64encode(request["text"].encode()).decode()
        return {"binary": binary, "name": "kernel", "shared": 0, "warps": 4}


@pytest.fixture
def played(monkeypatch):
    asked, gate = [], threading.Event()
    monkeypatch.setattr(triton_build, "_start_worker", lambda: Worker(asked, gate))
    return asked, gate


def source(text, warps=4):
    return TritonSource(text, (("p0", "*fp32"),), 1, 1, "1", warps, 1, bounds_checked=False)


def test_equal_kernels_that_are_asked_for_meanwhile_are_compiled_once(played, tmp_path):
    """A network's blocks repeat: a training step of 467 kernels has 241 texts, and most were compiled twice."""
    asked, gate = played
    builder = TritonBuilder(tmp_path, TARGET, processes=4)
    texts = ["one", "two", "one", "one", "two", "three"]
    futures = [builder.submit(source(text), [0]) for text in texts]
    others = [builder.submit(source("one", warps=8), [0]), builder.submit(source("one"), [])]
    gate.set()
    assert [future.result(20).binary.decode() for future in futures] == texts
    assert [future.result(20).binary for future in others] == [b"one", b"one"]
    assert sorted(asked) == ["one", "one", "one", "three", "two"]
    assert builder.submit(source("two"), [0]).result(20).binary == b"two"
    assert len(asked) == 5, "it is on disk"


def test_an_error_is_told_to_all_that_wait_and_forgotten(played, tmp_path):
    asked, gate = played
    builder = TritonBuilder(tmp_path, TARGET, processes=2)
    first, second = (builder.submit(source("bad"), [0]) for _ in range(2))
    gate.set()
    for future in (first, second):
        with pytest.raises(TritonBuildError, match="no such thing"):
            future.result(20)
    with pytest.raises(TritonBuildError):
        builder.submit(source("bad"), [0]).result(20)
    assert asked == ["bad", "bad"]
