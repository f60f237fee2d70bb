"""Tensors without data, and the shape rules that say what operators return.

`fakeify` makes a `FakeTensor` of a real one; operators on it are handed to its `FakeContext`.
`infer` is the same knowledge without tensors. Importing this package fills the table of shape
rules.
"""

from primtorch.fake import rules
from primtorch.fake.context import FactoryMode, FakeMode, ShapeContext
from primtorch.fake.infer import infer
from primtorch.fake.meta import TensorMeta
from primtorch.fake.registry import RULES, Schema, functional_form, schema_of, shape_rule
from primtorch.fake.tensor import FakeContext, FakeTensor, Storage, fakeify, meta_of

__all__ = [
    "RULES",
    "FactoryMode",
    "FakeContext",
    "FakeMode",
    "FakeTensor",
    "Schema",
    "ShapeContext",
    "Storage",
    "TensorMeta",
    "fakeify",
    "functional_form",
    "infer",
    "meta_of",
    "rules",
    "schema_of",
    "shape_rule",
]
