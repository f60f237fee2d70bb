"""Compiles the Triton kernels of every prim and core ATen operator for a GPU that need not be here.

    python packages/inductor/tests/codegen/triton/compile_operators.py --target sm_90 --out kernels.jsonl

Triton's interpreter takes what its compiler refuses (a mask wider than its addresses), so that values alone don't vouch
for a kernel. A line for each operator is written as soon as its kernels are compiled; operators that are in the file
are left out, so that an interrupted run goes on. Ends with status 1 if a kernel was refused.
"""

import json
import sys
import tempfile
from pathlib import Path

import click
import torch

from inductor import InductorOptions
from inductor.devices.gpu import triton_source
from inductor.ir import Kernel
from inductor.pipeline import plan
from inductor.runtime.triton_build import TritonBuilder, TritonBuildError, TritonTarget
from primtorch import CORE_ATEN, PRIMS, check_backend


def kernels_of(operator, samples, target):
    """The distinct Triton sources that samples of an operator lead to on a card of a target."""
    found = {}
    options = InductorOptions(executor="triton_interpreter", gpu_target=target)

    def backend(graph, _inputs):
        graph.meta.setdefault("wire", 1)
        program = plan(graph, options)
        for step in program.schedule.steps:
            if isinstance(step, Kernel):
                source = triton_source(step, program.card)
                found[source.text] = source
        return graph.forward

    report = check_backend(backend, operators=[operator], samples=samples)
    refused = [failure for result in report.results for failure in result.failures]
    return list(found.values()), refused


@click.command()
@click.option("--target", default="sm_90", show_default=True, help="Or gfx942.")
@click.option("--out", type=click.Path(path_type=Path), required=True)
@click.option("--samples", default=2, show_default=True, help="Of an operator in a dtype.")
@click.option("--only", default="", help="Operators whose name contains this.")
def main(target: str, out: Path, samples: int, only: str) -> None:
    """Compile; say what was refused."""
    done = {}
    if out.exists():
        done = {row["operator"]: row for row in map(json.loads, out.read_text().splitlines())}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, out.open("a", encoding="utf-8") as file:
        builder = TritonBuilder(Path(folder), TritonTarget.named(target), processes=2)
        for operator in sorted(PRIMS | CORE_ATEN, key=str):
            if str(operator) in done or only not in str(operator):
                continue
            sources, refused = kernels_of(operator, samples, target)
            futures = [builder.submit(source, range(source.pointers)) for source in sources]
            for source, future in zip(sources, futures, strict=True):
                try:
                    future.result()
                except TritonBuildError as error:
                    refused.append(f"{error}\n{source.text}")
            row = {"operator": str(operator), "kernels": len(sources), "refused": refused}
            done[row["operator"]] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
        builder.close()
    bad = {name: row["refused"] for name, row in done.items() if row["refused"]}
    kernels = sum(row["kernels"] for row in done.values())
    print(
        f"{len(done)} operators, {kernels} kernels for {target}, refused for {len(bad)} operators"
    )
    for name, reasons in bad.items():
        print(f"{name}: {reasons[0][:600]}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
