"""Rules of CONTRIBUTING.md: lengths, nesting, order in algorithm files, and import directions.

Current violations are in EXCEPTIONS with their number. New violations fail, and so do exceptions
that are no longer needed: lower their number or remove them.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from laws.table import first

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rollax"
FILES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text())
    for path in sorted(SOURCE.rglob("*.py"))
}
FOLDERS = ("tests", "benchmarks", "examples")
OTHERS = [  # without virtual environments of benchmarks
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not path.relative_to(ROOT / folder).parts[0].startswith(".venv")
]

FILE_LINES, ALGORITHM_LINES, FUNCTION_LINES, NESTING = 400, 250, 50, 3
FOLDER_MODULES = 14
EXCEPTIONS: dict[str, dict[str, int]] = {
    "file": {
        "tests/checks/broken_environments.py": 466,
        "tests/cli/test_commands.py": 431,
        "tests/environments/native/test_granular.py": 439,
        "tests/environments/suites/test_rulesets.py": 712,
        "tests/networks/test_layers.py": 407,
        "tests/runs/test_evolving_populations.py": 410,
        "tests/runs/test_stopping.py": 432,
        "tests/sweeps/test_study.py": 522,
        "tests/training/evaluation/test_metrics.py": 406,
        "tests/visualization/report/test_report.py": 416,
    },
    "function": {},
    "nesting": {},
    "order": {},
    "folder": {},
}

# Module names that several folders have: parts of suites, and registries.
SHARED_NAMES = {"adapter", "catalogue", "drawing", "objects", "registry"}

# Imports never lead upwards: cli -> host -> algorithms -> acting -> networks -> environments ->
# tree.
ROOMS = (
    (
        "action_spaces",
        "config",
        "errors",
        "runtime",
        "scopes",
        "spaces",
        "synonyms",
        "tree",
        "types",
        "user_input",
        "version",
    ),
    ("canvas",),
    ("environments",),
    ("networks",),
    ("algorithm", "acting", "learning", "replay", "populations", "archives"),
    ("emitters",),
    ("algorithms",),
    ("checks", "presets", "distributed"),
    ("training", "policy", "prediction", "loading"),
    ("sweeps", "exporting", "visualization", "api"),
    ("cli",),
    ("__init__", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
ARROWS: set[tuple[str, str]] = set()  # exceptions as (file, room)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check(rule: str, found: dict[str, int], limit: int) -> None:
    """Check that no number exceeds its limit or exception, and that all exceptions are needed."""
    allowed = EXCEPTIONS[rule]
    new = {name: number for name, number in found.items() if number > allowed.get(name, limit)}
    assert not new, f"above {limit}: {new}"
    unneeded = {
        name: found.get(name, 0) for name, number in allowed.items() if found.get(name, 0) < number
    }
    assert not unneeded, f"exceptions that ask for more than there is: {unneeded}"


def functions(node: ast.AST, path: str) -> Iterator[tuple[str, Function]]:
    """Yield every function of a file by its qualified name, including nested ones."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = f"{path}::{child.name}" if "::" not in path else f"{path}.{child.name}"
            if isinstance(child, Function):
                yield name, child
            yield from functions(child, name)
        else:
            yield from functions(child, path)


def code_lines(node: ast.AST, source: list[str]) -> int:
    """Return the number of lines of code of a file, or of the body of a function.

    Docstrings, comments and blank lines are not counted.
    """
    skipped: set[int] = set()
    for inner in ast.walk(node):
        is_documented = isinstance(inner, Function | ast.ClassDef | ast.Module)
        if is_documented and ast.get_docstring(inner, clean=False) is not None:
            skipped |= set(range(inner.body[0].lineno, inner.body[0].end_lineno + 1))
    first = node.body[0].lineno if isinstance(node, Function) else 1
    numbers = set(range(first, getattr(node, "end_lineno", len(source)) + 1)) - skipped
    return sum(
        bool(text) and not text.startswith("#") for text in (source[n - 1].strip() for n in numbers)
    )


def depth(node: ast.AST) -> int:
    """Return the maximum depth of nested blocks. `elif` has the depth of its `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        is_block = isinstance(
            child,
            ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match | Function | ast.ClassDef,
        )
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, depth(child) + (is_block and not is_elif))
    return deepest


def test_length_of_files() -> None:
    trees = FILES | {name: ast.parse((ROOT / name).read_text()) for name in OTHERS}
    lengths = {
        name: code_lines(tree, (ROOT / name).read_text().splitlines())
        for name, tree in trees.items()
    }
    algorithms = [name for name in FILES if "/algorithms/" in name]
    check("file", {name: n for name, n in lengths.items() if name not in algorithms}, FILE_LINES)
    assert {name: lengths[name] for name in algorithms if lengths[name] > ALGORITHM_LINES} == {}


def test_length_of_functions() -> None:
    found = {
        name: code_lines(function, (ROOT / path).read_text().splitlines())
        for path, tree in FILES.items()
        for name, function in functions(tree, path)
    }
    check("function", found, FUNCTION_LINES)


def test_nesting_of_functions() -> None:
    found = {
        name: depth(function)
        for path, tree in FILES.items()
        for name, function in functions(tree, path)
    }
    check("nesting", found, NESTING)


# Order of the parts: config, state, loss, init, step, act. Parts may be missing, and other names
# may be anywhere.
PARTS = (r"\w*Config", r"\w*(State|Agent)", r"\w*loss", "init", "step|update", "act")


def parts(tree: ast.Module) -> list[int]:
    """Return the parts of an algorithm that a file defines in order.

    Functions inside of its constructor are included.
    """
    definitions = [node for node in tree.body if isinstance(node, Function | ast.ClassDef)]
    inner = [
        node
        for outer in definitions
        if isinstance(outer, Function)
        for node in outer.body
        if isinstance(node, Function)
    ]
    names = [node.name for node in sorted([*definitions, *inner], key=lambda node: node.lineno)]
    found = [
        [part for part, pattern in enumerate(PARTS) if re.fullmatch(pattern, name)]
        for name in names
    ]
    return [part for matches in found for part in matches]


def algorithm_files() -> dict[str, ast.Module]:
    """Return the algorithm files, which have a constructor with the name of the file."""
    folder = "src/rollax/algorithms/"
    named = {
        path: Path(path).stem
        for path in FILES
        if path.startswith(folder) and not path.endswith("_policy.py")  # shared by algorithms
    }
    return {
        path: FILES[path]
        for path, stem in named.items()
        if any(isinstance(node, ast.FunctionDef) and node.name == stem for node in FILES[path].body)
    }


def test_parts_of_an_algorithm_are_in_order() -> None:
    found = {path: parts(tree) for path, tree in algorithm_files().items()}
    assert {"ppo", "dqn", "sac"} <= {Path(path).stem for path in found}
    late = {
        path: sum(part < max(order[:i], default=0) for i, part in enumerate(order))
        for path, order in found.items()
    }
    check("order", late, 0)


@pytest.mark.parametrize("path", list(algorithm_files()))
def test_the_docstring_of_an_algorithm_names_its_paper(path: str) -> None:
    docstring = ast.get_docstring(algorithm_files()[path]) or ""
    assert re.search(r"\b(19|20)\d\d\b", docstring), (
        "the docstring of the file names the paper, with its year"
    )


def imported(tree: ast.Module) -> set[str]:
    """Return the top-level packages of rollax that a file imports.

    Imports in functions are included.
    """
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [name.name for name in node.names]
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names += [f"{node.module}.{name.name}" for name in node.names]
    return {name.split(".")[1] for name in names if name.startswith("rollax.")} & set(LEVEL)


def test_no_package_imports_from_a_higher_level() -> None:
    """The levels are those of ROOMS."""
    rooms = {
        path: Path(path).relative_to("src/rollax").parts[0].removesuffix(".py") for path in FILES
    }
    assert set(rooms.values()) <= set(LEVEL), "every room has its place in ROOMS"
    wrong = {
        (path, to)
        for path, tree in FILES.items()
        for to in imported(tree)
        if LEVEL[to] > LEVEL[rooms[path]]
    }
    assert wrong == ARROWS


def imported_modules(tree: ast.Module) -> set[str]:
    """Return the full names that a file imports, including imports in functions."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{name.name}" for name in node.names}
    return names


def suite_folders() -> list[Path]:
    """Return the folders of all suites, native and of other packages."""
    return sorted(path.parent for path in SOURCE.glob("environments/*/*/catalogue.py"))


def test_suites_are_imported_through_the_table() -> None:
    """The exceptions are `rollax.from_...` and the check of Gymnasium environments."""
    suites = [".".join(path.relative_to(SOURCE.parent).parts) + "." for path in suite_folders()]
    assert "rollax.environments.suites.brax." in suites
    found = {
        path
        for path, tree in FILES.items()
        for name in imported_modules(tree)
        if not path.startswith("src/rollax/environments/") and f"{name}.".startswith(tuple(suites))
    }
    assert found == {"src/rollax/__init__.py", "src/rollax/checks/gymnasium_check.py"}


def test_catalogues_import_no_other_modules() -> None:
    """A list of all environments therefore imports no suite."""
    catalogues = [path for path in FILES if path.endswith("/catalogue.py")]
    assert len(catalogues) > 10
    wrong = {
        (path, name)
        for path in catalogues
        for name in imported_modules(FILES[path])
        if name != "rollax.environments.suites.suite.Suite" and ".catalogue." not in name
    }
    assert wrong == set()


def test_number_of_modules_per_folder() -> None:
    counts: dict[str, int] = {}
    for path in FILES:
        if not path.endswith("/__init__.py"):
            counts[str(Path(path).parent)] = counts.get(str(Path(path).parent), 0) + 1
    del counts["src/rollax/algorithms"]  # one file per algorithm
    check("folder", counts, FOLDER_MODULES)


def test_module_names_are_unique() -> None:
    """The exceptions have the same meaning in each package."""
    stems = [Path(path).stem for path in FILES if not path.endswith("/__init__.py")]
    assert {stem for stem in stems if stems.count(stem) > 1} == SHARED_NAMES


def test_there_are_no_relative_imports() -> None:
    """The check of import levels would miss them."""
    imports = [
        (path, node)
        for path, tree in FILES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    ]
    assert [path for path, node in imports if node.level] == []


def test_slow_tests_are_in_the_nightly_job() -> None:
    """The job lists every file with slow tests, or its folder."""
    job = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    tests = [name for name in OTHERS if "/test_" in name and name != "tests/test_structure.py"]
    slow = [name for name in tests if re.search(r"mark\.slow|\bfirst\(", (ROOT / name).read_text())]
    assert {"tests/laws/test_probes.py", "tests/environments/suites/test_brax_contacts.py"} <= set(
        slow
    )
    assert [
        name
        for name in slow
        if name not in job and not any(f"- {folder}\n" in job for folder in Path(name).parents)
    ] == []


@pytest.mark.quick
def test_the_first_row_is_quick() -> None:
    """Rows that are not named are slow."""
    marks = {
        row.values[0]: [mark.name for mark in row.marks]
        for row in first("ppo", "dqn", "bc", "map_elites")
    }
    assert (marks["ppo"], marks["dqn"], marks["ppo-gru"]) == (["quick"], [], ["slow"])


def test_the_lowest_tested_versions_are_those_of_pyproject() -> None:
    """The nightly job installs the lowest versions that pyproject.toml allows."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    promised = {
        name.lower(): version
        for name, _, version in (line.partition(">=") for line in dependencies)
        if version
    }
    lines = (ROOT / "constraints-lowest.txt").read_text().split()
    lowest = {name: version for name, _, version in (line.partition("==") for line in lines)}
    same = {name: lowest.get(name, "").removesuffix(".0").removesuffix(".0") for name in promised}
    assert same == {name: version.removesuffix(".0") for name, version in promised.items()}


# Number of parameters annotated with `Any` by package. Pytrees of users have types of
# `rollax.types`.
ANY_PARAMETERS = {
    "checks": 11,
}
ANY_SHARE = 0.05  # limit for all packages without an entry


def has_any(annotation: ast.AST) -> bool:
    """Return whether `Any` occurs in an annotation."""
    return any(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(annotation))


def annotations(function: Function) -> list[ast.expr]:
    """Return the annotations of the parameters of a function."""
    names = function.args
    others = [name for name in (names.vararg, names.kwarg) if name is not None]
    parameters = [*names.posonlyargs, *names.args, *names.kwonlyargs, *others]
    return [name.annotation for name in parameters if name.annotation is not None]


def test_parameters_have_specific_types() -> None:
    """Each package has at most its number of parameters with `Any`, or the general share."""
    numbers: dict[str, list[bool]] = {}
    for path, tree in FILES.items():
        package = Path(path).relative_to("src/rollax").parts[0].removesuffix(".py")
        numbers.setdefault(package, [])
        for _, function in functions(tree, path):
            numbers[package] += [has_any(annotation) for annotation in annotations(function)]
    above = {
        package: sum(found)
        for package, found in numbers.items()
        if sum(found) > max(ANY_PARAMETERS.get(package, 0), int(ANY_SHARE * len(found)))
    }
    assert not above, f"more parameters with Any than allowed: {above}"
    unneeded = {
        package: sum(numbers[package])
        for package, number in ANY_PARAMETERS.items()
        if sum(numbers[package]) < number
    }
    assert not unneeded, f"exceptions that ask for more than there is: {unneeded}"
