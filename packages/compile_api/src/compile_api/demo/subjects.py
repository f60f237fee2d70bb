"""The models that the demo and the benchmarks run: built from configurations, random weights.

In: a name and sizes. Out: a `Subject`: a module, the inputs of one inference, and how a training step
gets its loss. Nothing is downloaded. Invariant: the same name, sizes and seed give the same weights
and inputs.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from compile_api.errors import CompileApiError, InvalidArgument, nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = ["SUBJECTS", "Sizes", "Subject", "build_subject"]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What scales a subject; zeros mean the model's own default."""

    batch: int = 1
    length: int = 128
    layers: int = 0
    hidden: int = 0
    dropout: float = 0.0
    vocabulary: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with its inputs."""

    name: str
    size: str
    module: nn.Module
    inputs: dict[str, Tensor]
    training_inputs: dict[str, Tensor]
    outputs: Callable[[Any], dict[str, Tensor]]  # what inference returns, by name
    loss: Callable[[Any], Tensor]

    def to(self, device: torch.device, dtype: torch.dtype) -> Subject:
        """Moves module and inputs; floating inputs follow the dtype."""

        def move(value: Tensor) -> Tensor:
            moved: Tensor = value.to(device, dtype if value.is_floating_point() else value.dtype)
            return moved

        return Subject(
            self.name,
            self.size,
            self.module.to(device, dtype),
            {name: move(value) for name, value in self.inputs.items()},
            {name: move(value) for name, value in self.training_inputs.items()},
            self.outputs,
            self.loss,
        )


def _language_model(name: str, module: nn.Module, vocabulary: int, sizes: Sizes) -> Subject:
    shape = (sizes.batch, sizes.length)
    tokens = torch.randint(0, vocabulary, shape)
    labels = torch.randint(0, vocabulary, shape)
    return Subject(
        name,
        f"{sizes.batch} x {sizes.length}",
        module,
        {"input_ids": tokens},
        {"input_ids": tokens, "labels": labels},
        lambda result: {"logits": result.logits},
        lambda result: result.loss,
    )


def _bert(sizes: Sizes) -> Subject:
    from transformers import BertConfig, BertForMaskedLM

    hidden = sizes.hidden or 768
    config = BertConfig(
        vocab_size=sizes.vocabulary or 30522,
        num_hidden_layers=sizes.layers or 12,
        hidden_size=hidden,
        num_attention_heads=max(1, hidden // 64),
        intermediate_size=4 * hidden,
        hidden_dropout_prob=sizes.dropout,
        attention_probs_dropout_prob=sizes.dropout,
    )
    return _language_model("BertForMaskedLM", BertForMaskedLM(config), config.vocab_size, sizes)


def _gpt2(sizes: Sizes) -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    hidden = sizes.hidden or 768
    vocabulary = sizes.vocabulary or 50257
    config = GPT2Config(
        vocab_size=vocabulary,
        bos_token_id=vocabulary - 1,
        eos_token_id=vocabulary - 1,
        n_layer=sizes.layers or 12,
        n_embd=hidden,
        n_head=max(1, hidden // 64),
        resid_pdrop=sizes.dropout,
        embd_pdrop=sizes.dropout,
        attn_pdrop=sizes.dropout,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # what transformers takes anyway, after a warning
    return _language_model("GPT2LMHeadModel", model, config.vocab_size, sizes)


def _resnet50(sizes: Sizes) -> Subject:
    classes = sizes.vocabulary or 1000
    shape = {"blocks": (sizes.layers,) * 4, "width": 8} if sizes.layers else {}
    module = _example("resnet50").ResNet50(classes, **shape)
    side = sizes.hidden or 224
    images = torch.randn(sizes.batch, 3, side, side)
    labels = torch.randint(0, classes, (sizes.batch,))
    return Subject(
        "ResNet-50",
        f"{sizes.batch} x 3 x {side} x {side}",
        _WithLoss(module),
        {"images": images},
        {"images": images, "labels": labels},
        lambda result: {"logits": result},
        lambda result: result,
    )


class _WithLoss(torch.nn.Module):
    """An image classifier that returns its loss when it is given labels."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        logits: Tensor = self.classifier(images)
        if labels is None:
            return logits
        return torch.nn.functional.cross_entropy(logits, labels)


def _example(name: str) -> Any:
    """Loads a module of the repository's examples/, which a wheel doesn't carry."""
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        path = folder / "examples" / f"{name}.py"
        if path.exists():
            spec = importlib.util.spec_from_file_location(f"compile_api_example_{name}", path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise CompileApiError(
        f"the example {name!r} is part of the repository, not of the installed package\n"
        "  try: run the demo from a clone, or --model bert"
    )


SUBJECTS: dict[str, Callable[[Sizes], Subject]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "resnet50": _resnet50,
}


def build_subject(name: str, sizes: Sizes, seed: int = 0) -> Subject:
    """Builds a model and its inputs on the CPU in float32.

    Raises:
        InvalidArgument: no subject has that name; the nearest is given.
        CompileApiError: what it needs isn't installed.
    """
    if name not in SUBJECTS:
        best = nearest(name, SUBJECTS)
        hint = f"\n  did you mean: {best!r}?" if best else ""
        raise InvalidArgument(
            f"the demo has no model {name!r}{hint}\n  valid are: {', '.join(SUBJECTS)}"
        )
    torch.manual_seed(seed)
    try:
        return SUBJECTS[name](sizes)
    except ImportError as missing:
        raise CompileApiError(
            f"the demo's {name!r} needs a package that isn't here: {missing.name}\n"
            f"  try: pip install {missing.name}"
        ) from missing
