"""Each package's notes of changes can be built into its changelog: a known kind, a text, a place to go."""

import tomllib
from pathlib import Path

import pytest

PACKAGES = sorted((Path(__file__).resolve().parents[2] / "packages").iterdir())


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_every_fragment_has_a_kind_and_a_text(package):
    settings = tomllib.loads((package / "pyproject.toml").read_text())["tool"]["towncrier"]
    kinds = {kind["directory"] for kind in settings["type"]}
    fragments = sorted((package / settings["directory"]).glob("*.md"))
    assert fragments
    strange = [path.name for path in fragments if path.name.split(".")[-2] not in kinds]
    empty = [path.name for path in fragments if not path.read_text().strip()]
    assert (strange, empty) == ([], [])
    assert "<!-- towncrier release notes start -->" in (package / settings["filename"]).read_text()
