"""Every job of the repository, one session each; `sh ci/nox -l` lists them.

torch and the other third-party distributions are installed once, into the base environment
`.nox/base`. Each session that needs them gets a small environment of its own that sees the base
through a `.pth` file and into which only the packages under test and their declared siblings are
installed: that a package works without the others is checked by `ci/check_isolation.py`, that it
declares what it imports by `ci/check_imports.py`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PACKAGES = ("primtorch", "dynamo", "aot_autograd", "inductor", "compile_api")
SOURCES = tuple(f"packages/{package}/src" for package in PACKAGES)
CONSTRAINTS = ROOT / "ci" / "constraints.txt"
BASE = ROOT / ".nox" / "base"
# The models run on the newest torch with torchvision and timm, so that two versions are always covered.
MODEL_CONSTRAINTS = ROOT / "ci" / "constraints-models.txt"
MODEL_BASE = ROOT / ".nox" / "base_models"
MODEL_TOOLS = ("torchvision", "timm", "transformers")
REPORTS = ROOT / ".nox" / "reports" / str(os.getpid())  # a folder a run: `total` adds up one run
JOURNALS = (
    ROOT / ".nox" / "journals"
)  # of long runs, so that a later run goes on where one was stopped
TOTAL = ROOT / ".nox" / "total"  # the last line that `sh ci/nox` prints
# expecttest: torch's own operator database, which primtorch's tests draw from, imports it;
# accelerate and lightning: the examples
TEST_TOOLS = (
    "pytest", "hypothesis", "syrupy", "transformers", "triton", "expecttest", "accelerate", "lightning",
)  # fmt: skip
DOCUMENT_TOOLS = ("mkdocs", "mkdocs-material", "mkdocstrings", "mkdocstrings-python")
BUILD_TOOLS = ("hatchling", "editables", "setuptools")


def _pyenv_interpreters(*versions: str) -> None:
    """Lets nox find what pyenv has installed: its shims are no interpreters unless a version is chosen."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for version in versions:
        found = sorted(root.glob(f"{version}.*/bin/python{version}"))
        if found:
            os.environ["PATH"] = f"{found[-1].parent}{os.pathsep}{os.environ['PATH']}"


OTHER_PYTHONS = ("3.12", "3.13")
_pyenv_interpreters(*OTHER_PYTHONS)

nox.options.sessions = [
    "lint", "types", "contracts", "interpreters", "tests", "e2e", "quick_models", "docs", "build",
    "total",
]  # fmt: skip
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = False


# environments


def _project(package: str) -> dict[str, list[str]]:
    """Reads what a package depends on, optional things too, split into ours and others'."""
    table = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
    declared = list(table["dependencies"])
    for extra in table.get("optional-dependencies", {}).values():
        declared += extra
    ours = [name for name in declared if name.startswith("compile-api")]
    return {"ours": ours, "others": [name for name in declared if name not in ours]}


def _declared(package: str) -> list[str]:
    """Lists a package and its declared siblings, what is depended on first."""
    found: list[str] = []
    for requirement in _project(package)["ours"]:
        name = requirement.split(">")[0].removeprefix("compile-api-").replace("-", "_")
        found += [sibling for sibling in _declared(name) if sibling not in found]
    return [*found, package]


def _base(
    session: nox.Session,
    folder: Path = BASE,
    constraints: Path = CONSTRAINTS,
    tools: tuple[str, ...] = TEST_TOOLS,
) -> Path:
    """Makes a base environment if its recipe changed; returns its site-packages.

    There is one for each Python: `.nox/base` of the one that runs nox, `.nox/base-3.12` and so on.
    """
    running = session.python in {None, "{}.{}".format(*sys.version_info[:2])}
    base = folder if running else folder.with_name(f"{folder.name}-{session.python}")
    python = sys.executable if running else str(Path(session.bin) / "python")
    wanted = sorted({name for package in PACKAGES for name in _project(package)["others"]})
    recipe = [*wanted, *tools, *BUILD_TOOLS]
    digest = hashlib.sha256("\n".join([*recipe, constraints.read_text()]).encode()).hexdigest()
    stamp = base / "recipe"
    if not stamp.exists() or stamp.read_text() != digest:
        session.log(f"making {base.name}: torch and the rest of what is not ours, once (minutes)")
        shutil.rmtree(base, ignore_errors=True)
        session.run(python, "-m", "venv", str(base), external=True)
        # bytecode of the few modules that are imported is made at the first import; of all, for minutes
        install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
        session.run(
            str(base / "bin" / "python"), *install, "-c", str(constraints), *recipe, external=True,
        )  # fmt: skip
        stamp.write_text(digest)
    return next((base / "lib").glob("python3.*/site-packages"))


def _with_torch_of_models() -> Path:
    """The constraints with the models' torch: the wheels of the older one want another triton there."""
    newer = {
        line.partition("==")[0]: line
        for line in MODEL_CONSTRAINTS.read_text().splitlines()
        if line.startswith(("torch==", "triton=="))
    }
    lines = CONSTRAINTS.read_text().splitlines()
    made = ROOT / ".nox" / "constraints-pythons.txt"
    made.parent.mkdir(exist_ok=True)
    made.write_text("\n".join(newer.get(line.partition("==")[0], line) for line in lines))
    return made


def _prepare(session: nox.Session, *packages: str, base: Path | None = None) -> None:
    """Fills the session's environment: the base underneath, of ours only `packages`."""
    session.env["PYTHONPATH"] = None
    site = next((Path(session.virtualenv.location) / "lib").glob("python3.*/site-packages"))
    (site / "base.pth").write_text(f"{base or _base(session)}\n")
    folders = [part for package in packages for part in ("-e", f"packages/{package}")]
    session.run(
        "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--no-build-isolation", *folders,
    )  # fmt: skip


def _tools(session: nox.Session, *names: str) -> None:
    session.env["PYTHONPATH"] = None
    session.install("--quiet", "-c", str(CONSTRAINTS), *names)


def _pytest(session: nox.Session, *arguments: str) -> None:
    REPORTS.mkdir(parents=True, exist_ok=True)
    session.env.setdefault("COMPILE_API_STRICT", "1")
    session.run(
        "python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
        "--durations=0", "--durations-min=20",
        f"--junitxml={REPORTS / session.name}.xml", *arguments,
        success_codes=[0],
    )  # fmt: skip


# sessions without torch


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format."""
    _tools(session, "ruff")
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check")
    session.run("python", "ci/check_sizes.py")


@nox.session
def types(session: nox.Session) -> None:
    """Mypy, strict, over the shipped source (or the packages named after `--`)."""
    _tools(session, "mypy", "click", "rich", "platformdirs", "filelock", "pytest")
    packages = session.posargs or PACKAGES
    session.run("mypy", *(f"packages/{package}/src" for package in packages))


@nox.session
def contracts(session: nox.Session) -> None:
    """Import rules: directions, public roots, declared dependencies, forbidden parts of torch."""
    _tools(session, "import-linter", "grimp", "pytest")
    session.env["PYTHONPATH"] = os.pathsep.join(str(ROOT / source) for source in SOURCES)
    session.run("lint-imports", "--no-cache")
    session.run("lint-imports", "--no-cache", "ci/layers.toml")
    session.run("python", "ci/check_imports.py")
    _pytest(session, "ci/tests")


# sessions with torch


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """One package's tests, where only it and its declared siblings are installed."""
    allowed = _declared(package)
    _prepare(session, *allowed)
    session.run("python", "ci/check_isolation.py", *allowed)
    if package == "dynamo":
        session.run("python", "examples/03_custom_backend.py")
    end_to_end = "--ignore=packages/compile_api/tests/end_to_end"
    _pytest(session, f"packages/{package}/tests", end_to_end, *session.posargs)


@nox.session
def interpreters(session: nox.Session) -> None:
    """The bytecode tools of dynamo alone, over the whole library of each installed Python.

    `tests(dynamo)` tries a sample. Pythons of pyenv are found wherever they lie.
    """
    _tools(session, "pytest", "hypothesis")
    session.env["PYTHONPATH"] = str(ROOT / "packages/dynamo/src")
    session.env["COMPILE_API_WHOLE_LIBRARY"] = "1"
    _pytest(session, "packages/dynamo/tests/bytecode", *session.posargs)


@nox.session(python=list(OTHER_PYTHONS))
def pythons(session: nox.Session) -> None:
    """The tests of dynamo on the other Pythons, with torch; each brings a base of its own (minutes)."""
    allowed = _declared("dynamo")
    _prepare(session, *allowed, base=_base(session, BASE, _with_torch_of_models()))
    _pytest(
        session,
        "packages/dynamo/tests",
        "--ignore=packages/dynamo/tests/bytecode",
        *session.posargs,
    )


@nox.session
def properties(session: nox.Session) -> None:
    """The property tests of all packages, with many more examples each than in `tests`."""
    _prepare(session, *PACKAGES)
    session.env["HYPOTHESIS_PROFILE"] = "long"
    folders = [f"packages/{package}/tests" for package in PACKAGES]
    _pytest(session, "-m", "property", *folders, *session.posargs)


@nox.session
def random_programs(session: nox.Session) -> None:
    """Thousands of random Python programs, compiled against eager; `-- FIRST COUNT` for other seeds."""
    _prepare(session, *_declared("dynamo"))
    seeds = session.posargs or ["1000", "3000"]
    session.run("python", "packages/dynamo/tests/random_programs.py", *seeds)
    session.run("python", "packages/dynamo/tests/container_programs.py", *seeds)


@nox.session
def e2e(session: nox.Session) -> None:
    """The whole road: models, forward and backward, against eager; and the examples."""
    _prepare(session, *PACKAGES)
    _pytest(session, "packages/compile_api/tests/end_to_end", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Executes every Python block of the README and of docs/, then builds the site, strictly."""
    _prepare(session, *PACKAGES)
    _pytest(session, "ci/run_documents.py", *session.posargs)
    session.install("--quiet", "-c", str(CONSTRAINTS), *DOCUMENT_TOOLS)
    session.run("python", "-m", "mkdocs", "--quiet", "build", env={"NO_MKDOCS_2_WARNING": "1"})
    session.log("the site is in .nox/site/index.html")


@nox.session
def demo(session: nox.Session) -> None:
    """The main job: BERT-base compiled, run and trained, in a table; see `-- --help`."""
    _prepare(session, *PACKAGES)
    session.run("compile-api", "demo", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Paired measurements against eager and torch.compile; `-- --help` for the suites."""
    _prepare(session, *PACKAGES)
    session.run("python", "-m", "benchmarks", *session.posargs)


@nox.session
def stress(session: nox.Session) -> None:
    """8 threads for a minute, then 8 processes of which one is killed every second; minutes."""
    _prepare(session, *PACKAGES)
    for what in ("threads", "processes"):
        session.run("python", "-m", "benchmarks.stress", what, *session.posargs)


@nox.session
def models(session: nox.Session) -> None:
    """The models people run, each in its own process, judged against float64; `-- --help`.

    Resumable: models whose row is there are not run again. Times are `model_times`'s.
    """
    _prepare(session, *PACKAGES, base=_base(session, MODEL_BASE, MODEL_CONSTRAINTS, MODEL_TOOLS))
    session.run("python", "-m", "benchmarks.models.run", *session.posargs)


@nox.session
def model_times(session: nox.Session) -> None:
    """Times and memory of those models beside eager's, hours with `-- --compare torch`; resumable.

    The rows, `benchmarks/models/time_rows.jsonl`, are committed; `report` makes the page of them.
    """
    _prepare(session, *PACKAGES, base=_base(session, MODEL_BASE, MODEL_CONSTRAINTS, MODEL_TOOLS))
    session.run("python", "-m", "benchmarks.models.times", *session.posargs)


@nox.session
def operator_database(session: nox.Session) -> None:
    """Every decomposition against eager over torch's operator database; minutes a core.

    The report, `complete_run.json`, is committed beside the script.
    """
    _prepare(session, *_declared("primtorch"))
    script = "packages/primtorch/tests/operator_database/run.py"
    parts = REPORTS / "operator_database"
    parts.mkdir(parents=True, exist_ok=True)
    names = [str(parts / name) for name in ("pairs.json", "errors.json")]
    codes = [0, 1]  # the merged report says what failed
    session.run("python", script, "--json", names[0], *session.posargs, success_codes=codes)
    session.run("python", script, "--errors", "--json", names[1], success_codes=codes)
    target = str(Path(script).with_name("complete_run.json"))
    session.run("python", script, "--merge", *names, "--json", target)


@nox.session
def conformance(session: nox.Session) -> None:
    """`check_backend` on our C++ and Triton generators and on torch's inductor; an hour a core.

    The reports are committed beside the script; a run that was stopped goes on.
    """
    _prepare(session, *PACKAGES)
    folder = Path("packages/compile_api/tests/conformance")
    JOURNALS.mkdir(parents=True, exist_ok=True)
    for generator, samples in (("cpp", 5), ("triton", 3), ("torch", 1)):
        session.run(
            "python", str(folder / "run.py"), generator, "--samples", str(samples),
            "--journal", str(JOURNALS / f"conformance_{generator}.jsonl"),
            "--json", str(folder / f"complete_{generator}.json"), *session.posargs,
        )  # fmt: skip
    for journal in JOURNALS.glob("conformance_*.jsonl"):
        journal.unlink()  # complete


@nox.session
def gpu_kernels(session: nox.Session) -> None:
    """Every operator's Triton kernels compiled for sm_90 and gfx942, without a GPU; half an hour on two cores.

    Resumable: operators whose line is in the journal are not compiled again.
    """
    _prepare(session, *PACKAGES)
    script = "packages/inductor/tests/codegen/triton/compile_operators.py"
    JOURNALS.mkdir(parents=True, exist_ok=True)
    for target in ("sm_90", "gfx942"):
        journal = str(JOURNALS / f"gpu_kernels_{target}.jsonl")
        session.run("python", script, "--target", target, "--out", journal, *session.posargs)


@nox.session
def random_training(session: nox.Session) -> None:
    """2,000 random programs of views, in-place operators and outputs, and 2,000 wider ones, in training; hours.

    The reports, `complete_run*.json`, are committed beside the script; a run that was stopped goes on. Wider programs
    also promote dtypes, are complex or empty, index, checkpoint, hook, and differentiate twice.
    """
    _prepare(session, *PACKAGES)
    script = Path("packages/compile_api/tests/random_programs/run.py")
    JOURNALS.mkdir(parents=True, exist_ok=True)
    for kind, report in (([], "complete_run.json"), (["--wider"], "complete_run_wider.json")):
        journal = JOURNALS / f"random_training{''.join(kind)}.jsonl"
        session.run(
            "python", str(script), "--journal", str(journal), *kind,
            "--json", str(script.with_name(report)), *session.posargs,
        )  # fmt: skip
        journal.unlink()  # complete


@nox.session
def sized_programs(session: nox.Session) -> None:
    """Random programs whose sizes change from call to call, captured and compiled; writes the committed report."""
    _prepare(session, *PACKAGES)
    script = Path("packages/compile_api/tests/sized_programs/run.py")
    JOURNALS.mkdir(parents=True, exist_ok=True)
    for backend in ("eager", "inductor"):
        journal = JOURNALS / f"sized_programs_{backend}.jsonl"
        session.run(
            "python", str(script), "--backend", backend, "--journal", str(journal),
            "--json", str(script.with_name(f"complete_run_{backend}.json")), *session.posargs,
        )  # fmt: skip
        journal.unlink()  # complete


@nox.session
def report(session: nox.Session) -> None:
    """docs/models.md and its plots from the committed rows, or from a file named after `--`."""
    _prepare(session, *PACKAGES)
    session.run("python", "-m", "benchmarks.models.report", *session.posargs)


@nox.session
def compiled_operators(session: nox.Session) -> None:
    """Every operator compiled against eager over torch's database, in all dtypes; an hour of one process.

    `-- --jobs 15` for more processes. The reports, `complete_run.json` beside the script, are committed; a run that
    was stopped goes on.
    """
    _prepare(session, *PACKAGES)
    script = Path("packages/compile_api/tests/operator_database/run.py")
    journals = JOURNALS / "compiled_operators"
    mine, peer = str(journals / "mine.json"), str(journals / "peer.json")
    codes = [0, 1]  # the merged report says what failed
    session.run(
        "python", str(script), "--jobs", "2", "--journal", str(journals), "--json", mine,
        "--quiet", *session.posargs, success_codes=codes,
    )  # fmt: skip
    session.run(
        "python", str(script), "--peer", "torch", "--failed", mine, "--json", peer, "--quiet",
        success_codes=codes,
    )  # fmt: skip
    written = str(script.with_name("complete_run.json"))
    parts = map(str, sorted(journals.glob("*.jsonl")))
    session.run("python", str(script), "--merge", *parts, "--beside", peer, "--json", written)
    shutil.rmtree(journals)  # complete


@nox.session
def symbolic_operators(session: nox.Session) -> None:
    """Small calls of torch's operators with symbolic sizes at three sizes, and with six floats, against eager; minutes.

    The reports, `complete_run.json` and `complete_numbers.json`, are committed beside the scripts.
    """
    _prepare(session, *PACKAGES)
    folder = Path("packages/compile_api/tests/symbolic_operators")
    for script, report in (("run", "complete_run"), ("run_numbers", "complete_numbers")):
        written = str(folder / f"{report}.json")
        session.run("python", str(folder / f"{script}.py"), "--json", written, *session.posargs)


@nox.session
def random_calls(session: nox.Session) -> None:
    """2,000 random calls of single operators at the edges of their dtypes, compiled against eager; minutes.

    The report, `complete_run.json`, is committed beside the script; `known_differences.json` names the causes.
    """
    _prepare(session, *PACKAGES)
    script = Path("packages/compile_api/tests/single_calls/run.py")
    report = str(script.with_name("complete_run.json"))
    session.run(
        "python", str(script), "--json", report, *session.posargs, success_codes=[0, 1]
    )  # fmt: skip


@nox.session
def optimizer_matrix(session: nox.Session) -> None:
    """Every optimizer of torch, implementation and option: 20 compiled steps against eager's; minutes.

    The report, `complete_run.json`, is committed beside the script.
    """
    _prepare(session, *PACKAGES)
    script = Path("packages/compile_api/tests/optimizer_matrix/matrix.py")
    report = str(script.with_name("complete_run.json"))
    session.run("python", str(script), "--json", report, *session.posargs)


@nox.session
def quick_models(session: nox.Session) -> None:
    """Twelve of those models, inference and training, without times; minutes."""
    _prepare(session, *PACKAGES)
    rows = REPORTS / "quick_models.jsonl"
    session.run(
        "python", "-m", "benchmarks.models.run",
        "--quick", "--again", "--jobs", "2", "--phases", "inference,training",
        "--out", str(rows),
    )  # fmt: skip


@nox.session
def build(session: nox.Session) -> None:
    """Sdist and wheel of each package; the wheels are installed and imported."""
    session.env["PYTHONPATH"] = None
    site = next((Path(session.virtualenv.location) / "lib").glob("python3.*/site-packages"))
    (site / "base.pth").write_text(f"{_base(session)}\n")
    # a venv of Python 3.11 brings a setuptools that is older than the packages ask for
    session.install("--quiet", "-c", str(CONSTRAINTS), "build", "setuptools")
    target = ROOT / "dist"
    shutil.rmtree(target, ignore_errors=True)
    for package in PACKAGES:
        session.run(
            "python", "-m", "build", "--no-isolation", "--outdir", str(target),
            f"packages/{package}", silent=True,
        )  # fmt: skip
    wheels = sorted(map(str, target.glob("*.whl")))
    session.run(
        "python", "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall",
        "--no-index", *wheels,
    )  # fmt: skip
    session.run("python", "ci/check_isolation.py", "--installed", *PACKAGES)


@nox.session(venv_backend="none")
def total(session: nox.Session) -> None:
    """Adds up the tests of this run's sessions: pytest tells each result again, and their totals."""
    if not any(REPORTS.glob("*.xml")):
        session.error("no tests were run")
    session.env["PYTHONPATH"] = str(ROOT / "ci")
    try:
        session.run(
            str(BASE / "bin" / "python"), "-m", "pytest", "-p", "total", "-p", "no:cacheprovider",
            "-q", "--tb=line", f"--rootdir={REPORTS}", str(REPORTS), external=True,
            env={"COMPILE_API_TOTAL": str(TOTAL)},
        )  # fmt: skip
    finally:
        shutil.rmtree(REPORTS, ignore_errors=True)
