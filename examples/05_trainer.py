"""transformers' Trainer with a compiled model: training, evaluation, saving and loading.

python examples/05_trainer.py           (needs transformers and accelerate)
"""

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import compile_api

CONFIG = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64, "max_position_embeddings": 32, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random tokens; the label says whether the first is in the upper half of the vocabulary."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(0, 100, (count, 16), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens[0] >= 50).long()}


def train(folder: str, *, compiled: bool) -> tuple[float, float, BertForSequenceClassification]:
    """Trains, evaluates and saves; returns both losses and what was loaded again."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**CONFIG))
    if compiled:
        model = compile_api.compile(model)
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=10,
        gradient_accumulation_steps=2, learning_rate=1e-3, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", seed=0, dataloader_drop_last=True, logging_strategy="no",
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Sentences(160), eval_dataset=Sentences(32))
    result = trainer.train()
    evaluated = trainer.evaluate()["eval_loss"]
    trainer.save_model(folder)
    return result.training_loss, evaluated, BertForSequenceClassification.from_pretrained(folder)


def main() -> None:
    """Compares a compiled run with eager's, and what was saved with what was trained."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        eager, ours = train(first, compiled=False), train(second, compiled=True)
    if compile_api.graph_count() == 0:
        raise SystemExit("nothing was compiled")
    torch.testing.assert_close(
        torch.tensor(ours[:2]), torch.tensor(eager[:2]), atol=1e-4, rtol=1e-4
    )
    for one, other in zip(ours[2].parameters(), eager[2].parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-2)
    print(
        f"training loss {ours[0]:.3f}, evaluation {ours[1]:.3f}, as eager's; {compile_api.graph_count()} graphs"
    )


if __name__ == "__main__":
    main()
