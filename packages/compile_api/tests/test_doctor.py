"""What doctor says of machines that lack something."""

import compile_api
from compile_api.doctor import State, examine


def find(what):
    return next(finding for finding in examine() if finding.what == what)


def test_it_looks_at_everything_and_is_readable(monkeypatch, tmp_path):
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path))
    text = compile_api.doctor()
    for what in (
        "Python",
        "torch",
        "C++ compiler",
        "CUDA",
        "cache directory",
        "dynamo, C parts",
        "aot_autograd, C parts",
    ):
        assert what in text


def test_a_compiler_that_is_not_there(monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    finding = find("C++ compiler")
    assert finding.state is State.MISSING
    assert "CXX=/nowhere/g++ is not there" in finding.detail
    assert "apt-get install g++" in str(finding)


def test_a_compiler_that_fails(monkeypatch, tmp_path):
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    assert find("C++ compiler").state is State.MISSING


def test_a_cache_directory_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path / "file" / "cache"))
    finding = find("cache directory")
    assert finding.state is State.SLOW
    assert "every process compiles anew" in finding.detail


def test_looking_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path))
    examine()
    assert list(tmp_path.iterdir()) == []
