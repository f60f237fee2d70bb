"""Entries on a shelf: written once their backward is there, or without it; faults of a shelf are survived."""

import threading

import pytest
import torch

import dynamo
from dynamo import shelved
from primtorch.serial import NotStorable


class Graph:
    """A compiled graph that can be stored, with a backward that comes later."""

    boxed = True

    def __init__(self, run, lazily):
        self.run = run
        self.then = None
        if lazily:
            self.when_complete = self.remember

    def remember(self, then):
        self.then = then

    def __call__(self, inputs):
        taken = list(inputs)
        inputs.clear()
        return self.run(*taken)


class Shelf:
    def __init__(self, fault=None):
        self.kept = {}
        self.told = []
        self.graphs = []
        self.fault = fault

    def key(self, code):
        return f"{code} {torch.backends.mkldnn.enabled}"

    def find(self, key):
        if self.fault == "find":
            raise OSError("the shelf is gone")
        return iter([(name, memoryview(c)) for (one, name), c in self.kept.items() if one == key])

    def keep(self, key, name, content):
        if self.fault == "keep":
            raise OSError("the shelf is full")
        name = name or f"n{len(self.kept)}"
        self.kept[(key, name)] = content
        return name

    def used(self, key, name):
        self.told.append(("used", name))

    def store_graph(self, compiled):
        if self.fault == "store":
            raise NotStorable("a graph of glass")
        return str(self.graphs.index(compiled)).encode()

    def restore_graph(self, content):
        return self.graphs[int(bytes(content))]

    def tell(self, function, outcome, why):
        self.told.append((outcome, why))


def compiled_with(shelf, function, *, lazily=False, strict=True):
    def backend(gm, inputs):
        graph = Graph(gm.forward, lazily)
        shelf.graphs.append(graph)
        return graph

    backend.symbolic = True
    options = dynamo.DynamoOptions(strict=strict)
    return dynamo.optimize(backend, options=options, shelf=shelf)(function)


def f(x):
    return x.sin() + 1


def test_an_entry_is_taken_from_the_shelf_instead_of_being_captured():
    shelf = Shelf()
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled_with(shelf, f)(x), f(x))
    assert len(shelf.graphs) == 1
    assert [outcome for outcome, _ in shelf.told] == ["kept", "used", "restored"]


def test_an_entry_with_a_backward_is_written_when_that_is_compiled():
    shelf = Shelf()
    compiled_with(shelf, f, lazily=True)(torch.randn(3))
    assert not shelf.kept
    shelf.graphs[0].then()
    assert len(shelf.kept) == 1


def test_an_entry_whose_backward_nobody_asks_for_is_written_without_it(monkeypatch):
    monkeypatch.setattr(shelved, "_PATIENCE", 0.05)
    shelf = Shelf()
    compiled_with(shelf, f, lazily=True)(torch.randn(3))
    for _ in range(100):
        if shelf.kept:
            break
        threading.Event().wait(0.05)
    assert len(shelf.kept) == 1
    shelf.graphs[0].then()
    assert len(shelf.kept) == 1  # in the place of the first


def test_an_entry_is_kept_under_what_it_was_made_in():
    """Also where torch's state is another by the time that the backward is there."""
    shelf = Shelf()
    compiled_with(shelf, f, lazily=True)(torch.randn(3))
    with torch.backends.mkldnn.flags(enabled=False):
        shelf.graphs[0].then()
    ((key, _name),) = shelf.kept
    assert key.endswith(str(torch.backends.mkldnn.enabled))


def test_what_cannot_be_stored_is_told():
    shelf = Shelf("store")
    compiled_with(shelf, f)(torch.randn(3))
    assert shelf.told == [("not kept", "a graph of glass")]


@pytest.mark.parametrize("fault", ["find", "keep"])
def test_a_fault_of_the_shelf_is_survived(fault, caplog):
    x = torch.randn(3)
    torch.testing.assert_close(compiled_with(Shelf(fault), f, strict=False)(x), f(x))
    assert "the shelf is" in caplog.text
    with pytest.raises(OSError, match="the shelf is"):
        compiled_with(Shelf(fault), f)(x)


def broken(x):
    x = x + 1
    print(end="")
    return sum(part.sum() for part in (x, x * 2))


def test_a_restored_entry_and_a_capture_go_on_through_one_function():
    """Else what follows a break is compiled for one size more: no history says that it varies."""
    shelf = Shelf()
    compiled_with(shelf, broken)(torch.randn(3))
    again = compiled_with(shelf, broken)
    before = len(shelf.graphs)
    for size in (3, 4, 5, 6):
        x = torch.randn(size)
        torch.testing.assert_close(again(x), broken(x))
    assert len(shelf.graphs) - before <= 3
    assert ("restored", "") in [(outcome, "") for outcome, _ in shelf.told]
