# ruff: noqa: ARG001 - one signature for all rules
"""Weak references and proxies: made in a call, or met in it.

What they refer to is there while the program holds it; an object from outside is held by whoever gave it. A proxy
hands attributes on to its referent. Invariant: a reference is followed only to what is alive in eager at that
moment, else the graph breaks.
"""

from __future__ import annotations

import types
import weakref
from typing import TYPE_CHECKING, Any

from dynamo.errors import BreakReason, GraphBreak
from dynamo.guards import GuardKind
from dynamo.source import AttributeSource, ReferentSource
from dynamo.values import attributes
from dynamo.values.lifetimes import is_held
from dynamo.values.rules import rule
from primtorch.fake import FakeTensor

if TYPE_CHECKING:
    from dynamo.machine.interpreter import Machine
    from dynamo.source import Source
    from dynamo.values.session import Session

__all__ = ["PROXIES", "CalledBack", "behind_proxy", "proxy_from_outside", "referent"]

PROXIES: tuple[type, ...] = (weakref.ProxyType, weakref.CallableProxyType)
# What a class may define beside operators, which a proxy would call unseen.
_HARMLESS = frozenset(
    {
        "__init__", "__new__", "__repr__", "__str__", "__getattr__", "__setattr__", "__delattr__",
        "__call__", "__init_subclass__", "__class_getitem__", "__getstate__", "__setstate__",
        "__dir__", "__hash__", "__del__", "__post_init__", "__reduce__", "__reduce_ex__",
    }
)  # fmt: skip


class CalledBack(weakref.ref[Any]):
    """A weak reference with a callback, which is not called while capturing."""

    __slots__ = ("callback",)

    callback: Any


def _made_here(machine: Machine, target: Any) -> bool:
    session = machine.session
    return session.is_created(target) or (
        isinstance(target, FakeTensor) and not session.recorder.is_input(target)
    )


def _alive(machine: Machine, target: Any) -> Any:
    if _made_here(machine, target) and not is_held(machine, target):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_VALUE,
            "a weak reference is followed to an object that may be gone",
        )
    return target


def referent(machine: Machine, reference: Any) -> Any:
    """What a weak reference refers to; one from outside is the same object in every call that fits."""
    session = machine.session
    if session.is_created(reference):
        return _alive(machine, reference())
    return session.wrap(reference(), ReferentSource(session.known_source(reference)))


@rule(weakref.ref)
def _reference(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    target, *callback = args
    if not callback or callback[0] is None:
        return machine.session.created(weakref.ref(target))
    if _made_here(machine, target):
        raise GraphBreak(
            BreakReason.UNSUPPORTED_CALL, "a callback waits for the end of an object made here"
        )
    made = CalledBack(target)
    made.callback = callback[0]
    return machine.session.created(made)


# -- proxies -------------------------------------------------------------------------------------------


def _require_plain(target: Any) -> None:
    if isinstance(target, FakeTensor):
        return
    for base in type(target).__mro__:
        for name, value in vars(base).items():
            if (
                name.startswith("__")
                and type(value) is types.FunctionType
                and name not in _HARMLESS
                and not base.__module__.startswith("torch.nn.")
            ):
                raise GraphBreak(
                    BreakReason.UNSUPPORTED_CALL, f"a proxy stands for an object with {name}"
                )


@rule(weakref.proxy)
def _proxy(machine: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1:
        raise GraphBreak(BreakReason.UNSUPPORTED_CALL, "a proxy with a callback is made")
    _require_plain(args[0])
    session = machine.session
    made = session.created(weakref.proxy(args[0]))
    session.proxies[id(made)] = args[0]
    return made


def proxy_from_outside(session: Session, proxy: Any, source: Source) -> Any:
    """A proxy that existed before: itself, with its referent found through it."""
    session.guard(GuardKind.TYPE, source, type(proxy))
    session.remember(proxy, source)
    try:
        target = proxy.__init__.__self__
    except ReferenceError:
        raise session.refuse(f"what {source.name()} stands for is gone") from None
    _require_plain(target)
    way = AttributeSource(AttributeSource(source, "__init__"), "__self__")
    session.proxies[id(proxy)] = session.wrap(target, way)
    return proxy


def behind_proxy(machine: Machine, proxy: Any) -> Any:
    """The object that a proxy stands for."""
    target = machine.session.proxies[id(proxy)]
    return _alive(machine, target) if machine.session.is_created(proxy) else target


def _attribute(machine: Machine, owner: Any, name: str) -> Any:
    return attributes.load(machine, behind_proxy(machine, owner), name)


for _kind in PROXIES:
    attributes.register_loader(_kind, _attribute)
