"""The public face of inductor."""

import inductor


def test_every_public_name_exists() -> None:
    assert all(hasattr(inductor, name) for name in inductor.__all__)
