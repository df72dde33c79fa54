"""Checks of the architecture in platform/docs/how-it-works: which package may import which, which module may import a heavy
library, and that `import platform` is the standard library's module everywhere.

The time that the command line takes to start is checked in tests/cli.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import grimp
import pytest

import trialplane
from tests import quick
from trialplane import errors, training
from trialplane.wire.states import RunState

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "platform" / "trialplane"
SOURCES = sorted(file for folder in ("platform", "jobs", "tests") for file in (ROOT / folder).rglob("*.py"))
MODULES = sorted(PACKAGE.rglob("*.py"))
TEXTJOBS = sorted((ROOT / "jobs" / "lib" / "textjobs").rglob("*.py"))
PLUGINS = sorted((ROOT / "platform" / "hydra_plugins").rglob("*.py"))


def run(*command: str, cwd: Path = ROOT, **env: str) -> str:
    """Run a command, which must succeed, and return its output."""
    process = subprocess.run(command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


@functools.cache
def imports_of(file: Path) -> set[str]:
    """Return the top-level names of all modules that a file imports, also in its functions."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def importers(library: str) -> set[str]:
    """Return the paths of the modules that import a library."""
    return {str(file.relative_to(PACKAGE)) for file in MODULES if library in imports_of(file)}


def test_packages_are_layered() -> None:
    """Check the import contracts of pyproject.toml with import-linter."""
    program = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    output = run(sys.executable, "-c", program, "--no-cache", PYTHONPATH=str(ROOT / "platform"))
    assert "0 broken" in output
    assert "10 kept" in output


def test_every_file_says_what_it_is_for() -> None:
    docstring = re.compile(r'(#.*\n|\s)*r?"""\s*[^\s"]')
    assert [name_of(file) for file in SOURCES if (text := file.read_text()) and not docstring.match(text)] == []


def test_a_heavy_library_has_one_owner() -> None:
    ledger = {
        "controller/ledger.py",
        "controller/drawing.py",
        "controller/samplers.py",
        "controller/suggesting.py",
        "controller/history.py",
        "controller/pruning.py",
        "controller/points.py",
        "controller/replaying.py",
        "controller/tune_search.py",
        "controller/export.py",
    }
    store = {str(file.relative_to(PACKAGE)) for file in MODULES if file.parent.name == "ledger"}
    slots = {"controller/ray_slots.py", "worker/ray_store.py", "controller/exchange.py", "controller/ray_session.py"}
    slots |= {"controller/tune_search.py"}
    assert importers("ray") == slots
    exporter = {"exporter/exporter.py", "exporter/batch.py", "exporter/adoption.py", "exporter/__main__.py"}
    exporter |= {"exporter/registration.py", "exporter/store.py"}
    assert importers("mlflow") == exporter | {"training/final_model.py", "training/mlflow_runs.py", "worker/kept_files.py"}
    assert importers("optuna") <= ledger | {"client/exporting.py", "client/run.py", "pages/importances.py"}
    assert importers("sqlalchemy") <= store | {"exporter/store.py"}
    assert importers("kubernetes") == {"kube/connections.py"}
    assert importers("mcp") == {"cli/mcp.py"}
    assert importers("pandas") == {"client/run.py"}
    assert importers("rich") == {"cli/display.py", "client/live.py"}


def test_quick_tests_import_libraries_that_take_long_only_where_they_are_used() -> None:
    """Each process of pytest imports all test modules."""
    heavy = {"mcp", "scipy", "transformers", "wandb"}
    texts = {file: file.read_text(encoding="utf-8") for file in quick.TESTS.rglob("test_*.py")}
    found = [
        f"{file.relative_to(quick.TESTS)} imports {', '.join(imported)}; do it in the tests that need it"
        for file, text in texts.items()
        if file.relative_to(quick.TESTS).parts[0] not in quick.SLOW and not quick.MARKED.search(text)
        if (imported := heavy.intersection(_imported_at_the_top(text)))
    ]
    assert found == []


def _imported_at_the_top(text: str) -> set[str]:
    """Return the first parts of the names of the modules that a file imports at its top."""
    body = ast.parse(text).body
    names = [alias.name for node in body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    """`platform/` itself is not a package: it is a folder of sources, like `src/`."""
    names = {file.stem for file in MODULES if file.parent == PACKAGE} | {folder.name for folder in PACKAGE.iterdir()}
    assert not names & sys.stdlib_module_names


def test_no_module_has_a_name_for_anything() -> None:
    """`job/kinds/base.py` is allowed: it has the base class of the three kinds of job."""
    vague_names = {"utils", "util", "common", "helpers", "base", "misc"}
    assert [file for file in (*MODULES, *TEXTJOBS) if file.stem in vague_names] == [PACKAGE / "job" / "kinds" / "base.py"]


def test_the_source_root_is_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    folders = {path.name for path in (ROOT / "platform").iterdir() if path.is_dir()}
    built = {"__pycache__", "site", ".cache"}  # the last two by a preview of the documentation
    assert folders - built == {"trialplane", "hydra_plugins", "docs"}


@pytest.mark.parametrize("how", ["-c", "-m"])
def test_import_platform_is_the_standard_librarys_from_the_repository(tmp_path: Path, how: str) -> None:
    """With the repository's root first on the path, as `python -c` and `python -m` put it."""
    code = "import platform, sys; print(platform.__file__, bool(platform.python_version()), sys.path[0])"
    if how == "-m":
        (tmp_path / "says.py").write_text(code)
        said = run(sys.executable, "-m", "says", PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    else:
        said = run(sys.executable, "-c", code)
    file, works, *_ = said.split()
    assert Path(file) == Path(os.__file__).parent / "platform.py"
    assert works == "True"


def test_a_public_name_is_imported_when_it_is_asked_for() -> None:
    """A trial takes `standalone` from a package that has the client in it too."""
    program = "import sys, trialplane{}; print(*sorted(name for name in sys.modules if name.startswith('trialplane')))"
    before = len(run(sys.executable, "-c", program.format(""), PYTHONPATH=str(ROOT / "platform")).split())
    assert before == 1
    asked = program.format("; from trialplane import Context, standalone")
    loaded = run(sys.executable, "-c", asked, PYTHONPATH=str(ROOT / "platform")).split()
    assert "trialplane.worker.context" in loaded
    assert not [name for name in loaded if name.startswith(("trialplane.client", "trialplane.controller"))]
    assert {name: bool(getattr(trialplane, name).__doc__) for name in trialplane.__all__} == dict.fromkeys(
        ("Context", "Platform", "checkpoints", "current", "params", "report", "standalone"), True
    )
    assert set(trialplane.__all__) <= set(dir(trialplane))
    with pytest.raises(AttributeError, match="no attribute 'Study'"):
        trialplane.Study  # noqa: B018


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Its import would replace the function: `trialplane.report` is both an attribute and a module then."""
    names = {file.relative_to(PACKAGE).parts[0].removesuffix(".py") for file in MODULES}
    assert not names & set(trialplane.__all__)


@pytest.mark.slow
def test_help_shows_what_a_training_job_calls() -> None:
    """Each public module, class and function has a docstring, and the library imports none before it is asked for."""
    loaded = "*(name for name in sys.modules if name.startswith('trialplane.training'))"
    said = run(sys.executable, "-c", f"import sys, trialplane.training; print({loaded})", PYTHONPATH=str(ROOT / "platform"))
    assert said.split() == ["trialplane.training"]
    for name in training.__all__:
        module = getattr(training, name)
        assert f"`{name}`" in str(training.__doc__)
        names = {public: getattr(module, public) for public in module.__all__}
        assert names, name
        assert not [public for public, value in names.items() if inspect.isroutine(value) and not value.__doc__]
        assert not [public for public, value in names.items() if inspect.isclass(value) and not value.__doc__]


@pytest.mark.slow
def test_an_installed_wheel_brings_the_packages_and_the_command_and_nothing_else(tmp_path: Path) -> None:
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "-q"]
    run(sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("trialplane-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"trialplane", "hydra_plugins"}
    packed = {name for name in names if name.endswith(".py")}
    assert packed == {str(file.relative_to(ROOT / "platform")) for file in (*MODULES, *PLUGINS)}
    target = tmp_path / "site"
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "-q", "--target", str(target), str(wheel))
    code = "import platform, trialplane; print(platform.__file__); print(trialplane.__file__)"
    standard, ours = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(target)).split()
    assert Path(standard) == Path(os.__file__).parent / "platform.py"
    assert Path(ours) == target / "trialplane" / "__init__.py"
    shown = run(target / "bin" / "platform", "docs", "scripts", PYTHONPATH=str(target))
    assert shown.startswith("# Scripts")


def every_error(cls: type[errors.TrialplaneError] = errors.TrialplaneError) -> list[type[errors.TrialplaneError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in every_error(child))]


def test_the_tree_of_errors_is_the_one_in_its_docstring() -> None:
    """Every error, each below its parent."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        words = line.replace("│", " ").replace("├──", "   ").replace("└──", "   ").split()
        if words and words[0] in vars(errors):
            depth = (len(line) - len(line.lstrip(" │├└─"))) // 4 - 1
            path[depth:] = [words[0]]
            parents[words[0]] = path[depth - 1] if depth else ""
    assert parents == {
        cls.__name__: cls.__bases__[0].__name__ if cls is not errors.TrialplaneError else "" for cls in every_error()
    }
    assert all(cls.__doc__ for cls in every_error())


def test_the_tree_of_errors_is_in_one_file() -> None:
    """Whatever else has been imported: a module that no other test imports may have an error of its own too."""
    tree = {cls.__name__ for cls in every_error() if cls.__module__ == errors.__name__}
    elsewhere = [
        f"{name_of(file)}: {node.name}"
        for file in (*MODULES, *TEXTJOBS, *PLUGINS)
        if file != PACKAGE / "errors.py" and re.search(r"class \w+[\[(]", text := file.read_text())  # has a base
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base).rpartition(".")[2] in tree
    ]
    assert elsewhere == []


def test_every_error_ends_in_a_documented_exit_code() -> None:
    assert {cls.exit_code for cls in every_error()} <= set(errors.EXIT_CODES)
    assert errors.LedgerCorrupt.exit_code == errors.EXIT_BAD_INPUT


def test_every_state_of_a_run_has_an_exit_code() -> None:
    """Of what has not ended, a command that waited for it ends as the platform's."""
    codes = {state: state.exit_code for state in RunState}
    ended = {RunState.SUCCEEDED: 0, RunState.FAILED: 1, RunState.CANCELLED: 4, RunState.PAUSED: 130}
    assert codes == dict.fromkeys(RunState, errors.EXIT_PLATFORM) | ended
    assert set(codes.values()) <= set(errors.EXIT_CODES)


# Module → why it imports another of ours inside a function. What a command does not use, it need not wait for.
LATE_IMPORTS = {
    "cli.docs": "rich, which is for a terminal only",
    "cli.kinds.collection": "pydantic, which `platform status --help` need not wait for",
    "cli.main": "everything, so that a verb imports what it needs and an error on the way is told in a sentence",
    "cli.names": "pydantic, which completion need not wait for",
    "cli.output": "YAML, of which a table needs nothing",
    "cli.progress": "rich, which is shown on a terminal only",
    "cli.refit": "what registers a model on a cluster, which only --register needs",
    "cli.report": "pydantic, which `platform report --help` need not wait for",
    "cli.status": "pydantic, which `platform list --help` need not wait for",
    "cli.submit": "what reads scripts for `init`, which only a failed run needs",
    "cli.ui": "what a page of a run on a cluster, or a dashboard, needs and the other pages do not",
    "client.run": "rich and asyncio, for those who watch a run from Python",
    "client.target_choice": "the module of one of the two targets",
    "controller.samplers": "Ray Tune, which only its own searchers need",
    "controller.session": "Ray, which most runs of a laptop can do without",
    "controller.workloads.__init__": "the same",
    "controller.__main__": "Ray and Optuna, after their settings are in the environment",
    "training.lines.index": "numpy, which a reader of lines need not have imported",
    "training.states": "torch, which is imported only if the job uses it",
    "worker.context": "numpy, which a job that saves no states may not need",
    "worker.alone": "numpy, of which no job but a collection needs anything",
    "worker.metrics.reader": "what guesses metrics for `init`, which only a trial without its metric needs",
    "worker.shims.capture": "torch and transformers, which are there by then",
    "worker.roles": "what ranks, or a collection, need: a trial of one process imports neither",
}


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports inside functions count too: they hide a circle and do not break it. What only types need does not."""
    graph = grimp.build_graph("trialplane", exclude_type_checking_imports=True)
    below = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    del below["trialplane"]  # the public names, of which each is imported when it is asked for
    while ready := {module for module, imported in below.items() if not imported & below.keys()}:
        below = {module: imported for module, imported in below.items() if module not in ready}
    assert not below, f"in a circle, or above one: {sorted(below)}"


def test_imports_inside_functions_are_those_that_are_listed_with_their_reason() -> None:
    late = set()
    for file in MODULES:
        text = file.read_text()
        if not re.search(r"^[ \t]+from trialplane", text, re.M):  # parsing takes long
            continue
        functions = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef)]
        within = [one for function in functions for one in ast.walk(function) if isinstance(one, ast.ImportFrom)]
        if any((one.module or "").split(".")[0] == "trialplane" for one in within):
            late.add(".".join(file.relative_to(PACKAGE).with_suffix("").parts))
    assert late == LATE_IMPORTS.keys()


def test_no_python_that_is_started_imports_from_the_folder_it_is_in() -> None:
    """Which may be anybody's, with a mlflow.py in it. A script of the user's own is another matter."""
    texts = {name_of(file): file.read_text() for file in MODULES}
    wrong = [
        f"{name}:{line}" for name, text in texts.items() if "executable" in text for line in unsafe_starts(ast.parse(text))
    ]
    assert not wrong, f"these start Python without -P: {wrong}"


@pytest.mark.parametrize(
    ("text", "is_safe"),
    [
        ("run([sys.executable, '-P', '-m', 'mlflow'])", True),
        ("command += (sys.executable, '-P', *PROGRAM)", True),
        ("run([sys.executable, '-u', self.script])", True),  # the user's own
        ("run(['uv', '--python', sys.executable])", True),
        ("print(f'{sys.executable}', Path(sys.executable).parent)", True),
        ("run([sys.executable, '-m', 'mlflow'])", False),
        ("run([sys.executable, '-u', '-m', 'mlflow'])", False),
        ("run([sys.executable, *PROGRAM])", False),
        ("run([sys.executable, str(file)])", False),
        ("run([sys.executable] + PROGRAM)", False),
        ("python = sys.executable", False),
        ("os.execv(sys.executable, command)", False),
    ],
)
def test_a_start_of_python_is_seen_in_any_form(text: str, is_safe: bool) -> None:
    assert (unsafe_starts(ast.parse(text)) == []) is is_safe


def unsafe_starts(tree: ast.Module) -> list[int]:
    """The lines that use this Python's path other than for a command with -P, a script of the user's, or a message."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable" and not is_safe_use(node, parents[node])
    ]


def is_safe_use(node: ast.Attribute, parent: ast.AST) -> bool:
    if isinstance(parent, ast.List | ast.Tuple):
        words = [ast.unparse(one) for one in parent.elts]
        index = words.index("sys.executable")
        after = words[index + 1 : index + 3]
        return after[:1] == ["'-P'"] or after == ["'-u'", "self.script"] or words[index - 1] == "'--python'"
    is_message = isinstance(parent, ast.FormattedValue)
    return is_message or (isinstance(parent, ast.Call) and ast.unparse(parent.func) == "Path")
