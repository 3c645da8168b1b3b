"""Import of modules that the user names."""

import sys
from pathlib import Path

import pytest

from rollax.errors import UsageError
from rollax.runtime import user_modules
from rollax.runtime.user_modules import import_user_module


@pytest.fixture(autouse=True)
def _restored_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(user_modules, "_added_folders", set())


def test_every_module_must_be_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the second one, after the first has added the current folder to the path."""
    (tmp_path / "first_of_two.py").touch()
    (tmp_path / "textwrap_of_two.py").touch()
    installed = tmp_path / "installed"
    installed.mkdir()
    (installed / "textwrap_of_two.py").touch()
    monkeypatch.setattr(sys, "path", [*sys.path, str(installed)])
    import_user_module("first_of_two")
    with pytest.raises(UsageError, match="the name must be unique"):
        import_user_module("textwrap_of_two")
    assert sys.modules.pop("first_of_two").__file__ == str(tmp_path / "first_of_two.py")


def test_a_wrong_name_is_blamed_on_its_source() -> None:
    with pytest.raises(UsageError, match="--import must be the dotted name"):
        import_user_module("my-plant.py")
    with pytest.raises(UsageError, match=r"gymnasium/my-plant:X: 'my-plant' must be the dotted"):
        import_user_module("my-plant", source="gymnasium/my-plant:X")
