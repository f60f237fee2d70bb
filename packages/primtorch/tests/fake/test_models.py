"""A transformer traces forward and backward by shape rules alone, fast, with few guards."""

from __future__ import annotations

import collections
import time

import pytest
import torch
from torch import nn

from primtorch.fake import RULES, FactoryMode, ShapeContext, fakeify, schema_of
from primtorch.symbolic import SizeEnvironment


class Counting(ShapeContext):
    """Counts operators, and those without a rule."""

    __slots__ = ("count", "without_rule")

    def __init__(self, environment=None) -> None:
        super().__init__(environment)
        self.count = 0
        self.without_rule = collections.Counter()

    def handle(self, op, args, kwargs):
        self.count += 1
        if op not in RULES and not schema_of(op).is_mutable:
            self.without_rule[str(op)] += 1
        return super().handle(op, args, kwargs)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.first = nn.LayerNorm(width)
        self.second = nn.LayerNorm(width)

    def forward(self, x, mask):
        batch, tokens, width = x.shape
        parts = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        h = nn.functional.scaled_dot_product_attention(q, k, v, mask)
        h = self.out(h.transpose(1, 2).reshape(batch, tokens, width))
        x = self.first(x + nn.functional.dropout(h, 0.1))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Model(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32)
        self.places = nn.Embedding(64, 32)
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(layers))
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        tokens = ids.size(1)
        mask = torch.ones(tokens, tokens, dtype=torch.bool, device=ids.device).tril()
        x = self.words(ids) + self.places(torch.arange(tokens, device=ids.device))
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(x)[:, :-1]
        return nn.functional.cross_entropy(logits.reshape(-1, 50), ids[:, 1:].reshape(-1))


def trace(model, ids, *, symbolic):
    environment = SizeEnvironment() if symbolic else None
    context = Counting(environment)
    weights = {name: fakeify(value, context) for name, value in model.named_parameters()}
    shape = None
    if environment is not None:
        batch, tokens = ids.shape
        shape = (environment.create_size("b", batch), environment.create_size("t", tokens))
    fake = fakeify(ids, context, shape=shape)
    with torch.autograd.set_multithreading_enabled(False), FactoryMode(context):
        loss = torch.func.functional_call(model, weights, (fake,))
        grads = torch.autograd.grad(loss, list(weights.values()))
    return context, grads


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_transformer_traces_by_rules_alone(symbolic) -> None:
    model, ids = Model(2), torch.randint(0, 50, (3, 12))
    context, grads = trace(model, ids, symbolic=symbolic)
    expected = torch.autograd.grad(model(ids), list(model.parameters()))
    for got, want in zip(grads, expected, strict=True):
        assert (got.shape, got.stride(), got.dtype) == (want.shape, want.stride(), want.dtype)
    assert context.without_rule == {}
    if symbolic:
        guards = [guard.predicate.text for guard in context.environment.guards]
        # The labels are shifted by one, and a size of one is another program.
        assert guards == ["t != 2"]


@pytest.mark.parametrize(("symbolic", "limit"), [(False, 100e-6), (True, 300e-6)])
def test_time_per_operator(symbolic, limit) -> None:
    model, ids = Model(6), torch.randint(0, 50, (3, 12))
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        context, _ = trace(model, ids, symbolic=symbolic)
        best = min(best, (time.process_time() - start) / context.count)
    assert best < limit
