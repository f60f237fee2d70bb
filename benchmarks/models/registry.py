"""All names, in one order: what is known of each before it is built, and the builder.

Invariant: the same name gives the same weights and inputs in every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from benchmarks.models.extras import EXTRAS
from benchmarks.models.huggingface import HUGGINGFACE, build_transformer
from benchmarks.models.image import RENAMED, TIMM, build_image_model

if TYPE_CHECKING:
    from benchmarks.models.subject import Subject

__all__ = ["ALLOWED_BREAKS", "MORE_MEMORY", "QUICK", "REGISTRY", "SLOWER", "Entry", "build"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name of the registry."""

    name: str
    suite: str  # "huggingface", "extras", "timm"
    batch: int  # the list's batch size for a GPU; 0 where there is no list
    built: str  # what is built, when that isn't the name itself
    reason: str


def _entries() -> dict[str, Entry]:
    found = [
        Entry(
            name,
            "huggingface",
            recipe.batch,
            recipe.model if recipe.model != name else "",
            recipe.replaces,
        )
        for name, recipe in HUGGINGFACE.items()
    ]
    found += [Entry(name, "extras", 0, "", "") for name in EXTRAS]
    found += [
        Entry(name, "timm", batch, *RENAMED.get(name, ("", ""))) for name, batch in TIMM.items()
    ]
    return {entry.name: entry for entry in found}


REGISTRY: dict[str, Entry] = _entries()

# Graph breaks that a model has by its nature: how many a phase may have, and why.
ALLOWED_BREAKS: dict[str, tuple[int, str]] = {}

# Peaks above eager's: what the names of such models contain, and why.
MORE_MEMORY: dict[str, str] = {
    "tnt_s": "oneDNN's product of 34 x 384 x 1536 takes 0.26 MB of its own for the call",
    "DynamicCache": "the longer caches replace those before them when the call ends, not layer by layer",
}

# Slower than torch.compile: names and phases, and why.
SLOWER: dict[tuple[str, str], str] = {
    (
        name,
        "training",
    ): "timed before convolutions over few pixels became one product for all images; eager's time over"
    f" ours is {now} since, was {before}"
    for name, before, now in (("regnety_002", 1.27, 1.71), ("visformer_small", 1.04, 2.57))
}

QUICK = (
    "AlbertForQuestionAnswering", "AllenaiLongformerBase", "BartForConditionalGeneration",
    "DebertaV2ForMaskedLM", "DistillGPT2", "GoogleFnet", "MobileBertForMaskedLM",
    "T5ForConditionalGeneration", "XLNetLMHeadModel", "LlamaDecodeDynamicCache", "DLRM", "UNet",
)  # fmt: skip


def build(name: str) -> Subject:
    """Builds a model by its name.

    Raises:
        NotInstalled: its package isn't in the environment.
    """
    torch.manual_seed(0)
    match REGISTRY[name].suite:
        case "huggingface":
            return build_transformer(HUGGINGFACE[name])
        case "extras":
            return EXTRAS[name]()
        case "timm":
            return build_image_model(name)
        case suite:
            raise AssertionError(suite)
