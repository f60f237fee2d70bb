"""The public face of dynamo."""

import dynamo


def test_every_public_name_exists() -> None:
    assert all(hasattr(dynamo, name) for name in dynamo.__all__)
