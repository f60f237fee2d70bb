"""Shape rules of CUDA kernels equal eager's results: attention, convolution, norms, dropout."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_SPEC = importlib.util.spec_from_file_location(
    "operator_database", Path(__file__).with_name("operator_database.py")
)
database = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(database)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def token_major(batch, heads, tokens, width, dtype):
    return torch.randn(batch, tokens, heads, width, device="cuda", dtype=dtype).transpose(1, 2)


@pytest.mark.parametrize(
    "backend",
    [
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.MATH,
        None,
    ],
)
def test_attention(backend) -> None:
    wrong = {}
    for layout, width, tokens, causal, dropout, masked in itertools.product(
        ("heads", "tokens"), (64, 128), (32, 77), (False, True), (0.0, 0.1), (False, True)
    ):
        if masked and (causal or backend is SDPBackend.FLASH_ATTENTION):
            continue
        shape = (2, 4, tokens, width)
        make = (
            (lambda s=shape: torch.randn(s, device="cuda", dtype=torch.bfloat16))
            if layout == "heads"
            else (lambda s=shape: token_major(*s, torch.bfloat16))
        )
        q, k, v = (make().requires_grad_() for _ in range(3))
        mask = torch.randn(2, 1, tokens, tokens, device="cuda").bfloat16() if masked else None
        comparison = database.Comparison()
        try:
            with comparison:
                if backend is None:
                    out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
                else:
                    with sdpa_kernel(backend):
                        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal)
                out.backward(torch.randn_like(out))
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
        for name, found in comparison.wrong.items():
            wrong.setdefault(name, []).append(
                ((layout, width, tokens, causal, dropout, masked), found[0])
            )
    assert wrong == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("formats", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("rank", [2, 3])
def test_convolutions_and_norms(dtype, formats, rank) -> None:
    last = torch.channels_last if rank == 2 else torch.channels_last_3d
    x = torch.randn(2, 8, *(6,) * rank, device="cuda", dtype=dtype)
    w = torch.randn(8, 8, *(3,) * rank, device="cuda", dtype=dtype)
    x = x.contiguous(memory_format=last) if formats[0] else x
    w = w.contiguous(memory_format=last) if formats[1] else w
    x.requires_grad_()
    w.requires_grad_()
    convolve = F.conv2d if rank == 2 else F.conv3d
    transposed = F.conv_transpose2d if rank == 2 else F.conv_transpose3d
    pool = F.max_pool2d if rank == 2 else F.max_pool3d
    mean = torch.zeros(8, device="cuda", dtype=dtype)
    comparison = database.Comparison()
    with comparison:
        for training in (True, False):
            y = convolve(x, w, padding=1)
            y = F.batch_norm(y, mean, mean + 1, training=training)
            y = pool(F.dropout(torch.relu(y), 0.5), 2)
            y = transposed(y, w, stride=2)
            y = F.group_norm(y, 2) + F.layer_norm(y, y.shape[-1:])
            y.sum().backward()
    assert comparison.wrong == {}
