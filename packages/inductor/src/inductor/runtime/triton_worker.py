"""A process that compiles Triton kernels: one JSON request a line on standard input, one JSON answer a line back.

Run as a script (`python triton_worker.py`), never imported by the package: it loads Triton and the prelude alone, so
that it starts in a third of a second where importing torch takes two. Request: text, signature, aligned (positions of
16-byte aligned pointers), warps, stages, checked, backend, architecture, warp_size, directory. Answer: binary (base64),
name, shared (bytes), warps; or error (text). Invariant: an error of one kernel leaves the process usable.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import sys
import types
from pathlib import Path
from typing import Any


def _load(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _provide_prelude() -> None:
    """Make `from inductor.codegen.triton import prelude` work without the package and its torch."""
    if "inductor" in sys.modules:
        return
    package = Path(__file__).resolve().parent.parent
    for name in ("inductor", "inductor.codegen", "inductor.codegen.triton"):
        sys.modules[name] = types.ModuleType(name)
    prelude = _load(
        "inductor.codegen.triton.prelude", package / "codegen" / "triton" / "prelude.py"
    )
    sys.modules["inductor.codegen.triton"].prelude = prelude  # type: ignore[attr-defined]  # a module made by hand


def compile_request(request: dict[str, Any]) -> dict[str, Any]:
    """Compile one kernel; see the module for both dictionaries."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    _provide_prelude()
    digest = hashlib.sha256(request["text"].encode()).hexdigest()[:24]
    path = Path(request["directory"]) / f"triton_{digest}.py"
    if not path.exists():
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(request["text"], encoding="utf-8")
        temporary.replace(path)
    module = _load(path.stem, path)
    source = ASTSource(
        fn=module.kernel,
        signature=dict(request["signature"]),
        constexprs={},
        attrs={(position,): [["tt.divisibility", 16]] for position in request["aligned"]},
    )
    options = {
        "num_warps": request["warps"],
        "num_stages": request["stages"],
        "debug": request["checked"],
        "enable_fp_fusion": True,
    }
    if request["checked"]:
        options["sanitize_overflow"] = False
    target = GPUTarget(request["backend"], request["architecture"], request["warp_size"])
    compiled = triton.compile(source, target=target, options=options)
    binary = compiled.asm["cubin" if request["backend"] == "cuda" else "hsaco"]
    return {
        "binary": base64.b64encode(binary).decode("ascii"),
        "name": compiled.metadata.name,
        "shared": compiled.metadata.shared,
        "warps": compiled.metadata.num_warps,
    }


def _explained(error: BaseException | None) -> str:
    """An exception with those that caused it: what is wrong inside a helper stands in the last one."""
    parts = []
    while error is not None:
        parts.append(f"{type(error).__name__}: {error}")
        error = error.__cause__
    return "\nbecause of ".join(parts)


def main() -> None:
    """Answer requests until standard input ends."""
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what Triton prints must not look like an answer
    for line in sys.stdin:
        try:
            answer = compile_request(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the answer carries it to the process that asked
            answer = {"error": _explained(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
