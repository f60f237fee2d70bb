"""What stands in for the frame hook where the C extension was not built: nothing is hooked.

Without the extension, frames that compiled code calls but did not inline run as they are. The same
names with an effect are in the extension (`_hook.c`). Invariant: a program's results do not depend
on which form is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FunctionType

    from dynamo.guards.dispatch import CodeCache

__all__ = ["FrameHook", "forget_codes", "hooked_cache", "is_hooked", "never_hook", "unhooked"]


class FrameHook:
    """`FrameHook(callback)(f, *args, **kwargs)` calls `f`, its Python frames hooked if that can be.

    The callback gets (function, argument slots, cache or None) of a frame that is about to run and
    for which no entry matches. It returns a CodeCache to look into, None to let frames of this code
    alone from now on, or False to let this one run. It is also a context manager, for the frames
    that start inside.
    """

    __slots__ = ("callback",)

    def __init__(
        self, callback: Callable[[FunctionType, tuple[Any, ...], CodeCache | None], Any]
    ) -> None:
        if not callable(callback):
            raise TypeError("the callback is called with (function, slots, cache)")
        self.callback = callback

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """The result of the call."""
        return function(*args, **kwargs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None


def unhooked(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `function` with the hook off in this thread."""
    return function(*args, **kwargs)


def never_hook(code: CodeType, /) -> None:
    """Run frames of this code as they are, for good."""


def hooked_cache(code: CodeType, /) -> CodeCache | bool | None:  # noqa: ARG001  # nothing is known
    """What is known of a code: its cache, False for one to let alone, None for one never seen."""
    return None


def forget_codes() -> None:
    """Ask the callback about every code object again."""


def is_hooked() -> bool:
    """Whether the hook is on in this thread."""
    return False
