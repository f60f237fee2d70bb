"""transformers' generate on a compiled model: greedy, sampling and beam search; growing and static caches.

python examples/06_generate.py          (needs transformers)
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import compile_api

CONFIG = {
    "vocab_size": 200, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
WAYS = {
    "greedy, growing cache": {},
    "greedy, static cache": {"cache_implementation": "static", "disable_compile": True},
    "sampling": {"do_sample": True, "top_k": 20, "temperature": 0.8},
    "beam search": {"num_beams": 3},
}


def main() -> None:
    """Generates with the model and its compiled twin, and compares the tokens."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
    compiled = compile_api.compile(model)
    tokens = torch.randint(2, 200, (2, 8))
    mask = torch.ones_like(tokens)
    for way, options in WAYS.items():
        found = []
        for target in (model, compiled):
            torch.manual_seed(1)
            found.append(target.generate(tokens, attention_mask=mask, max_new_tokens=10, **options))
        if not torch.equal(*found):
            raise SystemExit(f"{way}: {found[1].tolist()} instead of {found[0].tolist()}")
        print(
            f"{way}: the same {found[1].shape[1] - tokens.shape[1]} tokens, {compile_api.graph_count()} graphs so far"
        )
    if compile_api.graph_count() == 0:
        raise SystemExit("nothing was compiled")


if __name__ == "__main__":
    main()
