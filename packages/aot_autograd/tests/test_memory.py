"""What is kept for the backward, and when it is let go."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

import aot_autograd


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def layers(x, *weights):
    for weight in weights:
        x = torch.nn.functional.gelu(x @ weight)
    return x


def cut_of(function, **options):
    cuts = []

    def partition(joint, **arguments):
        cuts.append(aot_autograd.min_cut_rematerialization_partition(joint, **arguments))
        return cuts[-1]

    compiled = aot_autograd.aot_function(
        function,
        lambda gm, _: aot_autograd.make_boxed_func(gm.forward),
        partition_fn=partition,
        options={"backward_worker": False, **options},
    )
    return compiled, cuts


def bytes_packed(call):
    seen = {}

    def pack(tensor):
        seen[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = call()
    total = sum(seen.values())
    del kept
    return total


def test_what_is_predicted_to_be_saved_is_saved():
    inputs = [leaf(16, 16), *[leaf(16, 16) for _ in range(4)]]
    eager = bytes_packed(lambda: layers(*inputs))
    measured = {}
    for budget in (1.0, 0.5):
        compiled, cuts = cut_of(layers, activation_memory_budget=budget)
        compiled(*inputs)
        measured[budget] = bytes_packed(lambda compiled=compiled: compiled(*inputs))
        predicted = aot_autograd.predicted_memory(cuts[0])
        assert predicted.saved == measured[budget]
        assert predicted.peak >= predicted.saved
    given = sum(value.numel() * 4 for value in inputs)
    assert measured[1.0] <= eager
    assert measured[0.5] - given <= (measured[1.0] - given) / 2


def peaks_of(function, *inputs):
    compiled, cuts = cut_of(function)
    compiled(*inputs)
    return aot_autograd.predicted_memory(cuts[0])


def test_a_peak_counts_what_is_written_and_views_once():
    # What stays inside of one kernel has no memory: the argument and the sum.
    assert peaks_of(lambda x: x.sin().view(-1).exp().sum(), leaf(8, 8)).forward_peak == 256 + 4
    # The argument, its sine, which the product reads, and the product, which its exponential is written over.
    predicted = peaks_of(lambda x: (x.sin().view(8, 8) @ x.sin()).exp(), leaf(8, 8))
    assert predicted.forward_peak == 3 * 256


def test_a_predicted_backward_is_that_of_the_losses():
    def function(x, w):
        y = x @ w
        return y.square().mean(), y

    predicted = peaks_of(function, leaf(64, 64), leaf(64, 64))
    # y saved and its gradient, then the gradients of both; no gradient of y comes from outside.
    size = 64 * 64 * 4
    assert 4 * size <= predicted.backward_peak <= 5 * size + 64


def test_a_budget_is_used_up_and_never_exceeded():
    inputs = [leaf(32, 32), *[leaf(32, 32) for _ in range(6)]]
    kept = []
    for step in range(21):
        compiled, cuts = cut_of(layers, activation_memory_budget=step / 20)
        compiled(*inputs)
        kept.append(aot_autograd.predicted_memory(cuts[0]).saved)
    assert kept == sorted(kept)
    size = 32 * 32 * 4
    for step, bytes_kept in enumerate(kept):
        # The inputs are kept whatever the budget is; nothing is left that another value would fit into.
        target = max(kept[0], step / 20 * kept[-1])
        assert target - size < bytes_kept <= target


def test_the_backward_owns_what_was_saved():
    freed = []

    def backward_compiler(gm, example_inputs):
        def run(args):
            taken = list(args)
            args.clear()
            references = [StorageWeakRef(value.untyped_storage()) for value in taken[2:-1]]
            gradients = gm.forward(*taken)
            taken.clear()
            freed.extend(reference.expired() for reference in references)
            return gradients

        run.boxed = True
        return run

    def function(x, w):
        return ((x @ w) @ w).sin()

    compiled = aot_autograd.aot_function(
        function, lambda gm, _: aot_autograd.make_boxed_func(gm.forward), backward_compiler
    )
    out = compiled(leaf(4, 4), leaf(4, 4)).sum()
    out.backward()
    assert freed
    assert all(freed)


def test_a_retained_graph_keeps_what_was_saved(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, w: ((x @ w) @ w).sin(), graph_runner)
    x = leaf(4, 4)
    out = compiled(x, leaf(4, 4)).sum()
    first = torch.autograd.grad(out, x, retain_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(out, x)[0], first)


def test_a_dropped_output_frees_everything(graph_runner):
    compiled = aot_autograd.aot_function(lambda x, w: ((x @ w) @ w).sin(), graph_runner)
    out = compiled(leaf(4, 4), leaf(4, 4))
    references = [StorageWeakRef(value.untyped_storage()) for value in out.grad_fn.saved_tensors]
    assert references
    del out
    assert all(reference.expired() for reference in references)


def test_rows_that_are_added_to_a_gradient_need_no_table_of_their_own():
    """A weight that is looked up in and multiplied by: its gradient is written once, rows are added to it."""
    positions = torch.tensor([1, 5, 5])
    size = 64 * 8 * 4

    def tied(weight, x):
        return (weight[positions].sin().sum() + (x @ weight.t()).square().sum()).clone()

    def twice(weight, x):
        return weight[positions].sin().sum() + weight[positions].cos().sum() + x.sum()

    def alone(weight, x):
        return weight[positions].sin().sum() + x.sum()

    arguments = leaf(64, 8), leaf(4, 8)
    # The table is the gradient; beside a product there are the weight and what is saved.
    assert 2 * size < peaks_of(tied, *arguments).backward_peak < 2.75 * size
    assert size < peaks_of(alone, *arguments).backward_peak < 1.25 * size
    assert size < peaks_of(twice, *arguments).backward_peak < 1.25 * size
