"""Run by test_roundtrip: every STEPth module of this interpreter's standard library."""

import sys
import sysconfig
import types
import warnings
from pathlib import Path

source, step = sys.argv[1], int(sys.argv[2])
package = types.ModuleType("dynamo")
package.__path__ = [source]
sys.modules["dynamo"] = package
from dynamo.bytecode import assemble, decode  # noqa: E402  # found through the stand-in above

assert "torch" not in sys.modules
warnings.simplefilter("ignore")


def nested(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


library = Path(sysconfig.get_path("stdlib"))
files = sorted(path for path in library.rglob("*.py") if "site-packages" not in path.parts)
count = 0
for path in files[::step]:
    try:
        module = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        continue  # the test suite's bad programs
    for code in nested(module):
        made = assemble(decode(code), code)
        # Two of a thousand declare more stack than any path needs: dead code that was removed.
        same = made.replace(co_stacksize=code.co_stacksize)
        where = f"{path}:{code.co_firstlineno} {code.co_qualname}"
        assert same.co_code == code.co_code, where
        assert same.co_linetable == code.co_linetable, where
        assert same.co_exceptiontable == code.co_exceptiontable, where
        assert same == code, where
        assert abs(made.co_stacksize - code.co_stacksize) <= 4, where
        count += 1
assert count > 100, count
sys.stdout.write(f"{count} code objects, all equal\n")
