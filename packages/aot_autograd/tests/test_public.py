"""The public face of aot_autograd."""

import aot_autograd


def test_every_public_name_exists() -> None:
    assert all(hasattr(aot_autograd, name) for name in aot_autograd.__all__)
