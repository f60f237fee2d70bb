"""How often a program is compiled while its sizes and numbers change: what text models and caches need."""

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter, same

transformers = pytest.importorskip("transformers")
STRICT = dynamo.DynamoOptions(strict=True)
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}


def compiled_with(function):
    counter = CompileCounter()
    return counter, dynamo.optimize(counter, options=STRICT)(function)


def model_of(kind, window=32):
    torch.manual_seed(0)
    match kind:
        case "bert":
            config = transformers.BertConfig(**SMALL)
            return transformers.BertForMaskedLM(config).eval()
        case "gpt2":
            config = transformers.GPT2Config(
                n_embd=16,
                n_layer=1,
                n_head=2,
                vocab_size=40,
                n_positions=64,
                bos_token_id=0,
                eos_token_id=0,
            )
            return transformers.GPT2LMHeadModel(config).eval()
        case "llama":
            config = transformers.LlamaConfig(**SMALL, num_key_value_heads=1)
            return transformers.LlamaForCausalLM(config).eval()
        case "mistral":
            config = transformers.MistralConfig(
                **SMALL, num_key_value_heads=1, sliding_window=window
            )
            return transformers.MistralForCausalLM(config).eval()


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "mistral"])
def test_five_batches_of_five_lengths_are_compiled_twice(kind):
    model = model_of(kind)
    counter, compiled = compiled_with(model)
    with torch.no_grad():
        for batch in (2, 3, 4, 5, 8):
            for length in (8, 9, 12, 7, 16):
                tokens = torch.randint(0, 40, (batch, length))
                found = compiled(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
                expected = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
                torch.testing.assert_close(found, expected)
    assert counter.frame_count == 2


def decoded(model, steps=9):
    tokens, cache, logits = torch.arange(5)[None], None, []
    with torch.no_grad():
        for _ in range(steps):
            result = model(input_ids=tokens, past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            logits.append(result.logits[:, -1])
            tokens = logits[-1].argmax(-1, keepdim=True)
    return torch.cat(logits)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "mistral"])
def test_decoding_with_a_cache_that_grows_is_compiled_twice(kind):
    model = model_of(kind)
    counter, compiled = compiled_with(model)
    torch.testing.assert_close(decoded(compiled), decoded(model))
    assert counter.frame_count == 2


def test_decoding_past_a_sliding_window_comes_to_rest():
    """The prompt, before the window is full, as it fills, and from then on: a cache of another layout."""
    model = model_of("mistral", window=8)
    counter, compiled = compiled_with(model)
    torch.testing.assert_close(decoded(compiled, 16), decoded(model, 16))
    assert counter.frame_count <= 4
    before = counter.frame_count
    torch.testing.assert_close(decoded(compiled, 24), decoded(model, 24))
    assert counter.frame_count == before


class Window(torch.nn.Module):
    """Keeps the last tokens: the first calls make the cache longer, later ones cut it out of a longer one."""

    def __init__(self, *, listed):
        super().__init__()
        self.listed = listed
        self.keys = torch.zeros(2, 3, 4)
        self.layers = [torch.zeros(2, 3, 4)]

    def forward(self, x):
        if self.listed:
            whole = torch.cat([self.layers[0], x], 1)
            self.layers[0] = whole[:, -8:]
        else:
            whole = torch.cat([self.keys, x], 1)
            self.keys = whole[:, -8:]
        return whole.sum(1)


@pytest.mark.parametrize("listed", [False, True])
def test_a_cache_that_the_call_replaces_is_symbolic_from_the_start(listed):
    """One graph while the window fills, one when it is full, though the cache has other strides from then on."""
    model, expected = Window(listed=listed), Window(listed=listed)
    counter, compiled = compiled_with(model)
    for _ in range(12):
        x = torch.randn(2, 1, 4)
        torch.testing.assert_close(compiled(x), expected(x))
        assert model.keys.stride() == expected.keys.stride()
        assert model.layers[0].stride() == expected.layers[0].stride()
    assert counter.frame_count == 2


def test_what_is_replaced_and_never_read_stays_static():
    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.zeros(2)

        def forward(self, x):
            self.last = x * 2
            return self.last

    counter, compiled = compiled_with(Last())
    assert same(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert all(
        type(size) is int
        for node in counter.graphs[0].graph.find_nodes(op="placeholder")
        for size in node.meta["val"].shape
    )


class Counting(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.calls = start

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def in_a_cell(start):
    calls = start

    def function(x):
        nonlocal calls
        calls = calls + 1
        return x * calls

    return function


CALLS = 0


def in_a_global(start):
    globals()["CALLS"] = start

    def function(x):
        global CALLS  # noqa: PLW0603
        CALLS += 1
        return x * CALLS

    return function


def in_a_dict(start):
    counts = {"calls": start}

    def function(x):
        counts["calls"] += 1
        return x * counts["calls"]

    return function


@pytest.mark.parametrize("start", [0, 1, 7])
@pytest.mark.parametrize("make", [Counting, in_a_cell, in_a_global, in_a_dict])
def test_a_number_that_the_call_changes_is_symbolic_from_the_start(make, start):
    counter, compiled = compiled_with(make(start))
    x = torch.randn(3)
    for call in range(1, 6):
        assert same(compiled(x), x * (start + call))
    assert counter.frame_count == 1


def test_a_number_that_is_set_once_is_compiled_for_each_branch():
    class Lazy(torch.nn.Module):
        width = 0

        def __init__(self):
            super().__init__()
            self.width = 0

        def forward(self, x):
            if self.width == 0:
                self.width = 4
            return x * self.width

    counter, compiled = compiled_with(Lazy())
    x = torch.randn(3)
    for _ in range(4):
        assert same(compiled(x), x * 4)
    assert counter.frame_count == 2


def test_channels_of_images_stay_constants_while_batches_vary():
    counter, compiled = compiled_with(torch.nn.Conv2d(3, 4, 3))
    with torch.no_grad():
        for batch in (2, 3, 5):
            assert compiled(torch.randn(batch, 3, 8, 8)).shape == (batch, 4, 6, 6)
    assert counter.frame_count == 2
    (x,) = [
        node.meta["val"]
        for node in counter.graphs[1].graph.find_nodes(op="placeholder")
        if node.meta["input"]["kind"] == "argument"
    ]
    assert isinstance(x.shape[0], torch.SymInt)
    assert all(type(size) is int for size in x.shape[1:])
