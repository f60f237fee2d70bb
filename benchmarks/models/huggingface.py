"""The HuggingFace list: 51 names, each built from a configuration with two layers and narrow widths.

The structure (attention kind, norms, heads, biases, tied weights, which inputs it takes) is that of the
named model; only counts and widths are smaller. The listed batch size is kept for a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.models.subject import Subject, still

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["HUGGINGFACE", "Recipe", "build_transformer"]

BATCH, LENGTH = 2, 24

_BERT = {
    "vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "max_position_embeddings": 64, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_BART = {
    "vocab_size": 1000, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0,
    "activation_dropout": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
_GPT = {
    "vocab_size": 1000, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
_NEO = {
    "vocab_size": 1000, "hidden_size": 64, "num_layers": 2, "num_heads": 4,
    "max_position_embeddings": 64, "attention_types": [[["global", "local"], 1]], "window_size": 8,
    "attention_dropout": 0.0, "embed_dropout": 0.0, "resid_dropout": 0.0, "classifier_dropout": 0.0,
}  # fmt: skip
_DISTIL = {
    "vocab_size": 1000, "dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4,
    "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0, "qa_dropout": 0.0,
}  # fmt: skip
_T5 = {
    "vocab_size": 1000, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
    "num_decoder_layers": 2, "num_heads": 4, "dropout_rate": 0.0,
}  # fmt: skip
_ROBERTA = {**_BERT, "max_position_embeddings": 66, "pad_token_id": 1}
_DEBERTA = {**_BERT, "pooler_hidden_size": 64}
_DEBERTA2 = {
    **_DEBERTA, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16,
    "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
    "conv_kernel_size": 3, "conv_act": "gelu",
}  # fmt: skip
_DEBERTA1 = {
    **_DEBERTA, "relative_attention": True, "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one model is built: the class of transformers, its configuration, the task's inputs."""

    batch: int  # the list's, for a GPU
    model: str
    config: Mapping[str, Any]
    task: str = "tokens"
    replaces: str = ""  # why the listed name isn't built under its own name
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the inputs of a task are made of."""

    vocabulary: int
    batch: int = BATCH
    length: int = LENGTH

    def tokens(self, shorter: int = 0) -> torch.Tensor:
        return torch.randint(4, self.vocabulary, (self.batch, self.length - shorter))


_Inputs = dict[str, Any]


def _token_task(sizes: Sizes) -> tuple[_Inputs, _Inputs]:
    inputs = {"input_ids": sizes.tokens()}
    return inputs, {**inputs, "labels": sizes.tokens()}


def _answer_task(sizes: Sizes) -> tuple[_Inputs, _Inputs]:
    inputs = {"input_ids": sizes.tokens()}
    ends = {
        f"{end}_positions": torch.randint(0, sizes.length, (sizes.batch,))
        for end in ("start", "end")
    }
    return inputs, {**inputs, **ends}


def _class_task(sizes: Sizes) -> tuple[_Inputs, _Inputs]:
    inputs = {"input_ids": sizes.tokens()}
    return inputs, {**inputs, "labels": torch.randint(0, 2, (sizes.batch,))}


def _boxes(sizes: Sizes) -> _Inputs:
    corner = torch.randint(0, 500, (sizes.batch, sizes.length, 2))
    return {"bbox": torch.cat([corner, corner + torch.randint_like(corner, 1, 400)], -1)}


def _layout_task(sizes: Sizes) -> tuple[_Inputs, _Inputs]:
    boxes = _boxes(sizes)
    inputs, training = _token_task(sizes)
    return {**inputs, **boxes}, {**training, **boxes}


def _layout_class_task(sizes: Sizes) -> tuple[_Inputs, _Inputs]:
    boxes = _boxes(sizes)
    inputs, training = _class_task(sizes)
    return {**inputs, **boxes}, {**training, **boxes}


def _translate_task(sizes: Sizes) -> tuple[_Inputs, _Inputs]:
    inputs = {"input_ids": sizes.tokens(), "decoder_input_ids": sizes.tokens(shorter=4)}
    return inputs, {**inputs, "labels": sizes.tokens(shorter=4)}


def _speech_task(sizes: Sizes) -> tuple[_Inputs, _Inputs]:
    features = torch.randn(sizes.batch, sizes.length + 8, 80)
    inputs = {"input_features": features, "decoder_input_ids": sizes.tokens()}
    return inputs, {**inputs, "labels": sizes.tokens()}


_TASKS: dict[str, Callable[[Sizes], tuple[_Inputs, _Inputs]]] = {
    "tokens": _token_task, "answer": _answer_task, "class": _class_task, "layout": _layout_task,
    "layout class": _layout_class_task, "translate": _translate_task, "speech": _speech_task,
}  # fmt: skip


def build_transformer(recipe: Recipe) -> Subject:
    """Builds the model; random weights, from the generator's current state."""
    import transformers  # seconds to import; the registry is read without it

    kind = getattr(transformers, recipe.model)
    module = kind(kind.config_class(**recipe.config))
    if recipe.task == "tokens" and not module.loss_type and "CausalLM" in recipe.model:
        module.loss_type = "ForCausalLM"
    vocabulary, make = recipe.config["vocab_size"], _TASKS[recipe.task]
    inputs, training = make(Sizes(vocabulary))

    def resize(batch: int, length: int) -> dict[str, Any]:
        return make(Sizes(vocabulary, batch, length))[0]

    return Subject(still(module), inputs, training, resize=resize)


def _pair(
    name: str, batches: tuple[int, int], config: Mapping[str, Any], **kinds: str
) -> dict[str, Recipe]:
    """A family's two heads: `head=task`."""
    found = {}
    for batch, (head, task) in zip(batches, kinds.items(), strict=True):
        model = f"{name}For{head}"
        extra = {"is_decoder": True} if head == "CausalLM" and "num_hidden_layers" in config else {}
        found[model] = Recipe(batch, model, {**config, **extra}, task)
    return found


HUGGINGFACE: dict[str, Recipe] = {
    **_pair("Albert", (8, 8), {**_BERT, "embedding_size": 32, "classifier_dropout_prob": 0.0},
            MaskedLM="tokens", QuestionAnswering="answer"),
    "AllenaiLongformerBase": Recipe(
        8, "LongformerForMaskedLM", {**_BERT, "attention_window": 8, "max_position_embeddings": 80, "pad_token_id": 1},
        replaces="the list's name for allenai/longformer-base-4096, a masked language model",
    ),
    **_pair("Bart", (8, 4), _BART, CausalLM="tokens", ConditionalGeneration="translate"),
    **_pair("Bert", (32, 32), _BERT, MaskedLM="tokens", QuestionAnswering="answer"),
    **_pair("Blenderbot", (32, 16), _BART, CausalLM="tokens", ConditionalGeneration="translate"),
    **_pair("BlenderbotSmall", (256, 128), _BART, CausalLM="tokens", ConditionalGeneration="translate"),
    "CamemBert": Recipe(
        32, "CamembertForMaskedLM", _ROBERTA, replaces="the list's name for camembert-base, a masked language model"
    ),
    **_pair("Deberta", (32, 32), _DEBERTA1, MaskedLM="tokens", QuestionAnswering="answer"),
    **_pair("DebertaV2", (8, 8), _DEBERTA2, MaskedLM="tokens", QuestionAnswering="answer"),
    **_pair("DistilBert", (256, 512), _DISTIL, MaskedLM="tokens", QuestionAnswering="answer"),
    "DistillGPT2": Recipe(
        32, "GPT2LMHeadModel", _GPT, replaces="the list's name for distilgpt2: GPT-2 with fewer layers"
    ),
    **_pair("Electra", (64, 128), {**_BERT, "embedding_size": 32}, CausalLM="tokens", QuestionAnswering="answer"),
    "GPT2ForSequenceClassification": Recipe(
        8, "GPT2ForSequenceClassification", {**_GPT, "pad_token_id": 0}, "class"
    ),
    **_pair("GPTJ", (1, 1), {**_GPT, "rotary_dim": 8}, CausalLM="tokens", QuestionAnswering="answer"),
    **_pair("GPTNeo", (32, 32), {**_NEO, "pad_token_id": 0}, CausalLM="tokens", SequenceClassification="class"),
    "GoogleFnet": Recipe(
        32, "FNetForMaskedLM", {key: value for key, value in _BERT.items() if "attention" not in key},
        replaces="the list's name for google/fnet-base, a masked language model",
    ),
    **_pair("LayoutLM", (32, 32), {**_BERT, "max_2d_position_embeddings": 1024},
            MaskedLM="layout", SequenceClassification="layout class"),
    "M2M100ForConditionalGeneration": Recipe(64, "M2M100ForConditionalGeneration", _BART, "translate"),
    **_pair("MBart", (8, 4), _BART, CausalLM="tokens", ConditionalGeneration="translate"),
    "MT5ForConditionalGeneration": Recipe(32, "MT5ForConditionalGeneration", _T5, "translate"),
    **_pair("MegatronBert", (16, 16), _BERT, CausalLM="tokens", QuestionAnswering="answer"),
    **_pair("MobileBert", (256, 256),
            {**_BERT, "embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32},
            MaskedLM="tokens", QuestionAnswering="answer"),
    "OPTForCausalLM": Recipe(
        4, "OPTForCausalLM",
        {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128,
         "word_embed_proj_dim": 64, "max_position_embeddings": 64, "dropout": 0.0, "layerdrop": 0.0},
    ),
    **_pair("PLBart", (16, 8), _BART, CausalLM="tokens", ConditionalGeneration="translate"),
    **_pair("Pegasus", (128, 64), _BART, CausalLM="tokens", ConditionalGeneration="translate"),
    **_pair("Roberta", (32, 32), _ROBERTA, CausalLM="tokens", QuestionAnswering="answer"),
    "Speech2Text2ForCausalLM": Recipe(
        1024, "Speech2TextForConditionalGeneration",
        {**{key: value for key, value in _BART.items() if key != "max_position_embeddings"},
         "max_source_positions": 64, "max_target_positions": 64, "conv_channels": 64}, "speech",
        replaces="removed from transformers; the decoder lives on in Speech2Text, whose whole model is run",
    ),
    "T5ForConditionalGeneration": Recipe(8, "T5ForConditionalGeneration", _T5, "translate"),
    "T5Small": Recipe(
        8, "T5ForConditionalGeneration", {**_T5, "num_heads": 8, "d_kv": 8},
        "translate", replaces="the list's name for t5-small: T5 with the heads of the small model",
    ),
    "TrOCRForCausalLM": Recipe(
        64, "TrOCRForCausalLM", {key: value for key, value in _BART.items() if "encoder" not in key}
    ),
    "XGLMForCausalLM": Recipe(
        32, "XGLMForCausalLM",
        {"vocab_size": 1000, "d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 4,
         "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0, "layerdrop": 0.0},
    ),
    "XLNetLMHeadModel": Recipe(
        16, "XLNetLMHeadModel",
        {"vocab_size": 1000, "d_model": 64, "n_layer": 2, "n_head": 4, "d_inner": 128, "d_head": 16, "dropout": 0.0},
    ),
    "YituTechConvBert": Recipe(
        32, "ConvBertForMaskedLM", {**_BERT, "embedding_size": 64},
        replaces="the list's name for YituTech/conv-bert-base, a masked language model",
    ),
}  # fmt: skip
