"""Rules of quantization-aware training: what they promise is what eager gives, in its layouts."""

import pytest
import torch

from primtorch.fake import infer, meta_of

aten = torch.ops.aten
X = torch.linspace(-2, 3, 24).reshape(4, 6)
TURNED = X.t()
SPREAD = torch.linspace(-2, 3, 48).reshape(2, 4, 6).permute(1, 2, 0)[::2]
ONE, NONE = torch.tensor([0.1]), torch.tensor([0])
CHANNELS = torch.linspace(0.1, 0.6, 6)
TENSOR = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
LEARNED, LEARNED_CHANNELS = (
    aten._fake_quantize_learnable_per_tensor_affine,
    aten._fake_quantize_learnable_per_channel_affine,
)
LEARNED_BACK = aten._fake_quantize_learnable_per_tensor_affine_backward.default
CHANNELS_BACK = aten._fake_quantize_learnable_per_channel_affine_backward.default
CALLS = {
    "tensor": (aten.fake_quantize_per_tensor_affine_cachemask.default, (X, 0.1, 3, 0, 255)),
    "tensor, turned": (
        aten.fake_quantize_per_tensor_affine_cachemask.default,
        (TURNED, 0.1, 3, 0, 255),
    ),
    "tensor, spread": (
        aten.fake_quantize_per_tensor_affine_cachemask.default,
        (SPREAD, 0.1, 3, 0, 255),
    ),
    "half": (aten.fake_quantize_per_tensor_affine_cachemask.default, (X.half(), 0.1, 3, 0, 255)),
    "scale in a tensor": (TENSOR, (TURNED, ONE, NONE.int(), NONE + 1, 0, 255)),
    "channels": (
        aten.fake_quantize_per_channel_affine_cachemask.default,
        (TURNED, CHANNELS, torch.zeros(6, dtype=torch.int32), 0, 0, 255),
    ),
    "learned": (LEARNED.default, (TURNED, ONE, NONE.float(), 0, 255, 1.0)),
    "learned, backward": (LEARNED_BACK, (TURNED, TURNED, ONE, NONE.float(), 0, 255, 1.0)),
    "learned channels": (LEARNED_CHANNELS.default, (X, CHANNELS, CHANNELS * 0, 1, 0, 255, 1.0)),
    "learned channels, backward": (
        CHANNELS_BACK,
        (X, X, CHANNELS, CHANNELS * 0, 1, 0, 255, 1.0),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_promised_is_given(name):
    operator, arguments = CALLS[name]
    given, promised = operator(*arguments), infer(operator, arguments)
    if isinstance(given, torch.Tensor):
        given, promised = [given], [promised]
    assert [meta_of(one) for one in given] == list(promised)


REFUSED = {
    "turned range": (aten.fake_quantize_per_tensor_affine_cachemask.default, (X, 0.1, 3, 255, 0)),
    "channels": (
        aten.fake_quantize_per_channel_affine_cachemask.default,
        (X, CHANNELS, torch.zeros(6, dtype=torch.int32), 0, 0, 255),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name):
    operator, arguments = REFUSED[name]
    with pytest.raises(Exception) as expected:  # noqa: PT011  its type is the datum
        operator(*arguments)
    with pytest.raises(type(expected.value)):
        infer(operator, arguments)
