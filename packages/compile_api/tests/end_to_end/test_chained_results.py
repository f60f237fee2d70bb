"""A loss and what it is made of, returned together: hooks, kept gradients, parts of a backward, through the stack."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

import compile_api

whole = partial(
    compile_api.compile, fullgraph=True, options={"strict": True, "fallback_random": True}
)


class Classifier(torch.nn.Module):
    """As models of text return it: logits, the states of all layers, and a loss of the logits."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(8, 8) for _ in range(3)])
        self.norm = torch.nn.LayerNorm(8)
        self.dropout = torch.nn.Dropout(0.2)

    def forward(self, tokens, labels):
        states = [self.embedding(tokens)]
        for layer in self.layers:
            states.append(self.dropout(F.gelu(layer(self.norm(states[-1])))) + states[-1])
        logits = F.linear(states[-1], self.embedding.weight)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits, "states": tuple(states)}


def retained(found, model):
    for one in (found["logits"], *found["states"]):
        one.retain_grad()
    found["loss"].backward()
    return [one.grad for one in (found["logits"], *found["states"])]


def hooked(found, model):
    seen = []
    found["logits"].register_hook(lambda gradient: seen.append(gradient) or gradient * 3)
    found["states"][1].register_hook(seen.append)
    found["states"][2].register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    found["loss"].backward()
    return seen


def in_two_parts(found, model):
    (at_logits,) = torch.autograd.grad(found["loss"], found["logits"])
    found["logits"].backward(at_logits)
    return [at_logits]


def of_states(found, model):
    states = found["states"]
    total = found["loss"] + states[2].square().mean()
    return list(torch.autograd.grad(total, [states[0], states[2], *model.layers.parameters()]))


def only_there(found, model):
    found["states"][1].retain_grad()
    found["loss"].backward(inputs=[found["states"][1], model.norm.weight])
    return [found["states"][1].grad]


def many_hooks(found, model):
    seen = []
    torch.autograd.graph.register_multi_grad_hook(
        [found["logits"], found["states"][2]], seen.extend
    )
    found["loss"].backward()
    return seen


def plain(found, model):
    found["loss"].backward()
    return []


def penalized(found, model):
    (at_logits,) = torch.autograd.grad(found["loss"], found["logits"], create_graph=True)
    (found["loss"] + at_logits.square().sum() * 10).backward()
    return [at_logits]


WAYS = (retained, hooked, in_two_parts, of_states, only_there, many_hooks, plain, penalized)


@pytest.mark.parametrize("way", WAYS)
def test_what_arrives_at_results(way):
    def run(wrap):
        torch.manual_seed(0)
        model = Classifier()
        called = wrap(model)
        left = []
        for rows in (2, 3, 5):  # symbolic from the second on
            torch.manual_seed(rows)
            tokens, labels = torch.randint(0, 11, (2, rows, 4))
            model.zero_grad()
            found = called(tokens, labels)
            left += way(found, model)
            left += [one.grad for one in model.parameters()]
        return left

    compile_api.reset()
    ours = run(whole)
    assert compile_api.graph_count() > 0
    torch.testing.assert_close(ours, run(lambda model: model), rtol=1e-4, atol=1e-5)
