"""Run by test_roundtrip: every STEPth module of this interpreter's standard library."""

import sys
import sysconfig
import types
import warnings
from importlib.machinery import SourceFileLoader
from pathlib import Path

source, step = sys.argv[1], int(sys.argv[2])
package = types.ModuleType("dynamo")
package.__path__ = [source]
sys.modules["dynamo"] = package
from dynamo.bytecode import assemble, decode  # noqa: E402  # found through the stand-in above

assert "torch" not in sys.modules
warnings.simplefilter("ignore")
sys.dont_write_bytecode = True  # what is cached is read: to compile takes a third of the time


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
        module = SourceFileLoader(path.stem, str(path)).get_code(path.stem)
    except (SyntaxError, ValueError):
        continue  # the test suite's bad programs
    for code in nested(module):
        made = assemble(decode(code), code)
        where = f"{path}:{code.co_firstlineno} {code.co_qualname}"
        assert made.co_code == code.co_code, where
        assert made.co_linetable == code.co_linetable, where
        assert made.co_exceptiontable == code.co_exceptiontable, where
        assert made.co_stacksize == code.co_stacksize, where
        assert made == code, where
        count += 1
assert count > 100, count
sys.stdout.write(f"{count} code objects, all equal\n")
