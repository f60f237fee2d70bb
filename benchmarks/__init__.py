"""Measurements beside eager and torch.compile; run with `sh ci/nox -s bench -- --help`."""
