"""Settings for every test of every package: hypothesis profiles, one OpenMP thread unless told."""

import os
import random
import sys

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import hypothesis
except ImportError:  # a session without property tests
    pass
else:
    # every run of the default profile tries the same examples: a change is what makes a test fail
    hypothesis.settings.register_profile(
        "default", deadline=None, print_blob=True, derandomize=True
    )
    hypothesis.settings.register_profile("long", deadline=None, print_blob=True, max_examples=5000)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def _same_numbers_in_every_run() -> None:
    """A test that fails by chance would tell nothing of the change that it was run for."""
    random.seed(0)
    torch = sys.modules.get("torch")  # the bytecode tests run without it
    if torch is not None:
        torch.manual_seed(0)
