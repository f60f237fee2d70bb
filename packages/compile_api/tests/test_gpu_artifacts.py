"""Artifacts of programs that run on a card: a second process captures nothing, compiles nothing, loads no Triton."""

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
_SCRIPT = """
import json, sys
import torch
import compile_api, dynamo.dispatch

captures = []
capture = dynamo.dispatch.capture
dynamo.dispatch.capture = lambda request: captures.append(1) or capture(request)

def block(x, weight, bias, table, index):
    hidden = torch.nn.functional.layer_norm(torch.nn.functional.linear(x, weight, bias), (64,))
    return torch.nn.functional.gelu(hidden).softmax(-1) + table[index] + torch.arange(64, device=x.device)

torch.manual_seed(0)
shapes = [(32, 48), (64, 48), (64,), (9, 64)]
inputs = [torch.randn(s, device="cuda", requires_grad=True) for s in shapes]
index = torch.arange(32, device="cuda") % 9
compiled = compile_api.compile(block)
result = compiled(*inputs, index)
tangent = torch.linspace(-1, 1, result.numel(), device="cuda").reshape(result.shape)
grads = torch.autograd.grad(result, inputs, tangent)
eager = block(*inputs, index)
wanted = torch.autograd.grad(eager, inputs, tangent)
worst = max((a - b).abs().max().item() for a, b in zip((result, *grads), (eager, *wanted)))
print(json.dumps({"captures": len(captures), "triton": "triton" in sys.modules, "worst": worst}))
"""


def run(cache):
    environment = {
        **os.environ,
        "COMPILE_API_CACHE_DIR": str(cache),
        "COMPILE_API_ARTIFACTS": "1",
        "COMPILE_API_STRICT": "1",
    }
    environment.pop("TRITON_INTERPRET", None)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def test_a_second_process_is_served_from_the_artifact(tmp_path):
    first, second = run(tmp_path), run(tmp_path)
    assert first["captures"] == 1
    assert second["captures"] == 0
    assert not second["triton"]
    assert max(first["worst"], second["worst"]) < 1e-4
