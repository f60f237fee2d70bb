"""A training loop: mixed precision, gradient accumulation, an optimizer and a scheduler.

python examples/02_training.py
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import compile_api


def main() -> None:
    """Trains a small classifier until it knows its data."""
    torch.manual_seed(0)
    points = torch.randn(256, 2)
    labels = (points[:, 0] * points[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(points, labels), batch_size=64, shuffle=True)

    model = nn.Sequential(
        nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2)
    )
    compiled = compile_api.compile(model)
    optimizer = torch.optim.AdamW(compiled.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
    for _epoch in range(40):
        for step, (batch, target) in enumerate(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(compiled(batch), target)
            (loss / 2).backward()
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
    compiled.eval()
    with torch.no_grad():
        accuracy = (compiled(points).argmax(dim=1) == labels).float().mean().item()
    if accuracy < 0.9:
        raise SystemExit(f"learnt too little: {accuracy:.2f}")
    print(f"accuracy {accuracy:.2f} with {compile_api.graph_count()} graphs")


if __name__ == "__main__":
    main()
