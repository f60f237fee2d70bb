"""accelerate: mixed precision, gradient accumulation and clipping around a compiled model.

python examples/04_accelerate.py        (needs accelerate)
"""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import compile_api

STEPS = 4


def train(*, compiled: bool) -> list[float]:
    """Trains a small classifier for two epochs; returns the loss of every batch."""
    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=STEPS, cpu=True)
    points = torch.randn(256, 16)
    labels = (points[:, :2].prod(dim=1) > 0).long()
    model: nn.Module = nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 2)
    )
    if compiled:
        model = compile_api.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(points, labels), batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for _epoch in range(2):
        for batch, target in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(batch), target)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
    state = accelerator.get_state_dict(model)
    if any(name.startswith("_orig_mod") for name in state):
        raise SystemExit("the keys of the state have a prefix")
    return losses


def main() -> None:
    """Compares the losses of a compiled run with eager's."""
    eager, ours = train(compiled=False), train(compiled=True)
    if compile_api.graph_count() == 0:
        raise SystemExit("nothing was compiled")
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(eager), atol=2e-2, rtol=2e-2)
    print(
        f"loss {ours[0]:.3f} to {ours[-1]:.3f}, as eager's, with {compile_api.graph_count()} graphs"
    )


if __name__ == "__main__":
    main()
