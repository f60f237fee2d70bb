"""Random programs do the same compiled: values, side effects in order, exceptions.

`nox -s random_programs` runs thousands.
"""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from random_programs import difference

CHUNK = 10


@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_programs_do_the_same(first):
    for seed in range(first, first + CHUNK):
        text = difference(seed)
        assert not text, text
