"""The arena of small buffers ends with the last of them, and what is needed late doesn't keep it."""

import torch

from inductor.schedule.memory import ALIGNMENT, buffer_size


def widths(x, *weights):
    """Small rows, which lie in the arena, before a product that is most of what is held."""
    *narrow, wide = weights
    for weight in narrow:
        parts = [torch.softmax(x * (k + 1), -1) for k in range(6)]
        x = torch.stack(parts).sum(0) @ weight
    return torch.softmax(x, -1) @ wide


def test_what_the_worst_moment_needs_is_kept_out_of_the_arena(compare):
    x = torch.randn(16, 64)
    weights = [torch.randn(64, 64), torch.randn(64, 64), torch.randn(64, 3000)]
    program = compare(widths, x, *weights, tolerance=1e-3)
    memory, steps = program.memory, program.schedule.steps
    assert memory.arena_bytes > 0
    assert memory.arena_until < len(steps) - 1
    last = steps[-1]
    assert all(memory.places[name].kind != "arena" for name in last.reads)


def test_an_arena_that_is_needed_at_the_worst_moment_stays_as_it_is(compare):
    def few(x, weight):
        return torch.softmax(x, -1) @ weight

    program = compare(few, torch.randn(16, 64), torch.randn(64, 3000), tolerance=1e-3)
    (inside,) = [n for n, place in program.memory.places.items() if place.kind == "arena"]
    assert program.memory.arena_bytes == buffer_size(program.graph.buffers[inside])
    assert program.memory.arena_bytes % ALIGNMENT == 0
    assert program.memory.arena_until == len(program.schedule.steps) - 1
