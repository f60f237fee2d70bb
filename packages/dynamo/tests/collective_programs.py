"""Programs with collectives, for the tests; as a program it runs them on several processes, eager beside compiled.

python collective_programs.py PROCESSES WHERE -> JSON: {rank: {name: "equal" or why not}}; WHERE is capture or whole
"""

import json
import multiprocessing
import sys
import tempfile
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.nn import functional as differentiable


def reduced(x):
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def gathered_and_scattered(x):
    whole = functional.all_gather_tensor(x.sin(), 0, dist.group.WORLD)
    return whole * 2, functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)


def reduced_in_place(x):
    y = x * 1
    dist.all_reduce(y)
    return y + 1


def reduced_argument(x):
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x * 2


def gathered_into(x):
    out = torch.empty(x.shape[0] * dist.get_world_size(), *x.shape[1:])
    dist.all_gather_into_tensor(out, x + dist.get_rank())
    return out * 2, out.sum(0)


def gathered_list(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x * (1 + dist.get_rank()))
    return torch.cat(parts), parts[0] + 1


def scattered(x):
    out = torch.empty(x.shape[0] // dist.get_world_size(), *x.shape[1:])
    dist.reduce_scatter_tensor(out, x.cos(), op=dist.ReduceOp.SUM)
    again = torch.empty_like(out)
    dist.reduce_scatter(again, list(x.chunk(dist.get_world_size())))
    return out.sin(), again


def broadcast(x):
    y = x + dist.get_rank()
    dist.broadcast(y, 0)
    return y * 3


def exchanged(x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x + dist.get_rank())
    return out + 1


def in_a_group(x, group):
    dist.all_reduce(x, group=group)
    return x + dist.get_world_size(group)


def reduced_gradient(x):
    return functional.all_reduce(x.sin(), "sum", dist.group.WORLD).pow(2)


def gathered_gradient(x):
    return functional.all_gather_tensor_autograd(x.sin(), 0, dist.group.WORLD).pow(2)


def scattered_gradient(x):
    return functional.reduce_scatter_tensor_autograd(x.sin(), "sum", 0, dist.group.WORLD).pow(2)


def differentiable_reduction(x):
    return differentiable.all_reduce(x.sin()).pow(2)


def tensor_parallel(x, up, down):
    """A column-parallel layer, then a row-parallel one."""
    hidden = torch.nn.functional.gelu(x @ up)
    return functional.all_reduce(hidden @ down, "sum", dist.group.WORLD).relu()


INFERENCE = (
    reduced, gathered_and_scattered, reduced_in_place, reduced_argument, gathered_into, gathered_list,
    scattered, broadcast, exchanged,
)  # fmt: skip
TRAINING = (reduced_gradient, gathered_gradient, scattered_gradient)


def start(rank, processes, path):
    warnings.simplefilter("ignore")
    store = dist.FileStore(path, processes) if path else dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes)


def waited(value):
    return value.wait() if isinstance(value, functional.AsyncCollectiveTensor) else value


def outcome(function, *others, seed=0, grad=False):
    """What a call leaves: outputs, gradients, arguments."""
    torch.manual_seed(seed)
    x = torch.randn(4, 4, requires_grad=grad)
    result = function(x, *others)
    outputs = [waited(one) for one in (result if isinstance(result, tuple) else (result,))]
    if grad:
        outputs[0].sum().backward()
        outputs.append(x.grad)
    return [*outputs, x]


def difference(function, compiled, *others, seed=0, grad=False):
    """None, or how two calls of the compiled function differ from eager."""
    want = outcome(function, *others, seed=seed, grad=grad)
    for _ in range(2):
        try:
            got = outcome(compiled, *others, seed=seed, grad=grad)
            for one, other in zip(want, got, strict=True):
                torch.testing.assert_close(other, one)
        except Exception:  # noqa: BLE001 - told to who asked
            return traceback.format_exc()
    return None


def _process(rank, processes, path, where, results):
    try:
        found = _found(rank, processes, path, where)
    except BaseException:
        results.put((rank, {"process": traceback.format_exc()}))
        raise
    results.put((rank, found))
    dist.barrier()
    dist.destroy_process_group()


def _found(rank, processes, path, where):
    start(rank, processes, path)
    if where == "capture":
        import dynamo

        wrap = dynamo.optimize("eager", fullgraph=True)
    else:
        import compile_api

        def wrap(function):
            return compile_api.compile(function, fullgraph=True, options={"strict": True})

    found = {}
    for function in (*INFERENCE, *TRAINING):
        why = difference(function, wrap(function), seed=rank, grad=function in TRAINING)
        found[function.__name__] = why or "equal"
    torch.manual_seed(rank)
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    found["tensor_parallel"] = (
        difference(tensor_parallel, wrap(tensor_parallel), *weights, grad=True) or "equal"
    )
    group = dist.new_group([0, 1] if processes > 1 else [0])
    found["in_a_group"] = difference(in_a_group, wrap(in_a_group), group, seed=rank) or "equal"
    return found


def main():
    processes, where = int(sys.argv[1]), sys.argv[2]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        running = [
            context.Process(
                target=_process, args=(rank, processes, f"{folder}/store", where, results)
            )
            for rank in range(processes)
        ]
        for process in running:
            process.start()
        try:
            found = dict(results.get(timeout=90) for _ in running)
        finally:
            for process in running:
                process.join(2)
                process.kill()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
