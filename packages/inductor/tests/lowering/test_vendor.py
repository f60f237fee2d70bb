"""The declared list of what is left to the library: short, and with reasons."""

from inductor.lowering.registry import LOWERINGS, VENDOR


def test_the_list_is_short_and_says_why():
    assert len({operator.overloadpacket for operator in VENDOR}) <= 120
    assert all(len(reason.split()) >= 2 for reason in VENDOR.values())


def test_nothing_is_both_lowered_and_left_to_the_library():
    assert not VENDOR.keys() & LOWERINGS.keys()
