"""The public face of primtorch."""

import primtorch


def test_every_public_name_exists() -> None:
    assert all(hasattr(primtorch, name) for name in primtorch.__all__)
