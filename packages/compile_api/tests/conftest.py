"""Strict mode for every test; golden texts as plain files."""

import os

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

os.environ.setdefault("COMPILE_API_STRICT", "1")
os.environ.setdefault("COMPILE_API_ARTIFACTS", "0")  # tests of the cache turn it on for themselves


class TextExtension(SingleFileSnapshotExtension):
    """One readable text file for each golden."""

    file_extension = "txt"
    _write_mode = WriteMode.TEXT


@pytest.fixture
def golden(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    return snapshot.use_extension(TextExtension)


@pytest.fixture(autouse=True)
def fresh_state():
    """Each test compiles anew."""
    import compile_api

    yield
    compile_api.reset()
