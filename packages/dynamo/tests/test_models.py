"""Small transformers models in one graph, inference and training, with eager's values and gradients."""

import copy

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

transformers = pytest.importorskip("transformers")
STRICT = dynamo.DynamoOptions(strict=True)


def bert():
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=100,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=32,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


@pytest.mark.parametrize("build", [bert, gpt2])
@pytest.mark.parametrize("training", [False, True])
def test_one_graph(build, training):
    torch.manual_seed(0)
    model = build().train(training)
    reference = copy.deepcopy(model)
    tokens = torch.randint(0, 100, (2, 16))
    arguments = {"input_ids": tokens, "labels": tokens} if training else {"input_ids": tokens}
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(model)
    with torch.set_grad_enabled(training):
        for _ in range(2):
            found, expected = compiled(**arguments), reference(**arguments)
            assert type(found) is type(expected)
            assert list(found) == list(expected)
            assert torch.equal(found.logits, expected.logits)
    assert counter.frame_count == 1
    if training:
        found.loss.backward()
        expected.loss.backward()
        for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)


def test_growing_cache_compiles_twice():
    torch.manual_seed(0)
    model = gpt2().eval()
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, options=STRICT)(model)
    tokens = torch.randint(0, 100, (1, 4))
    with torch.no_grad():
        for length in (4, 6, 9, 12):
            tokens = torch.randint(0, 100, (1, length))
            found = compiled(input_ids=tokens, use_cache=False).logits
            assert torch.allclose(found, model(input_ids=tokens, use_cache=False).logits, atol=1e-5)
    assert counter.frame_count <= 2


class WithLoss(torch.nn.Module):
    def forward(self, x):
        return torch.nn.MSELoss()(x, x * 2)  # a module made while capturing


def test_a_module_is_made_in_the_graph_after_torchs_compiler_was_used():
    x = torch.arange(3.0)
    torch.compile(torch.nn.Identity(), backend=lambda graph, _inputs: graph.forward)(x)
    counter = CompileCounter()
    compiled = dynamo.optimize(counter, fullgraph=True, options=STRICT)(WithLoss())
    torch.testing.assert_close(compiled(x), WithLoss()(x))
    assert counter.frame_count == 1
