"""What an FX node's tensor is while lowering: memory with a layout, or a function of coordinates.

A `Value` is *stored* (it has a `View`) or *computed* (it has a function that records the scalar at
given coordinates). `Builder.realize` turns a computed value into a stored one in place, so that
whoever refers to it reads memory from then on. Views of computed values keep their base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inductor.ir.index import linear_index

if TYPE_CHECKING:
    import torch

    from inductor.ir.nodes import Origin, View
    from inductor.ir.operations import Size
    from inductor.ir.recorder import Recorder, Scalar

Coordinates = tuple["Size", ...]
LoadFunction = Callable[["Recorder", "Coordinates"], "Scalar"]
ViewFunction = Callable[["View"], "View | None"]


@dataclass(slots=True, eq=False)
class Value:
    """A tensor while lowering.

    Fields:
        shape, dtype, device: as in eager (dtype may be a half type; loads give float32).
        view: where it is stored, or None.
        function: how an element is computed; None when stored.
        operations: weighted count of scalar operations for one element.
        loads: count of memory reads for one element.
        traffic: bytes read for one element, operands that are spread over it left out; None unless
            known.
        stride: the strides that eager's result has, a hint for the layout when stored.
        base, window: this is a view of `base`; `window` gives its `View` from the base's, or None
            where strides can't express it.
        origin: the graph node that it is the result of, None where it is part of one.
        whole: the window shows every element of the base, so storing the base wastes nothing.
        number: a Python number that varies, which a library's operator takes as a number.
    """

    shape: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    view: View | None = None
    function: LoadFunction | None = None
    operations: int = 0
    loads: int = 1
    traffic: int | None = None
    stride: tuple[Size, ...] | None = None
    base: Value | None = None
    window: ViewFunction | None = None
    whole: bool = True
    number: bool = False
    origin: Origin | None = None

    def load(self, recorder: Recorder, coordinates: Coordinates) -> Scalar:
        """Record the element at `coordinates`; half types as float32."""
        view = self.view
        if view is not None:
            index = linear_index(coordinates, view.stride, view.offset)
            return recorder.load(view.buffer, index, view.dtype)
        assert self.function is not None, "a value is stored or computed"
        return self.function(recorder, coordinates)

    def traffic_within(self, shape: Sequence[Size]) -> int | None:
        """Bytes read for one element of a result of this shape that this is an operand of."""
        missing = len(shape) - len(self.shape)
        if missing or any(
            mine == 1 and extent != 1 for mine, extent in zip(self.shape, shape, strict=True)
        ):
            return 0
        if self.view is None:
            return self.traffic
        spread = any(
            step == 0 and extent != 1
            for step, extent in zip(self.view.stride, self.shape, strict=True)
        )
        return 0 if spread else self.dtype.itemsize

    @property
    def stored(self) -> bool:
        """Whether it lies in memory."""
        return self.view is not None

    @property
    def is_view(self) -> bool:
        """Whether it shows another value."""
        return self.base is not None
