"""The rules of CONTRIBUTING.md: lengths, nesting, the order of an algorithm's file, and the arrows between packages.

What breaks a rule today stands in EXCEPTIONS with the number it may have. Something new fails, and so does an exception that is
no longer needed: lower its number or take it out.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rollax"
FILES = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
FOLDERS = ("tests", "benchmarks", "examples")
OTHERS = [  # without the virtual environments that benchmarks make
    str(path.relative_to(ROOT))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py")
    if not path.relative_to(ROOT / folder).parts[0].startswith(".venv")
]

FILE_LINES, ALGORITHM_LINES, FUNCTION_LINES, NESTING = 400, 250, 50, 3
EXCEPTIONS: dict[str, dict[str, int]] = {
    "file": {
        "tests/environments/broken.py": 406,
        "tests/environments/test_granular.py": 459,
        "tests/environments/test_rulesets.py": 734,
        "tests/host/test_checkpoint.py": 447,
        "tests/host/test_stopping.py": 450,
    },
    "function": {},
    "nesting": {},
    "order": {},
}

# No arrow points upwards: cli -> host -> algorithms -> acting -> networks -> environments -> tree.
ROOMS = (
    ("errors", "version", "startup", "scopes", "tree", "typed", "config", "spaces"),
    ("environments",),
    ("networks",),
    ("algorithm", "acting", "learning", "replay", "populations", "archives"),
    ("emitters",),
    ("algorithms", "presets"),
    ("host", "scale", "view", "checks", "exporting", "studies"),
    ("cli",),
    ("__init__", "__main__"),
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
ARROWS: set[tuple[str, str]] = set()  # exceptions: (file, room)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check(rule: str, found: dict[str, int], limit: int) -> None:
    """Fails where a number is above the limit and its exception, and where an exception is not needed any more."""
    allowed = EXCEPTIONS[rule]
    new = {name: number for name, number in found.items() if number > allowed.get(name, limit)}
    assert not new, f"above {limit}: {new}"
    unneeded = {name: found.get(name, 0) for name, number in allowed.items() if found.get(name, 0) < number}
    assert not unneeded, f"exceptions that ask for more than there is: {unneeded}"


def functions(node: ast.AST, path: str) -> Iterator[tuple[str, Function]]:
    """Every function of a file, with those inside classes and functions, by its full name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.ClassDef):
            name = f"{path}::{child.name}" if "::" not in path else f"{path}.{child.name}"
            if isinstance(child, Function):
                yield name, child
            yield from functions(child, name)
        else:
            yield from functions(child, path)


def lines(function: Function) -> int:
    """From `def` to its end, without the docstring."""
    first = function.body[0]
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(function, clean=False) is not None else 0
    return function.end_lineno - function.lineno + 1 - docstring


def depth(node: ast.AST) -> int:
    """How deep blocks stand inside one another; `elif` is no deeper than its `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        is_block = isinstance(child, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match | Function | ast.ClassDef)
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, depth(child) + (is_block and not is_elif))
    return deepest


def test_lengths_of_files() -> None:
    lengths = {name: len((ROOT / name).read_text().splitlines()) for name in [*FILES, *OTHERS]}
    of_algorithms = {name: length for name, length in lengths.items() if "/algorithms/" in name and name in FILES}
    check("file", {name: length for name, length in lengths.items() if name not in of_algorithms}, FILE_LINES)
    assert {name: length for name, length in of_algorithms.items() if length > ALGORITHM_LINES} == {}


def test_lengths_of_functions() -> None:
    found = {name: lines(function) for path, tree in FILES.items() for name, function in functions(tree, path)}
    check("function", found, FUNCTION_LINES)


def test_nesting() -> None:
    found = {name: depth(function) for path, tree in FILES.items() for name, function in functions(tree, path)}
    check("nesting", found, NESTING)


# In this order: config, state, loss, init, step, act. What a file lacks is elsewhere; what has another name stands anywhere.
PARTS = (r"\w*Config", r"\w*(State|Agent)", r"\w*loss", "init", "step|update", "act")


def parts(tree: ast.Module) -> list[int]:
    """Which parts of an algorithm a file defines, from top to bottom, also inside its constructor."""
    definitions = [node for node in tree.body if isinstance(node, Function | ast.ClassDef)]
    inner = [node for outer in definitions if isinstance(outer, Function) for node in outer.body if isinstance(node, Function)]
    names = [node.name for node in sorted([*definitions, *inner], key=lambda node: node.lineno)]
    found = [[part for part, pattern in enumerate(PARTS) if re.fullmatch(pattern, name)] for name in names]
    return [part for matches in found for part in matches]


def algorithm_files() -> dict[str, ast.Module]:
    """Those with a constructor that has the file's name."""
    folder = "src/rollax/algorithms/"
    named = {path: Path(path).stem for path in FILES if path.startswith(folder)}
    return {
        path: FILES[path]
        for path, stem in named.items()
        if any(isinstance(node, ast.FunctionDef) and node.name == stem for node in FILES[path].body)
    }


def test_the_order_of_an_algorithm() -> None:
    found = {path: parts(tree) for path, tree in algorithm_files().items()}
    assert {"ppo", "dqn", "sac"} <= {Path(path).stem for path in found}
    late = {path: sum(part < max(order[:i], default=0) for i, part in enumerate(order)) for path, order in found.items()}
    check("order", late, 0)


@pytest.mark.parametrize("path", [path for path in algorithm_files() if not path.endswith("_policy.py")])
def test_an_algorithm_begins_with_its_paper(path: str) -> None:
    docstring = ast.get_docstring(algorithm_files()[path]) or ""
    assert re.search(r"\b(19|20)\d\d\b", docstring), "the docstring of the file names the paper, with its year"


def imported(tree: ast.Module) -> set[str]:
    """The rooms of rollax that a file imports from, wherever the import stands."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [name.name for name in node.names]
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            names += [f"{node.module}.{name.name}" for name in node.names]
    return {name.split(".")[1] for name in names if name.startswith("rollax.")} & set(LEVEL)


def test_arrows() -> None:
    """No room imports from one above it."""
    rooms = {path: Path(path).relative_to("src/rollax").parts[0].removesuffix(".py") for path in FILES}
    assert set(rooms.values()) <= set(LEVEL), "every room has its place in ROOMS"
    wrong = {(path, to) for path, tree in FILES.items() for to in imported(tree) if LEVEL[to] > LEVEL[rooms[path]]}
    assert wrong == ARROWS


def test_no_relative_imports() -> None:
    """By which the test of arrows would be passed."""
    imports = [(path, node) for path, tree in FILES.items() for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert [path for path, node in imports if node.level] == []


def test_slow_tests_run_at_night() -> None:
    """Every file with slow tests, or its folder, is named by the nightly job."""
    job = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    tests = [name for name in OTHERS if "/test_" in name and name != "tests/test_structure.py"]
    slow = [name for name in tests if re.search(r"mark\.slow|\bfirst\(", (ROOT / name).read_text())]
    assert {"tests/laws/test_probes.py", "tests/environments/test_brax_contacts.py"} <= set(slow)
    assert [name for name in slow if name not in job and f"- {Path(name).parent}\n" not in job] == []


def test_the_lowest_versions_are_those_promised() -> None:
    """What the nightly job installs is what pyproject.toml asks for at least."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    promised = {name.lower(): version for name, _, version in (line.partition(">=") for line in dependencies) if version}
    lines = (ROOT / "constraints-lowest.txt").read_text().split()
    lowest = {name: version for name, _, version in (line.partition("==") for line in lines)}
    same = {name: lowest.get(name, "").removesuffix(".0").removesuffix(".0") for name in promised}
    assert same == {name: version.removesuffix(".0") for name, version in promised.items()}
