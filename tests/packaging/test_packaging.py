"""Metadata for installers and the package index: floors, links, entry points, versions."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest

import shmrpc
from shmrpc.transport import errors
from util import lowest, module_index

ROOT = Path(__file__).parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
URLS: dict[str, str] = PROJECT["urls"]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


def test_the_version_stands_in_one_way_everywhere() -> None:
    cargo = tomllib.loads((ROOT / "core" / "Cargo.toml").read_text())
    assert PROJECT["version"] == shmrpc.__version__ == cargo["package"]["version"] == version("shmrpc")
    assert f"## {shmrpc.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_each_fuzz_target_has_a_corpus_and_is_run() -> None:
    fuzz = ROOT / "core" / "fuzz"
    targets = {path.stem for path in (fuzz / "fuzz_targets").glob("*.rs")}
    named = {each["name"] for each in tomllib.loads((fuzz / "Cargo.toml").read_text())["bin"]}
    [run] = re.findall(r"for target in ([\w ]+); do", (ROOT / "Makefile").read_text())
    corpora = {path.name for path in (fuzz / "corpus").iterdir()}
    assert targets == named == set(run.split()) == corpora


def test_without_the_gil_the_core_asks_for_it() -> None:
    """A module that declares nothing counts as one that needs none. A CPython with a GIL does not look."""
    sources = (ROOT / "core" / "src" / "python").glob("*.rs")
    declared = [each for path in sources for each in re.findall(r"#\[pymodule\b(?!_).*", path.read_text())]
    assert declared == ["#[pymodule(gil_used = true)]"]
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert vars(sys)["_is_gil_enabled"](), "the interpreter goes on with one once the core is imported"


def test_each_dependency_has_a_floor_that_the_run_with_the_lowest_versions_takes() -> None:
    requirements = PROJECT["dependencies"] + [
        each for group in PROJECT["optional-dependencies"].values() for each in group
    ]
    assert all(re.fullmatch(r"[\w-]+(\[\w+\])?>=[\d.]+(; python_version < '3\.\d+')?", each) for each in requirements)
    # An extra of a dependency cannot stand in a constraint.
    assert lowest.lowest() == sorted({re.sub(r"\[\w+\]", "", each).replace(">=", "==") for each in requirements})


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_installed_dependencies_are_not_below_their_floors(requirement: str) -> None:
    name, floor = re.split(">=|;", requirement)[:2]
    assert numbers(version(name)) >= numbers(floor)


def test_each_version_of_python_that_it_runs_on_is_a_classifier() -> None:
    named = {numbers(each)[1] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)}
    least = numbers(PROJECT["requires-python"])[1]
    assert min(named) == least
    assert named == set(range(least, max(named) + 1))


@pytest.mark.parametrize("group", ["scripts", "entry-points.pytest11"])
def test_the_targets_of_entry_points_exist(group: str) -> None:
    table = PROJECT
    for part in group.split("."):
        table = table[part]
    assert table
    for target in table.values():
        module, _, attribute = target.partition(":")
        found = importlib.import_module(module)
        assert not attribute or callable(getattr(found, attribute))


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    (found,) = [each for each in entry_points(group="pytest11") if each.value == "shmrpc.testing.plugin"]
    assert found.name == "shmrpc.testing.plugin", "else a conftest that names it loads it a second time"


def test_the_links_of_the_readme_work_on_a_package_index() -> None:
    text = (ROOT / "README.md").read_text()
    assert not re.findall(r"\]\((?!https://|#)", text), "a relative link leads nowhere there"
    for url in re.findall(r"^\[[\w-]+\]: (\S+)$", text, re.MULTILINE):
        assert url.startswith(URLS["Source"] + "/")
    for name in ("Documentation", "Changelog", "Issues"):
        assert URLS[name].startswith(URLS["Source"] + "/")


def test_nothing_inside_imports_the_face() -> None:
    """`shmrpc/__init__.py` hands names on to users. What takes one of them from it has an arrow that runs back up."""
    wrong = []
    for path in (ROOT / "shmrpc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                wrong += [f"{path}:{node.lineno}" for each in node.names if each.name == "shmrpc"]
            elif isinstance(node, ast.ImportFrom) and node.module == "shmrpc":
                names = [each.name for each in node.names if importlib.util.find_spec(f"shmrpc.{each.name}") is None]
                wrong += [f"{path}:{node.lineno}: {name}" for name in names]
    assert not wrong


#: Modules that only commands, pools of processes, or messages about mistakes need.
LATER = {"argparse", "click", "difflib", "hashlib", "json", "multiprocessing", "numpy", "random", "secrets"}


def test_modules_that_few_programs_need_are_imported_later() -> None:
    listing = "import sys, shmrpc, shmrpc.sync; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) & LATER == set()


#: The packages of the shared objects: a program that only calls or serves imports none of them.
OBJECTS = "objects|locks|shared_memory|queues|topics|stores|discovery"


@pytest.mark.parametrize(
    ("program", "others"),
    [
        ("shmrpc.serve", f"client|{OBJECTS}|pools|introspection|sync|transport.(memory|nats|shm.*client)"),
        (
            "import shmrpc.cli.serve",
            f"client|{OBJECTS}|pools|sync|supervisor.(supervisor|reloading)|cli.(queues|stores|topics)",
        ),
        (
            "shmrpc.connect",
            f"server.server|{OBJECTS}|pools|sync|introspection|transport.(memory|nats|shm.(server|acceptor|thread_client))",
        ),
        (
            "shmrpc.sync.connect",
            f"server.server|client.(client|loop_.*)|{OBJECTS}|pools|introspection|transport.(memory|nats|shm.(server|client))",
        ),
    ],
)
def test_a_program_imports_what_it_uses(program: str, others: str) -> None:
    """A server's start is mostly imports."""
    listing = f"import sys, shmrpc; {program}; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert re.findall(rf"^shmrpc\.(?:{others})\b.*", done.stdout, re.MULTILINE) == []


def test_the_names_that_are_imported_later_are_those_that_type_checkers_see() -> None:
    for face, file in ((shmrpc, "__init__.py"), (shmrpc.sync, "sync.py")):
        source = ast.parse((ROOT / "shmrpc" / file).read_text())
        tests = {ast.unparse(node.test): node for node in source.body if isinstance(node, ast.If)}
        names = {
            each.asname or each.name: f"{node.module}:{each.name}" if each.asname else node.module
            for node in tests["_typing.TYPE_CHECKING"].body
            if isinstance(node, ast.ImportFrom)
            for each in node.names
        }
        if face is shmrpc:
            assert (names.pop("sync"), names.pop("atomic")) == ("shmrpc", "shmrpc")
        assert names == vars(face)["_HOMES"]
        for name in face.__all__:
            assert getattr(face, name) is not None
        assert set(face.__all__) <= set(dir(face))
        with pytest.raises(AttributeError, match=f"module '{face.__name__}' has no attribute 'nothing'"):
            face.nothing  # noqa: B018


def test_only_the_transport_imports_errors_of_connections_from_the_core() -> None:
    """Other code imports the errors from transport/errors.py, so that it runs on any transport."""
    wrong = []
    for path in (ROOT / "shmrpc").rglob("*.py"):
        folders = path.relative_to(ROOT / "shmrpc").parts
        if folders[:2] == ("transport", "shm") or folders == ("transport", "errors.py"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(rf"\b_core\b.*\b({'|'.join(errors.__all__)})\b", line):
                wrong.append(f"{path}:{number}: {line.strip()}")
    assert not wrong


def test_each_module_has_a_sentence_for_the_page_of_modules() -> None:
    listed = [
        (path, sentence)
        for top, suffix in module_index.FOLDERS.items()
        for path, sentence in module_index.modules(ROOT / top, suffix)
    ]
    assert len(listed) > 300
    assert [str(path.relative_to(ROOT)) for path, sentence in listed if not sentence] == []
