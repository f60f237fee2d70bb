"""Lightning: a LightningModule whose network is compiled, and one that is compiled as a whole.

python examples/07_lightning.py         (needs lightning)
"""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import compile_api

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Classifier(lightning.LightningModule):
    """Two classes from sixteen numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 2))
        self.losses: list[float] = []

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Scores of both classes."""
        return self.network(points)

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        """The loss of a batch."""
        points, labels = batch
        loss = nn.functional.cross_entropy(self(points), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One optimizer for everything."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(way: str) -> list[float]:
    """Trains for two epochs; returns the loss of every batch."""
    torch.manual_seed(0)
    points = torch.randn(256, 16)
    labels = (points[:, :2].prod(dim=1) > 0).long()
    module = Classifier()
    if way == "network":
        module.network = compile_api.compile(module.network)
    elif way == "forward":
        module.forward = compile_api.compile(module.forward)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=2,
        gradient_clip_val=1.0,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(points, labels), batch_size=32))
    return module.losses


def main() -> None:
    """Compares the losses of compiled runs with eager's."""
    eager = torch.tensor(train("eager"))
    for way in ("network", "forward"):
        compile_api.reset()
        torch.testing.assert_close(torch.tensor(train(way)), eager, atol=1e-4, rtol=1e-4)
        if compile_api.graph_count() == 0:
            raise SystemExit("nothing was compiled")
        print(f"{way} compiled: losses as eager's, {compile_api.graph_count()} graphs")


if __name__ == "__main__":
    main()
