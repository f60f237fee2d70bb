"""One bad line per contract, and the good lines beside them."""

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "check_imports", Path(__file__).parent.parent / "check_imports.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
check_imports = importlib.util.module_from_spec(_SPEC)
sys.modules["check_imports"] = check_imports
_SPEC.loader.exec_module(check_imports)


def faults(source: str, package: str = "inductor") -> list[str]:
    tree = ast.parse(source)
    return [fault.what for fault in check_imports.check(tree, "x.py", package, {"torch", "numpy"})]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch._inductor.config", "imports torch._inductor"),
        ("from torch._subclasses import FakeTensorMode", "imports torch._subclasses"),
        ("from torch import _dynamo", "imports torch._dynamo"),
        ("from torch.fx.experimental.proxy_tensor import make_fx", "imports torch.fx.experimental"),
        ("from torch import compile", "imports torch.compile"),
        ("def f():\n    import torch._refs as r", "imports torch._refs"),
        ("torch._decomp.core_aten_decompositions()", "uses torch._decomp"),
        ("@torch.compile\ndef f(): ...", "uses torch.compile"),
        ("import importlib\nimportlib.import_module('torch._dynamo')", "imports torch._dynamo"),
        ("__import__('torch.' + '_dynamo')", "built at run time"),
        ("exec('from torch._dynamo import reset; import torch._dynamo')", "a string that imports"),
        ("import dynamo", "inductor must not import dynamo"),
        (
            "from primtorch.symbolic.expression import Symbol",
            "public are primtorch, primtorch.symbolic",
        ),
        ("import networkx", "doesn't declare"),
    ],
)
def test_a_broken_contract_is_named(source: str, expected: str) -> None:
    found = faults(source)
    assert found
    assert any(expected in what for what in found), found


@pytest.mark.parametrize(
    "source",
    [
        "import torch, numpy, os.path",
        "from torch.fx import GraphModule",
        "from primtorch.symbolic import Symbol",
        "from primtorch import fake, decomposition_table",
        "from . import ir\nfrom .ir import nodes",
        "import inductor.ir",
        "import importlib\nimportlib.import_module('torch.fx')",
        '"""Never use torch._dynamo: import torch._dynamo is forbidden."""',
        "name = 'torch._dynamo.disable'",
        "torch.compiler.is_compiling()",
    ],
)
def test_what_is_allowed_passes(source: str) -> None:
    assert faults(source) == []


def test_the_facade_may_import_the_other_four() -> None:
    assert faults("import dynamo, aot_autograd, inductor, primtorch", "compile_api") == []
    assert faults("import compile_api", "dynamo") == ["dynamo must not import compile_api"]
