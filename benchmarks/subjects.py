"""The models of the steady suite: of real widths, on a CPU's batch sizes, some with fewer layers than published.

In: a name. Out: a `Subject` with random weights and inputs, the same in every process. Fewer layers make no
difference to a ratio, for the layers are alike, and keep the suite within a quarter of an hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own usage

from benchmarks.models.extras import Recommender, Tagger
from benchmarks.models.subject import Subject, call, loss_of_result, still
from compile_api.demo.subjects import Sizes, build_subject

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SUBJECTS", "build"]

LENGTH = 128


def _transformer(
    model: str, config: dict[str, Any], length: int = LENGTH, *, decoder: bool = False
) -> Subject:
    import transformers

    kind = getattr(transformers, model)
    settings = kind.config_class(**config)
    module = still(kind(settings))
    if "loss_type" in vars(module) and not module.loss_type:
        module.loss_type = "ForCausalLM"
    tokens = torch.randint(4, settings.vocab_size, (1, length))
    inputs = {"input_ids": tokens}
    if decoder:
        inputs["decoder_input_ids"] = torch.randint(4, settings.vocab_size, (1, length))
    elif getattr(settings, "use_cache", False):
        settings.use_cache = False
    return Subject(module, inputs, {**inputs, "labels": tokens})


def _bert() -> Subject:
    return _transformer("BertForMaskedLM", {})


def _distilbert() -> Subject:
    return _transformer("DistilBertForMaskedLM", {})


def _gpt2() -> Subject:
    return _transformer("GPT2LMHeadModel", {"n_layer": 6})


def _opt() -> Subject:
    return _transformer("OPTForCausalLM", {"num_hidden_layers": 6})


def _llama() -> Subject:
    config = {
        "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 6,
        "num_attention_heads": 12, "num_key_value_heads": 4, "max_position_embeddings": 512,
    }  # fmt: skip
    return _transformer("LlamaForCausalLM", config)


def _t5() -> Subject:
    config = {"num_layers": 4, "num_decoder_layers": 4, "decoder_start_token_id": 0}
    return _transformer("T5ForConditionalGeneration", config, decoder=True)


def _bart() -> Subject:
    config = {
        "d_model": 768, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 12,
        "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072,
    }  # fmt: skip
    return _transformer("BartForConditionalGeneration", config, decoder=True)


class _Pixels(nn.Module):
    """A vision transformer that returns its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def _vit() -> Subject:
    from transformers import ViTConfig, ViTForImageClassification

    module = still(ViTForImageClassification(ViTConfig(num_hidden_layers=6, num_labels=1000)))
    inputs = {"images": torch.randn(1, 3, 224, 224)}
    return Subject(_Pixels(module), inputs, inputs, call, loss_of_result)


def _resnet50() -> Subject:
    module = build_subject("resnet50", Sizes()).module.classifier
    inputs = {"images": torch.randn(1, 3, 224, 224)}
    return Subject(module, inputs, inputs, call, loss_of_result)


class _Squeeze(nn.Module):
    """Channel weights from the mean over the image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = F.adaptive_avg_pool2d(x, 1)
        return x * F.hardsigmoid(self.up(F.relu(self.down(mean))))


class _InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, channel weights, projection."""

    def __init__(self, inside: int, wide: int, outside: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.same = inside == outside and stride == 1
        self.layers = nn.Sequential(
            nn.Conv2d(inside, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.Hardswish(),
            _Squeeze(wide),
            nn.Conv2d(wide, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.same else y


_MOBILE = (
    (16, 64, 24, 3, 2), (24, 72, 24, 3, 1), (24, 72, 40, 5, 2), (40, 120, 40, 5, 1),
    (40, 240, 80, 3, 2), (80, 200, 80, 3, 1), (80, 480, 112, 3, 1), (112, 672, 160, 5, 2),
    (160, 960, 160, 5, 1),
)  # fmt: skip


def _mobilenet() -> Subject:
    """MobileNetV3's blocks in its widths."""
    stem = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()]
    head = [
        nn.Conv2d(160, 960, 1, bias=False), nn.BatchNorm2d(960), nn.Hardswish(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1000),
    ]  # fmt: skip
    module = nn.Sequential(*stem, *(_InvertedResidual(*row) for row in _MOBILE), *head)
    inputs = {"images": torch.randn(4, 3, 224, 224)}
    return Subject(module, inputs, inputs, call, loss_of_result)


def _dlrm() -> Subject:
    batch, tables, rows = 512, 8, 20000
    inputs = {
        "dense": torch.randn(batch, 13),
        "indices": torch.randint(0, rows, (tables, 4 * batch)),
        "offsets": torch.arange(0, 4 * batch, 4).expand(tables, batch).contiguous(),
    }
    return Subject(Recommender(tables, rows, 64), inputs, inputs, call, loss_of_result)


def _tagger() -> Subject:
    inputs = {"sentence": torch.randint(0, 5000, (16, 32))}
    return Subject(Tagger(5000, 128, 45), inputs, inputs, call, loss_of_result)


class Mixing(nn.Module):
    """Isoneutral mixing in the manner of ocean models: sea water's density at neighbours, slopes, tapered fluxes."""

    def __init__(self) -> None:
        super().__init__()
        self.expansion = nn.Parameter(torch.tensor([1.67e-4, 1.0e-5, 7.8e-4, 1.1e-8]))
        self.steepest, self.width = 1e-3, 1e-4

    def _density_slope(self, salt: Tensor, heat: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        thermal, curved, saline, pressure = self.expansion
        warm = heat - 9.85
        by_heat = -(thermal * (1 + pressure * depth) + curved * warm)
        return by_heat, saline * torch.ones_like(salt)

    def forward(self, salt: Tensor, heat: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        by_heat, by_salt = self._density_slope(salt, heat, depth)
        flows = []
        for axis in (0, 1):
            across_heat = torch.roll(heat, -1, axis) - heat
            across_salt = torch.roll(salt, -1, axis) - salt
            down_heat = torch.roll(heat, -1, 2) - heat
            down_salt = torch.roll(salt, -1, 2) - salt
            across = by_heat * across_heat + by_salt * across_salt
            down = torch.clamp(by_heat * down_heat + by_salt * down_salt, max=-1e-8)
            slope = -across / down
            taper = 0.5 * (1 + torch.tanh((-slope.abs() + self.steepest) / self.width))
            mixing = torch.clamp(1000.0 * taper, min=50.0)
            flows.append(mixing * (across_heat - slope * down_heat))
            flows.append(mixing * slope * slope * torch.exp(-depth / 500.0))
        return flows[0] + flows[2], flows[1] + flows[3]


def _mixing() -> Subject:
    shape = (100, 100, 26)
    inputs = {
        "salt": 35 + torch.rand(shape), "heat": 20 * torch.rand(shape), "depth": 1000 * torch.rand(shape),
    }  # fmt: skip
    return Subject(Mixing(), inputs, inputs, call, loss_of_result)


SUBJECTS: dict[str, Callable[[], Subject]] = {
    "BERT, 12 layers, 1 x 128": _bert,
    "DistilBERT, 6 layers, 1 x 128": _distilbert,
    "GPT-2, 6 layers, 1 x 128": _gpt2,
    "OPT, 6 layers, 1 x 128": _opt,
    "T5, 4 + 4 layers, 1 x 128": _t5,
    "BART, 3 + 3 layers, 1 x 128": _bart,
    "Llama, 6 layers of 768, 1 x 128": _llama,
    "ViT-B/16, 6 layers, 1 image": _vit,
    "ResNet-50, 1 image": _resnet50,
    "MobileNetV3, 9 blocks, 4 images": _mobilenet,
    "DLRM, batch 512": _dlrm,
    "LSTM tagger, 16 x 32": _tagger,
    "Isoneutral mixing, 100 x 100 x 26": _mixing,
}


def build(name: str) -> Subject:
    """Builds a model by its name."""
    torch.manual_seed(0)
    return SUBJECTS[name]()
