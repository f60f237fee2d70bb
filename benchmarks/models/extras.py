"""Models beside the lists: today's causal models with their caches, Whisper, DLRM, a tagger, a UNet, physics."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own usage

from benchmarks.models.subject import Subject, call, loss_of_result, still

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXTRAS"]

BATCH, PROMPT, STEPS = 2, 12, 5

_DECODER = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip


def _decoder(name: str) -> nn.Module:
    import transformers

    kind = getattr(transformers, f"{name}ForCausalLM")
    extra = {"sliding_window": 16} if name == "Mistral" else {}
    return still(kind(kind.config_class(**_DECODER, **extra)))


def _causal(name: str) -> Subject:
    tokens = torch.randint(4, 1000, (BATCH, 2 * PROMPT))
    inputs = {"input_ids": tokens}
    return Subject(
        _decoder(name),
        {**inputs, "use_cache": False},
        {**inputs, "labels": tokens, "use_cache": False},
        resize=lambda batch, length: {
            "input_ids": torch.randint(4, 1000, (batch, length)), "use_cache": False,
        },
    )  # fmt: skip


def _generate(target: Any, inputs: dict[str, Any], *, static: bool) -> list[Tensor]:
    """A prompt, then one token at a time; the tokens are given, so that runs can be compared."""
    from transformers import DynamicCache, StaticCache

    config = inputs["config"]
    cache = StaticCache(config=config, max_cache_len=32) if static else DynamicCache(config=config)
    tokens, logits, start = inputs["tokens"], [], 0
    for end in range(PROMPT, PROMPT + STEPS + 1):
        positions = torch.arange(start, end)
        result = target(
            input_ids=tokens[:, start:end], past_key_values=cache, use_cache=True,
            position_ids=positions[None],
        )  # fmt: skip
        logits.append(result.logits)
        start = end
    return logits


def _decode(name: str, *, static: bool) -> Subject:
    module = _decoder(name)
    inputs = {"tokens": torch.randint(4, 1000, (BATCH, 2 * PROMPT)), "config": module.config}
    graphs = 2  # prompt, one token
    if name == "Mistral":  # it asks in Python whether its window is full
        graphs = 3 if static else 5  # not yet, and since; as it fills, as the first key drops out
    return Subject(module, inputs, None, functools.partial(_generate, static=static), graphs=graphs)


def _whisper() -> Subject:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=1000, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=32,
        max_target_positions=32, mask_time_prob=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    tokens = torch.randint(4, 1000, (BATCH, PROMPT))
    inputs = {"input_features": torch.randn(BATCH, 80, 64), "decoder_input_ids": tokens}
    return Subject(
        still(WhisperForConditionalGeneration(config)), inputs, {**inputs, "labels": tokens}
    )


class Recommender(nn.Module):
    """DLRM: a bottom perceptron, embedding bags, pairwise products, a top perceptron."""

    def __init__(self, tables: int = 6, rows: int = 100, width: int = 16, dense: int = 13) -> None:
        super().__init__()
        self.bottom = nn.Sequential(
            nn.Linear(dense, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU()
        )
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid()
        )
        rows_of, columns = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("pairs_row", rows_of)
        self.register_buffer("pairs_column", columns)

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        found = [bag(indices[i], offsets[i]) for i, bag in enumerate(self.bags)]
        stacked = torch.stack([bottom, *found], dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        chosen = products[:, self.pairs_row, self.pairs_column]
        return self.top(torch.cat([bottom, chosen], dim=1))


def _dlrm() -> Subject:
    inputs = {
        "dense": torch.randn(8, 13),
        "indices": torch.randint(0, 100, (6, 32)),
        "offsets": torch.arange(0, 32, 4).expand(6, 8).contiguous(),
    }
    return Subject(Recommender(), inputs, inputs, call, loss_of_result)


class Tagger(nn.Module):
    """The tutorial's tagger: embedding, LSTM, a linear layer, log-probabilities of tags."""

    def __init__(self, words: int = 200, width: int = 32, tags: int = 9) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * width, tags)

    def forward(self, sentence: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(sentence))
        return F.log_softmax(self.tag(hidden), dim=-1)


def _tagger() -> Subject:
    inputs = {"sentence": torch.randint(0, 200, (BATCH, PROMPT))}
    return Subject(Tagger(), inputs, inputs, call, loss_of_result)


class DoubleConvolution(nn.Sequential):
    """Twice convolution, batch norm, ReLU."""

    def __init__(self, inside: int, outside: int) -> None:
        layers: list[nn.Module] = []
        for width in (inside, outside):
            layers += [
                nn.Conv2d(width, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(inplace=True),
            ]
        super().__init__(*layers)


class UNet(nn.Module):
    """The segmentation network: down by max pooling, up by transposed convolutions, skips concatenated."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32), classes: int = 2) -> None:
        super().__init__()
        inside = (3, *widths[:-1])
        self.down = nn.ModuleList(
            DoubleConvolution(a, b) for a, b in zip(inside, widths, strict=True)
        )
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairs)
        self.merge = nn.ModuleList(DoubleConvolution(2 * b, b) for _, b in pairs)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for level, block in enumerate(self.down):
            image = block(image if level == 0 else F.max_pool2d(image, 2))
            skips.append(image)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            skip = skips.pop()
            image = up(image)
            if image.shape != skip.shape:
                image = F.interpolate(image, size=skip.shape[2:])
            image = merge(torch.cat([skip, image], dim=1))
        return self.head(image)


def _unet() -> Subject:
    inputs = {"image": torch.randn(BATCH, 3, 34, 32)}
    return Subject(UNet(), inputs, inputs, call, loss_of_result)


class StateEquation(nn.Module):
    """A pure pointwise kernel in the manner of sea water's equation of state: long rational polynomials."""

    def __init__(self, terms: int = 24) -> None:
        super().__init__()
        self.above = nn.Parameter(torch.randn(terms) / terms)
        self.below = nn.Parameter(torch.rand(terms) / terms)

    def forward(self, salinity: Tensor, heat: Tensor, pressure: Tensor) -> tuple[Tensor, Tensor]:
        root = torch.sqrt(salinity.clamp(min=0.0))
        above, below = torch.zeros_like(root), torch.ones_like(root)
        for i in range(self.above.shape[0]):
            term = root ** (i % 3) * heat ** (i // 3 % 3) * pressure ** (i // 9)
            above = above + self.above[i] * term
            below = below + self.below[i] * term.abs()
        density = above / below
        return density, torch.where(density > 0, torch.log1p(density), torch.expm1(-density))


def _physics() -> Subject:
    inputs = {name: torch.rand(16, 18, 10) for name in ("salinity", "heat", "pressure")}
    return Subject(StateEquation(), inputs, inputs, call, loss_of_result)


EXTRAS: dict[str, Callable[[], Subject]] = {
    **{
        f"{name}ForCausalLM": functools.partial(_causal, name)
        for name in ("Llama", "Qwen3", "Gemma", "Mistral")
    },
    **{
        f"{name}Decode{'Static' if static else 'Dynamic'}Cache": functools.partial(
            _decode, name, static=static
        )
        for name in ("Llama", "Qwen3", "Gemma", "Mistral")
        for static in (True, False)
    },
    "WhisperForConditionalGeneration": _whisper,
    "DLRM": _dlrm,
    "LSTMTagger": _tagger,
    "UNet": _unet,
    "EquationOfState": _physics,
}
