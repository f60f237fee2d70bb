"""The public face of compile_api."""

import re
import subprocess
import sys
from pathlib import Path

import compile_api
from compile_api import errors


def test_every_public_name_exists() -> None:
    assert all(hasattr(compile_api, name) for name in compile_api.__all__)
    assert compile_api.__all__ == sorted(compile_api.__all__)


def test_the_error_tree_is_the_one_its_docstring_shows() -> None:
    tree = errors.__doc__ or ""
    for name in errors.__all__:
        kind = getattr(errors, name)
        assert issubclass(kind, errors.CompileApiError | Warning)
        assert name in tree


def test_importing_brings_neither_models_nor_triton_nor_torchs_compiler() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import compile_api; "
        "new = {name for name in set(sys.modules) - before};"
        "bad = [n for n in new if n.split('.')[0] in ('transformers', 'triton', 'rich', 'click')"
        " or n.startswith(('torch._dynamo', 'torch._inductor'))]; print(bad); sys.exit(bool(bad))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_error_has_its_section_in_the_page_it_names() -> None:
    page = (Path(__file__).parents[3] / "docs" / "errors.md").read_text()
    sections = re.findall(r"^## (\S+)$", page, re.MULTILINE)
    kinds = [getattr(errors, name) for name in errors.__all__]
    for kind in kinds:
        if issubclass(kind, errors.CompileApiError):
            assert kind.section in sections
    assert len(sections) == len(set(sections))


def test_a_first_call_does_not_make_torch_import_sympy() -> None:
    """Half a second for torch's distributed tensors, which a dispatch to a subclass imports."""
    program = """
import sys, torch, compile_api
function = compile_api.compile(lambda x, y: (x * y + 1).relu())
x = torch.ones(4, requires_grad=True)
function(x, x.detach()).sum().backward()
with torch.no_grad():
    function(x, x.detach())
heavy = {"sympy", "triton", "torch._dynamo", "torch._inductor", "torch.distributed.tensor"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
