"""Tests that changes can affect, by the imports of src/ and tests/.

An import of a name follows re-exports to the module that defines the name, so `from rollax import
train` depends on `rollax/api.py`, and not on everything that `rollax/__init__.py` imports. Suites
and algorithms are imported by their name. Their modules count for the tests that contain the name,
and for those that list all of them. Imports for type checkers do not count.
"""

import ast
import functools
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from quick_set import ROOT, list_files

ROOTS = ("src", "tests")
# A change of one of these files can affect every test.
EVERYTHING = ("conftest.py", "pyproject.toml", "constraints.txt")
SUITES = "src/rollax/environments/suites/table.py"
ALGORITHMS = "src/rollax/algorithms/builtin.py"
# A test that imports one of these may use every suite and every algorithm.
LISTS = (SUITES, ALGORITHMS, "src/rollax/algorithms/registry.py", "src/rollax/presets/__init__.py")


class Node(NamedTuple):
    """Dependencies of one file.

    Attributes:
        imports: Files that it uses.
        strings: String constants, which may be names of suites or of data files.
    """

    imports: frozenset[str]
    strings: frozenset[str]


def changed_files() -> list[str]:
    """Return the files that differ from main: on this branch, uncommitted, or untracked."""
    bases = git("merge-base", "HEAD", "main") or git("merge-base", "HEAD", "origin/main")
    untracked = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", *bases), *untracked})


def git(*words: str) -> list[str]:
    """Return the lines that a git command prints, or none if it fails."""
    result = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.splitlines() if result.returncode == 0 else []


def affected_tests(changed: list[str]) -> list[str]:
    """Return the test files that a change of the given files can affect."""
    if any(Path(file).name in EVERYTHING for file in changed):
        return list_files()
    code = {file for file in changed if is_module(file)}
    code |= {neighbor for file in changed if file not in code for neighbor in modules_of_data(file)}
    return [
        file
        for file in list_files()
        if reachable_files(file) & code or any(names(file, path) for path in changed)
    ]


def is_module(file: str) -> bool:
    return file.endswith(".py") and file.startswith(tuple(f"{root}/" for root in ROOTS))


def modules_of_data(file: str) -> Iterator[str]:
    """Return the modules next to a data file in src/ or tests/, which may read it."""
    if file.startswith(tuple(f"{root}/" for root in ROOTS)):
        for path in (ROOT / file).parent.glob("*.py"):
            yield str(path.relative_to(ROOT))


def names(test: str, path: str) -> bool:
    """Return whether a test contains the name of a file, or a string with one of its folders.

    For files in src/ and tests/, only these two folders count, because the names of other folders
    are common words.
    """
    folders = Path(path).parts[:-1]
    folders = folders[:1] if path.startswith(tuple(f"{root}/" for root in ROOTS)) else folders
    strings = read_node(test).strings
    parts = {part for string in strings for part in string.split("/")}
    return bool(parts & set(folders)) or any(Path(path).name in string for string in strings)


@functools.cache
def reachable_files(test: str) -> frozenset[str]:
    """Return the files that a test file depends on, with itself."""
    conftests = {
        str((parent / "conftest.py").relative_to(ROOT))
        for parent in (ROOT / test).parents
        if (parent / "conftest.py").exists()
    }
    helpers = closure({test, *conftests}, imported_helpers)
    imports = {file for helper in helpers for file in read_node(helper).imports}
    strings = {string for helper in helpers for string in read_node(helper).strings}
    words = {word for string in strings for word in re.split(r"\W+", string)}
    uses_all = bool(words & {"list_environments", "list_algorithms"} or imports & set(LISTS))
    named = {
        SUITES: {file for suite, file in suite_modules() if uses_all or suite in words},
        ALGORITHMS: {file for name, file in algorithm_modules() if uses_all or name in words},
    }

    def dependencies(file: str) -> set[str]:
        return read_node(file).imports | named.get(file, set())

    found = closure(helpers, dependencies)
    packages = {
        str((parent / "__init__.py").relative_to(ROOT))
        for file in found
        for parent in (ROOT / file).parents
        if (parent / "__init__.py").exists()
    }
    return frozenset(found | packages)


def imported_helpers(file: str) -> set[str]:
    """Return the files of tests/ that a file imports."""
    return {file for file in read_node(file).imports if file.startswith("tests/")}


def closure(files: Iterable[str], dependencies: Callable[[str], Iterable[str]]) -> set[str]:
    """Return files with all their dependencies, direct and indirect."""
    found, waiting = set(), list(files)
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting += dependencies(file)
    return found


@functools.cache
def suite_modules() -> list[tuple[str, str]]:
    """Return the name of each suite in the table of suites with every file of its folder."""
    rows = re.findall(r'"(\w+)": "([\w.]+)"', (ROOT / SUITES).read_text())
    return [
        (name, file)
        for name, folder in rows
        for module, file in modules().items()
        if f"{module}.".startswith(f"rollax.environments.{folder}.")
    ]


@functools.cache
def algorithm_modules() -> list[tuple[str, str]]:
    """Return the name and the file of each algorithm in the table of algorithms."""
    rows = re.compile(
        r'^    "(\w+)": (?:BuiltinAlgorithm|_quality_diversity|_q_learning)\(', re.MULTILINE
    )
    names = rows.findall((ROOT / ALGORITHMS).read_text())
    return [(name, modules()[f"rollax.algorithms.{name}"]) for name in names]


@functools.cache
def modules() -> dict[str, str]:
    """Return the file of every module of src/ and tests/ by its dotted name."""
    found = {}
    for root in ROOTS:
        for path in (ROOT / root).rglob("*.py"):
            parts = path.relative_to(ROOT / root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = str(path.relative_to(ROOT))
    return found


@functools.cache
def parse(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text())


@functools.cache
def read_node(file: str) -> Node:
    """Return the imports and the strings of a file."""
    imports: set[str] = set()
    strings: set[str] = set()
    for node in executed_nodes(parse(file)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                imports |= resolve_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                imports |= resolve_name(node.module or "", alias.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "rollax":
                imports |= resolve_name("rollax", node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
    # A test may patch a dotted name, or run a script. `suite_modules` handles the table of suites.
    if file.startswith("tests/"):
        # conftest.py contains "rollax" for the import hook, not as a command.
        named = strings - {"rollax"} if file == "tests/conftest.py" else strings
        imports |= {found for string in named for found in resolve_string(string)}
    elif file != SUITES:
        named = {string for string in strings & modules().keys() if string.startswith("rollax.")}
        imports |= {modules()[name] for name in named}
    return Node(frozenset(imports - {file}), frozenset(strings))


def executed_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all nodes of a module outside of `if TYPE_CHECKING:`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        waiting += node.orelse if is_typing else ast.iter_child_nodes(node)


def resolve_module(name: str) -> set[str]:
    """Return the file of an imported module. `import rollax` counts by the names that are used."""
    return set() if name == "rollax" else {modules()[name]} if name in modules() else set()


def resolve_name(module: str, name: str) -> set[str]:
    """Return the file that defines an imported name, and the modules that only export it."""
    if f"{module}.{name}" in modules():
        return {modules()[f"{module}.{name}"]}
    if module not in modules():
        return set()
    file = modules()[module]
    if file.endswith("__init__.py"):
        for node in ast.walk(parse(file)):  # includes `if TYPE_CHECKING`, which lists lazy names
            exported = isinstance(node, ast.ImportFrom) and name in {
                a.asname or a.name for a in node.names
            }
            if exported:
                return resolve_name(node.module, name)
    return {file}


def resolve_string(string: str) -> set[str]:
    """Return the files that a string names.

    It may be a dotted name, the imports of a script, or the command `rollax`.
    """
    if string == "rollax":
        return {"src/rollax/__main__.py"}
    found: set[str] = set()
    for name in re.findall(r"\brollax(?:\.\w+)+", string):
        parts = name.split(".")
        known = [
            name for n in range(len(parts), 1, -1) if (name := ".".join(parts[:n])) in modules()
        ]
        found |= {modules()[known[0]]} if known else resolve_name("rollax", parts[1])
    for module, names in re.findall(r"from (rollax[\w.]*) import ([\w, ]+)", string):
        for name in re.findall(r"\w+", names):
            found |= resolve_name(module, name)
    return found
