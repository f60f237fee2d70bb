"""Multi-head attention is captured as its operators, with attention one node that a backend can see."""

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


@pytest.mark.parametrize("training", [False, True])
def test_attention_stays_one_node(training):
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).train(training)
    mask = torch.ones(7, 7, dtype=torch.bool).triu(1)

    def attend(x):
        return layer(x, x, x, need_weights=False, attn_mask=mask)[0]

    x = torch.randn(2, 7, 32)
    with torch.set_grad_enabled(training):
        ours = dynamo.optimize(backend, fullgraph=True)(attend)(x)
        theirs = attend(x)
    torch.testing.assert_close(ours, theirs)
    (graph,) = graphs
    targets = [node.target for node in graph.graph.nodes]
    assert targets.count(torch.nn.functional.scaled_dot_product_attention) == 1
    assert torch.nn.functional.multi_head_attention_forward not in targets


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_causal_attention_over_sizes_that_vary(probability):
    counter = CompileCounter()

    def attend(q, k):
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, k, dropout_p=probability, is_causal=True
        )

    compiled = dynamo.optimize(counter, fullgraph=True)(attend)
    for length in (5, 7, 8, 6):
        q, k = torch.randn(2, 2, 3, length, 8)
        results = []
        for run in (attend, compiled):
            torch.manual_seed(length)
            results.append(run(q, k))
        torch.testing.assert_close(*results)
    reads_numbers = torch.__version__ < (2, 13) and probability  # its C++, of the mask it makes
    assert counter.frame_count <= (4 if reads_numbers else 2)
