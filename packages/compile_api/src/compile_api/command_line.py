"""The command line: `compile-api demo | doctor | explain | trace | bench | cache`.

In: arguments. Out: what was asked on stdout; progress and errors on stderr, so that `--json` can be
piped. Exit status 0, 1 for an error of ours (its message, no traceback), 2 for wrong usage.
"""

from __future__ import annotations

import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from compile_api.__about__ import __version__
from compile_api.errors import CompileApiError, InvalidArgument, nearest
from compile_api.options import cache_directory

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]


class _Commands(click.Group):
    """A group that names the nearest command, and shows our errors without a traceback."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as fault:
            best = nearest(args[0], self.list_commands(ctx))
            if best is not None:
                raise click.UsageError(f"{fault.message} Did you mean {best!r}?", ctx) from fault
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CompileApiError as fault:
            click.echo(f"error: {fault}", err=True)
            ctx.exit(1)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="compile-api")
def main() -> None:
    """Compile PyTorch programs, and see what became of them."""


@main.command()
@click.option("--model", default="bert", show_default=True, help="bert, gpt2 or resnet50.")
@click.option(
    "--device",
    default="cpu",
    show_default=True,
    help="cpu or cuda (which needs no GPU: then interpreted, small).",
)
@click.option("--compare", metavar="MODULE", help="Time MODULE.compile beside ours: torch.")
@click.option("--batch", default=1, show_default=True, type=click.IntRange(1))
@click.option("--length", default=128, show_default=True, type=click.IntRange(2))
@click.option("--layers", default=0, help="Fewer or more layers than the model has (12).")
@click.option("--hidden", default=0, help="Another hidden size (768), or image side (224).")
@click.option("--rounds", default=9, show_default=True, type=click.IntRange(3))
@click.option("--backend", default="inductor", show_default=True)
@click.option("--inference-only", is_flag=True, help="Leave the training step out.")
@click.option(
    "--warm", is_flag=True, help="Use the cache; without it, everything is compiled anew."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--markdown", is_flag=True, help="Print the table as the README shows it.")
def demo(
    model: str,
    device: str,
    compare: str | None,
    batch: int,
    length: int,
    layers: int,
    hidden: int,
    rounds: int,
    backend: str,
    *,
    inference_only: bool,
    warm: bool,
    as_json: bool,
    markdown: bool,
) -> None:
    """Compile a real model, check it against float64 eager, time it, print a table.

    With --device cuda where there is no GPU, a small configuration is run in Triton's interpreter and
    its kernels are compiled for sm_90; nothing is timed then.
    """
    import torch  # this and the models' imports take seconds

    from compile_api.demo.rehearsal import rehearse
    from compile_api.demo.run import Request, run_demo
    from compile_api.demo.subjects import Sizes
    from compile_api.demo.table import (
        rehearsal_table,
        report_json,
        report_markdown,
        report_table,
    )

    request = Request(
        model=model,
        device=device,
        sizes=Sizes(batch=batch, length=length, layers=layers, hidden=hidden),
        training=not inference_only,
        compare=compare,
        rounds=rounds,
        backend=backend,
    )
    with tempfile.TemporaryDirectory(prefix="compile_api_demo_") as fresh:
        if not warm:
            os.environ["COMPILE_API_CACHE_DIR"] = fresh
        if device.partition(":")[0] == "cuda" and not torch.cuda.is_available():
            rehearsal = _with_progress(lambda tell: rehearse(request, tell))
            _show(report_json(rehearsal) if as_json else rehearsal_table(rehearsal))
            return
        report = _with_progress(lambda tell: run_demo(request, tell))
    if as_json:
        _show(report_json(report))
    else:
        _show(report_markdown(report, compare) if markdown else report_table(report, compare))


def _show(what: Any) -> None:
    """Prints text as it is, and a table as wide as it needs to be where it goes to a file."""
    if isinstance(what, str):
        click.echo(what)
    else:
        Console(width=None if sys.stdout.isatty() else 190).print(what)


def _with_progress(work: Callable[[Callable[[str], None]], Any]) -> Any:
    """Runs long work with a line on stderr that says what goes on; plain lines where it's no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return work(lambda text: click.echo(f"  {text}", err=True))
    with console.status("starting") as status:
        return work(status.update)


@main.command()
def doctor() -> None:
    """Say what is here, what is slow or missing, and what mends it."""
    from compile_api.doctor import State, examine

    findings = examine()
    for finding in findings:
        click.echo(str(finding))
    if any(finding.state is State.MISSING for finding in findings):
        sys.exit(1)


@main.command()
@click.argument("target", metavar="FILE[:FUNCTION]")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Write a page.")
@click.option("--stages", type=click.Path(file_okay=False, path_type=Path), help="Write a folder.")
@click.option("--backend", default="inductor", show_default=True)
def explain(target: str, html: Path | None, stages: Path | None, backend: str) -> None:
    """Compile a function of a file and tell what became of it.

    The function is called without arguments; without a name it is `main`. What it calls is compiled
    with it.
    """
    from compile_api.explain import explain_call

    function = _load(target)
    found = explain_call(function, (), {}, backend=backend)
    click.echo(str(found))
    if html is not None:
        click.echo(f"page: {found.to_html(html)}")
    if stages is not None:
        click.echo(f"stages: {len(found.write(stages))} files in {stages}")


@main.command()
@click.argument("target", metavar="FILE[:FUNCTION]")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trace.json"),
    show_default=True,
    help="The trace's file.",
)
@click.option("--backend", default="inductor", show_default=True)
def trace(target: str, out: Path, backend: str) -> None:
    """Compile a function of a file and write what that took as a Chrome trace.

    Open the file in chrome://tracing or ui.perfetto.dev. A running program writes one with
    options={"trace": "trace.json"}.
    """
    from compile_api.explain import explain_call

    found = explain_call(_load(target), (), {}, backend=backend)
    for span in found.spans:
        about = f" {span.detail}" if span.detail else ""
        click.echo(f"{span.length / 1e3:9.1f} ms  {'  ' * span.depth}{span.name}{about}")
    click.echo(f"trace: {found.to_trace(out)}")


def _load(target: str) -> Callable[..., Any]:
    """Finds FILE:FUNCTION; runs the file as a module named otherwise than __main__."""
    path, _, name = target.rpartition(":")
    if not path:
        path, name = name, "main"
    file = Path(path)
    if not file.is_file():
        raise InvalidArgument(f"there is no file {path!r}")
    namespace = runpy.run_path(str(file), run_name=file.stem)
    functions = [key for key, value in namespace.items() if callable(value) and key[0] != "_"]
    if not callable(namespace.get(name)):
        best = nearest(name, functions)
        hint = f"\n  did you mean: {best!r}?" if best is not None else ""
        raise InvalidArgument(f"{path} has no function {name!r}{hint}")
    found: Callable[..., Any] = namespace[name]
    return found


@main.command()
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Run the benchmarks of the repository (from a clone)."""
    for folder in (Path.cwd(), *Path(__file__).resolve().parents):
        if (folder / "benchmarks" / "__main__.py").exists():
            sys.path.insert(0, str(folder))
            sys.argv = ["benchmarks", *arguments]
            runpy.run_module("benchmarks", run_name="__main__")
            return
    raise CompileApiError(
        "the benchmarks are part of the repository, not of the installed package\n"
        "  try: run this from a clone, or `compile-api demo`"
    )


@main.group()
def cache() -> None:
    """Look at the caches on disk, or clear them."""


@cache.command()
def info() -> None:
    """Say where the caches are and how large."""
    directory = cache_directory()
    files = [path for path in directory.rglob("*") if path.is_file()] if directory.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    click.echo(f"{directory}: {len(files)} files, {size / 1e6:.1f} MB")


@cache.command()
def clear() -> None:
    """Delete the caches; programs compile anew afterwards."""
    directory = cache_directory()
    if directory.is_dir():
        shutil.rmtree(directory)
    click.echo(f"{directory}: cleared")


if __name__ == "__main__":
    main()
