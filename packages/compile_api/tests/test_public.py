"""The public face of compile_api."""

import compile_api


def test_every_public_name_exists() -> None:
    assert all(hasattr(compile_api, name) for name in compile_api.__all__)
