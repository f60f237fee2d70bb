"""Plain loops: gradient scaling, accumulation, activation checkpointing, worker processes that load data.

python examples/09_training_loops.py
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import compile_api


class Block(nn.Module):
    """A residual block; its activations may be computed again in the backward."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The input and what the layers make of it."""
        return hidden + self.layers(hidden)


class Network(nn.Module):
    """Some blocks between two linear layers."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 2)
        self.blocks = nn.ModuleList(Block(32) for _ in range(3))
        self.recompute = recompute

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Scores of both classes."""
        hidden = self.first(points)
        for block in self.blocks:
            hidden = (
                checkpoint(block, hidden, use_reentrant=False) if self.recompute else block(hidden)
            )
        return self.last(hidden)


def train(*, compiled: bool, recompute: bool, amp: bool) -> torch.Tensor:
    """Trains for one epoch with gradients accumulated over two batches; returns all losses."""
    torch.manual_seed(0)
    points = torch.randn(256, 16)
    labels = (points[:, :2].prod(dim=1) > 0).long()
    loader = DataLoader(TensorDataset(points, labels), batch_size=32, num_workers=1)
    model: nn.Module = Network(recompute=recompute)
    if compiled:
        model = compile_api.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=amp)
    losses = []
    for number, (batch, target) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            loss = nn.functional.cross_entropy(model(batch), target)
        scaler.scale(loss / 2).backward()
        if number % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


def main() -> None:
    """Compares the losses of compiled loops with eager's."""
    for recompute in (False, True):
        for amp in (False, True):
            compile_api.reset()
            eager = train(compiled=False, recompute=recompute, amp=amp)
            ours = train(compiled=True, recompute=recompute, amp=amp)
            tolerance = 3e-2 if amp else 1e-4
            torch.testing.assert_close(ours, eager, atol=tolerance, rtol=tolerance)
            if compile_api.graph_count() == 0:
                raise SystemExit("nothing was compiled")
            print(f"checkpointing {recompute}, mixed precision {amp}: losses as eager's")


if __name__ == "__main__":
    main()
