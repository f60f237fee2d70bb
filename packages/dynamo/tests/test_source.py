"""Sources spell, hash, compare and load as the paths they are."""

import copy
import pickle
import types

import pytest
import torch

from dynamo.guards.places import Places
from dynamo.source import (
    AttributeSource,
    ClosureSource,
    ConstantSource,
    DictKeySource,
    FunctionSource,
    GlobalSource,
    InstanceAttributeSource,
    ItemSource,
    LengthSource,
    LocalSource,
    ModuleMemberSource,
    Namespace,
    Scope,
    SizeSource,
    StorageOffsetSource,
    StrideSource,
    TypeSource,
    base_of,
    load_instructions,
    root_of,
    value,
)

SELF, X = LocalSource("self"), LocalSource("x")
LAYER = ModuleMemberSource(SELF, "_modules", "0")

SPELLINGS = {
    "x": X,
    "cell": ClosureSource("cell"),
    "torch": GlobalSource("torch"),
    "torch.nn.Linear": GlobalSource("Linear", Namespace(vars(torch.nn))),
    "<the compiled function>": FunctionSource(),
    "x.T": AttributeSource(X, "T"),
    "self.training": InstanceAttributeSource(SELF, "training"),
    "self[0].weight": ModuleMemberSource(LAYER, "_parameters", "weight"),
    "x['a'][0]": ItemSource(ItemSource(X, "a"), 0),
    "list(x)[2]": DictKeySource(X, 2),
    "type(x)": TypeSource(X),
    "len(x)": LengthSource(X),
    "x.size(1)": SizeSource(X, 1),
    "x.stride(0)": StrideSource(X, 0),
    "x.storage_offset()": StorageOffsetSource(X),
    "3": ConstantSource(3),
    "the list": ConstantSource([], "the list"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_source_is_spelled_as_the_user_would(spelling):
    source = SPELLINGS[spelling]
    assert source.name() == spelling
    assert hash(source) == hash(source)
    assert root_of(source) is source or base_of(source) is not None


def test_equal_paths_are_one_key():
    other = ModuleMemberSource(LocalSource("self"), "_modules", "0")
    assert other == LAYER
    assert hash(other) == hash(LAYER)
    assert ModuleMemberSource(SELF, "_modules", "1") != LAYER
    assert AttributeSource(X, "a") != InstanceAttributeSource(X, "a")
    assert ConstantSource([]) != ConstantSource([])
    shared = []
    assert ConstantSource(shared) == ConstantSource(shared, "other spelling")
    assert Namespace(vars(torch)) == Namespace(vars(torch))
    assert GlobalSource("nn") != GlobalSource("nn", Namespace(vars(torch)))


def test_a_slice_is_a_key():
    source = ItemSource(X, slice(0, 2))
    assert hash(source) == hash(source)
    assert value(source, Scope(None, {"x": [1, 2, 3]})) == [1, 2]


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_copies_are_equal(again):
    source = ItemSource(ModuleMemberSource(LAYER, "_parameters", "weight"), 1)
    assert again(source) == source
    assert hash(again(source)) == hash(source)


def test_members_of_a_module_share_the_place_of_their_table():
    places = Places()
    weight = places.of(ModuleMemberSource(LAYER, "_parameters", "weight"))
    bias = places.of(ModuleMemberSource(LAYER, "_parameters", "bias"))
    assert weight.base is bias.base
    assert weight.base.key == "_parameters"
    spelled_out = ItemSource(InstanceAttributeSource(LAYER, "_parameters"), "weight")
    assert places.of(spelled_out) is weight
    assert places.of(
        SizeSource(ModuleMemberSource(LAYER, "_parameters", "weight"), 0)
    ) is places.of(SizeSource(spelled_out, 0))


def test_a_running_function_cannot_load_itself():
    with pytest.raises(LookupError):
        load_instructions(FunctionSource())
    function = types.FunctionType((lambda: None).__code__, {})
    assert value(FunctionSource(), Scope(function, {})) is function
