"""Interval arithmetic on inclusive bounds of integers; None is unbounded."""

from __future__ import annotations

Bounds = tuple[int | None, int | None]


def multiply_bounds(left: Bounds, right: Bounds) -> Bounds:
    """Bounds of a product."""
    low, high = left
    other_low, other_high = right
    if low is not None and low >= 0 and other_low is not None and other_low >= 0:
        upper = None if high is None or other_high is None else high * other_high
        return (low * other_low, 0 if high == 0 or other_high == 0 else upper)
    if low is None or high is None or other_low is None or other_high is None:
        return (0, 0) if left == (0, 0) or right == (0, 0) else (None, None)
    corners = (low * other_low, low * other_high, high * other_low, high * other_high)
    return (min(corners), max(corners))


def floor_div_bounds(dividend: Bounds, divisor: Bounds) -> Bounds:
    """Bounds of a floor division; nothing is known for a divisor that may be negative."""
    small, large = divisor
    if small is None or small < 0:
        return (None, None)
    small = max(small, 1)  # a divisor of zero has no value to bound
    if large is not None and large < small:
        return (None, None)
    low, high = dividend
    if low is None:
        lower = None
    elif low >= 0:
        lower = 0 if large is None else low // large
    else:
        lower = low // small
    if high is None:
        upper = None
    elif high >= 0:
        upper = high // small
    else:
        upper = -1 if large is None else high // large
    return (lower, upper)
