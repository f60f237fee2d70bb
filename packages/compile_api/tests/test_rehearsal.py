"""`compile-api demo --device cuda` without a GPU: Triton's interpreter runs the kernels, Triton compiles them."""

import json

import pytest
import torch
from click.testing import CliRunner

from compile_api.command_line import main

triton = pytest.importorskip("triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: the demo runs on it")
def test_a_tiny_bert_is_interpreted_and_compiled_for_hopper(tmp_path, monkeypatch):
    # some 40 s: the interpreter takes milliseconds a program instance, Triton a second a kernel
    monkeypatch.setenv("COMPILE_API_CACHE_DIR", str(tmp_path))
    size = ["--layers", "1", "--hidden", "32", "--length", "8"]
    done = CliRunner().invoke(main, ["demo", "--device", "cuda", "--json", *size])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["target"] == "sm_90"
    inference, training = found["rows"]
    assert training["kernels"] > inference["kernels"] > 0
    for row in (inference, training):
        assert (row["graphs"], row["breaks"]) == (1, 0)
        assert row["binaries"] == row["kernels"]
        for ours, eager in zip(row["errors"], row["eager_errors"], strict=True):
            assert (ours is None) == (eager is None)
            if ours is not None:
                assert ours["value"] <= 3 * eager["value"] + 1e-6
    assert training["errors"][1] is not None
