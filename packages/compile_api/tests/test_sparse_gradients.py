"""Embeddings with sparse gradients train as in eager: the compiled backward makes their indices and values."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import compile_api

INDEX = torch.tensor([[1, 2, 2], [0, 5, 1]])
OFFSETS = torch.tensor([0, 2, 2])


def once(weight, other):
    return (F.embedding(INDEX, weight, sparse=True) @ other).sin()


def padded(weight, other):
    return F.embedding(INDEX, weight, padding_idx=2, sparse=True) @ other


def twice(weight, other):
    kept = F.embedding(INDEX, weight, sparse=True) * 2
    return kept @ other + (F.embedding(INDEX[0], weight, sparse=True) @ other).cos()


def bag(weight, other):
    return F.embedding_bag(INDEX.flatten(), weight, OFFSETS, mode="sum", sparse=True) @ other


def mean_bag(weight, other):
    return F.embedding_bag(INDEX, weight, mode="mean", sparse=True) @ other


def scaled(weight, other):
    return F.embedding(INDEX, weight, scale_grad_by_freq=False, sparse=True).relu() @ other.relu()


@pytest.mark.parametrize("function", [once, twice, scaled, padded, bag, mean_bag])
def test_gradients(function):
    whole = function in (
        once,
        twice,
        scaled,
    )  # of others only the data tells how long the gradient is
    compiled = compile_api.compile(function, fullgraph=whole, options={"strict": True})
    for call in range(3):
        results = []
        for run in (function, compiled):
            torch.manual_seed(call)
            weight, other = torch.randn(6, 4, requires_grad=True), torch.randn(4, 3)
            other.requires_grad_()
            output = run(weight, other)
            output.square().sum().backward()
            assert weight.grad.layout is torch.sparse_coo
            results.append((output, weight.grad.coalesce(), other.grad))
        torch.testing.assert_close(*results)


def test_training_with_a_sparse_optimizer():
    losses = []
    for compiles in (False, True):
        torch.manual_seed(0)
        embedding, head = torch.nn.Embedding(20, 4, sparse=True), torch.nn.Linear(4, 2)
        run = model = torch.nn.Sequential(embedding, torch.nn.Flatten(), head)
        if compiles:
            run = compile_api.compile(model, options={"strict": True})
        optimizers = [
            torch.optim.SparseAdam(embedding.parameters()),
            torch.optim.SGD(head.parameters()),
        ]
        for _ in range(4):
            loss = run(torch.randint(20, (5,))).square().mean()
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[:4], losses[4:])


def test_a_weight_that_is_dense_elsewhere_is_left_to_eager():
    def tied(weight, other):
        return F.embedding(INDEX, weight, sparse=True).sum(1) @ weight.T + other.sum()

    compiled = compile_api.compile(tied, options={"strict": False})
    results = []
    for run in (tied, compiled):
        torch.manual_seed(0)
        weight, other = torch.randn(6, 4, requires_grad=True), torch.randn(4, 3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = run(weight, other)
        output.sum().backward()
        results.append((output, weight.grad))
    torch.testing.assert_close(*results)
