# ruff: noqa: INP001 - a build script, not a package
"""Builds the optional C extension with setuptools' compiler, inside hatchling or in place for development.

`python packages/inductor/hatch_build.py` leaves `_launch*.so` beside its sources. Without a compiler, or with
INDUCTOR_NO_EXTENSION set, the wheel is pure Python: graphs then run through the slower Python launcher.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # in-place development build: hatchling isn't needed
    BuildHookInterface = object

MODULE = "inductor.runtime._launch"
FOLDER = "src/inductor/runtime"
SOURCES = ("_launch.c", "_tensors.c", "_calls.c", "_set_up.c")
HEADER = "_launch.h"


def build(root: Path) -> Path:
    """Compile the extension beside its sources and return the library's path."""
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    extension = Extension(
        MODULE,
        [f"{FOLDER}/{source}" for source in SOURCES],
        depends=[f"{FOLDER}/{HEADER}"],
        extra_compile_args=["-O2", "-std=gnu11"],
        libraries=["dl"],
    )
    command = build_ext(Distribution({"name": "compile-api-inductor", "ext_modules": [extension]}))
    command.build_lib = str(root / "src")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        command.build_temp = scratch
        command.ensure_finalized()
        os.chdir(root)
        try:
            command.run()
        finally:
            os.chdir(before)
    return Path(command.get_ext_fullpath(MODULE)).resolve()


class LauncherBuildHook(BuildHookInterface):
    """hatchling's custom hook: adds the extension to the wheel when it can be built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build and register the library, or warn and stay pure Python."""
        del version
        if os.environ.get("INDUCTOR_NO_EXTENSION"):
            return
        root = Path(self.root)
        try:
            library = build(root)
        except Exception as error:  # noqa: BLE001 - whatever the compiler does, the package installs
            self.app.display_warning(
                f"the C launcher was not built ({error}); the Python launcher is used"
            )
            return
        build_data["artifacts"].append("/" + str(library.relative_to(root.resolve())))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def clean(self, versions: list[str]) -> None:
        """Remove what `initialize` made."""
        del versions
        for path in (Path(self.root) / FOLDER).glob("_launch*.so"):
            path.unlink()


if __name__ == "__main__":
    print(build(Path(__file__).resolve().parent))  # noqa: T201 - the command's result
