"""Tests of packages whose `__init__` runs only when one of its names is used (`lazy_imports`)."""

import importlib
import sys
from pathlib import Path

import pytest

from rollax.environments.suites.lazy_imports import defer_package_init


def test_a_package_with_modules_that_import_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `jaxmarl.environments.jaxnav`, a module imports from its package during its import."""
    files = {
        "outer/__init__.py": "from outer.part import found, RAN\nRAN.append('outer')\n",
        "outer/part/__init__.py": "RAN = []\nfrom outer.part.inner import found\n",
        "outer/part/inner.py": "import outer.part.leaf as leaf\nfound = leaf.VALUE\n",
        "outer/part/leaf.py": "VALUE = 3\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        defer_package_init("outer")
        part = importlib.import_module("outer.part")
        assert (part.found, part.RAN) == (3, [])
        assert sys.modules["outer"].found == 3  # using a name runs the package's code
        assert part.RAN == ["outer"]
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "outer"]:
            del sys.modules[name]
