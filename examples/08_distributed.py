"""DistributedDataParallel on two processes (gloo): a compiled module inside, and compiled outside.

python examples/08_distributed.py
"""

import gc
import os
import socket

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import compile_api

WORLD = 2


def make() -> nn.Module:
    """The same small network in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def batches() -> list[torch.Tensor]:
    """Six batches for all processes together."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8 * WORLD, 16, generator=generator) for _ in range(6)]


def steps(model: nn.Module, rank: int | None) -> list[torch.Tensor]:
    """Trains on this process's part of each batch, or on all of it; returns the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches():
        part = batch if rank is None else batch.chunk(WORLD)[rank]
        optimizer.zero_grad()
        model(part).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def work(rank: int, port: int) -> None:
    """One process: trains in both ways and compares with one process that sees everything."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1")
    distributed.init_process_group("gloo", rank=rank, world_size=WORLD)
    alone = steps(make(), None)
    ways = {
        "the module inside is compiled": lambda: DistributedDataParallel(
            compile_api.compile(make())
        ),
        "the wrapped module is compiled": lambda: compile_api.compile(
            DistributedDataParallel(make())
        ),
    }
    for way, build in ways.items():
        compile_api.reset()
        for ours, wanted in zip(steps(build(), rank), alone, strict=True):
            torch.testing.assert_close(ours, wanted)
        if compile_api.graph_count() == 0:
            raise SystemExit("nothing was compiled")
        if rank == 0:
            print(f"{way}: parameters as those of one process, {compile_api.graph_count()} graphs")
    distributed.barrier()  # who leaves first would close the connection under the other
    gc.collect()  # the wrapped models hold the group, whose threads must end before the process does
    distributed.destroy_process_group()


def main() -> None:
    """Starts the processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(work, args=(port,), nprocs=WORLD)


if __name__ == "__main__":
    main()
