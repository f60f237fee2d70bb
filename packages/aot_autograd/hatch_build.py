# ruff: noqa: INP001  # the build hook of this folder is in no package
"""Builds the C extension `aot_autograd._node`, if it can be built.

As a build hook of hatchling it puts the extension into the wheel, or beside the source for an editable install.
Without a compiler or Python's headers, or with AOT_AUTOGRAD_NO_EXTENSION set, the wheel is pure Python: a call with
gradients then costs a few microseconds more. Run as a script it builds beside the source. Torch is not needed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
FOLDER = ROOT / "src" / "aot_autograd"
SOURCES = ("_node.c", "_nodes.c")
SWITCH = "AOT_AUTOGRAD_NO_EXTENSION"  # set to build a pure wheel on purpose


class CannotBuild(Exception):  # not a fault: the pure form is the answer
    """The extension cannot be built here; the text says why."""


def build(folder: Path = FOLDER) -> Path:
    """Compile the sources, for the running interpreter, into `folder`.

    Raises:
        CannotBuild: there is no compiler, no headers, or it fails.
    """
    compiler = shlex.split(os.environ.get("CC") or "cc")
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        raise CannotBuild(f"Python's headers are not in {include}")
    out = folder / f"_node{sysconfig.get_config_var('EXT_SUFFIX')}"
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    flags = ["-shared", "-fPIC", "-std=gnu11", "-O2", "-Wall", "-fvisibility=hidden"]
    command = [
        *compiler,
        *flags,
        f"-I{include}",
        *[str(FOLDER / name) for name in SOURCES],
        "-o",
        str(temporary),
        "-ldl",
    ]
    try:  # the command is ours, but for the compiler that CC names
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise CannotBuild(f"{compiler[0]}: {error.strerror}") from error
    if done.returncode != 0:
        temporary.unlink(missing_ok=True)
        raise CannotBuild(done.stderr)
    if done.stderr:
        sys.stderr.write(done.stderr)
    temporary.replace(out)  # at once: another process may be importing it
    return out


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script
    pass
else:

    class ExtensionHook(BuildHookInterface):  # type: ignore[type-arg]
        """Adds the extension to a wheel."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
            """Build before hatchling collects files; leave the wheel pure if that fails."""
            if self.target_name != "wheel":
                return
            if os.environ.get(SWITCH):
                self.app.display_warning(f"aot_autograd: no C extension, {SWITCH} is set")
                return
            try:
                made = build()
            except CannotBuild as error:
                self.app.display_warning(
                    f"aot_autograd: no C extension, pure Python instead: {error}"
                )
                return
            build_data["artifacts"].append("/" + made.relative_to(ROOT).as_posix())
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

        def clean(self, versions: list[str]) -> None:  # noqa: ARG002
            """Remove what `initialize` made, for every interpreter."""
            for made in FOLDER.glob("_node*.so"):
                made.unlink()


if __name__ == "__main__":
    try:
        path = build()
    except CannotBuild as error:
        sys.exit(f"cannot build: {error}")
    sys.stdout.write(f"{path}\n")
