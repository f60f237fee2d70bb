"""Proves that this environment holds the named packages of ours and none of the others.

Usage: python ci/check_isolation.py [--installed] PACKAGE...
With --installed each package must come from an installed wheel, not from the source tree.
"""

import importlib
import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir() if path.is_dir())


def main(arguments: list[str]) -> int:
    """Returns 0 when the environment is as promised; else prints what is wrong, returns 1."""
    installed = "--installed" in arguments
    allowed = [name for name in arguments if not name.startswith("--")]
    faults = []
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if package not in allowed:
            if found is not None:
                faults.append(f"{package} is importable here ({found.origin}) and must not be")
            continue
        module = importlib.import_module(package)  # noqa: TID251 - the names are arguments
        origin = Path(str(module.__file__)).resolve()
        from_tree = origin.is_relative_to(ROOT / "packages")
        if from_tree == installed:
            wanted = "a wheel" if installed else "this tree"
            faults.append(f"{package} comes from {origin}, not from {wanted}")
        missing = [name for name in module.__all__ if not hasattr(module, name)]
        if missing:
            faults.append(f"{package}.__all__ names what it does not have: {', '.join(missing)}")
    for fault in faults:
        print(f"isolation: {fault}")
    if not faults:
        print(f"isolation: {', '.join(allowed)} and no other of ours")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.path = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    sys.exit(main(sys.argv[1:]))
