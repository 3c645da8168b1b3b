"""Tests of the commands that install rollax, which depend on how it was installed."""

import json
import runpy
import sys
from pathlib import Path

import pytest

from rollax.cli.information import doctor
from rollax.cli.information.doctor import unused_accelerators
from rollax.runtime import installation

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip` on PATH belongs to this Python."""
    folder = Path(sys.executable).parent
    monkeypatch.setattr(installation.shutil, "which", lambda name: str(folder / name))


def installed_from(monkeypatch: pytest.MonkeyPatch, record: dict | None) -> None:
    """Make rollax look installed outside a checkout, with this PEP 610 record."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            return None if record is None else json.dumps(record)

    monkeypatch.setattr(installation, "source_checkout", lambda: None)
    monkeypatch.setattr(installation.metadata, "distribution", lambda name: Distribution())


@pytest.mark.usefixtures("own_pip")
def test_install_command_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has the path of the checkout, which is short inside the checkout."""
    monkeypatch.chdir(tmp_path)
    assert installation.install_command("brax") == f'pip install -e "{ROOT}[brax]"'
    monkeypatch.chdir(ROOT)
    assert installation.install_command("brax") == 'pip install -e ".[brax]"'
    assert installation.version_command("0.1.0") == "git -C . checkout v0.1.0"


@pytest.mark.usefixtures("own_pip")
def test_install_command_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation from a folder names it as long as it exists."""
    record = {"url": tmp_path.as_uri(), "dir_info": {}}
    installed_from(monkeypatch, record)
    assert installation.install_command("brax") == 'pip install "rollax[brax]"'
    (tmp_path / "pyproject.toml").touch()
    assert installation.install_command("brax") == f'pip install "{tmp_path}[brax]"'


@pytest.mark.usefixtures("own_pip")
def test_install_command_of_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation from a repository names its address and commit."""
    record = {
        "url": "https://example.org/rollax.git",
        "vcs_info": {"vcs": "git", "commit_id": "abc"},
    }
    installed_from(monkeypatch, record)
    expected = 'pip install "rollax[brax] @ git+https://example.org/rollax.git@abc"'
    assert installation.install_command("brax") == expected


@pytest.mark.usefixtures("own_pip")
@pytest.mark.parametrize("record", [None, {}])
def test_install_command_of_a_package_index(
    monkeypatch: pytest.MonkeyPatch, record: dict | None
) -> None:
    """An installation without a record comes from a package index."""
    installed_from(monkeypatch, record)
    assert installation.install_command("brax") == 'pip install "rollax[brax]"'
    assert installation.version_command("0.1.0") == 'pip install "rollax==0.1.0"'


def test_pip_of_another_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command names this Python if `pip` on PATH belongs to another Python, or is missing."""
    for found in ("/elsewhere/bin/pip", None):
        monkeypatch.setattr(installation.shutil, "which", lambda name, found=found: found)
        assert installation.pip().endswith(" -m pip")
        assert Path(sys.executable).name in installation.pip()


@pytest.mark.quick
def test_only_one_module_has_installation_commands() -> None:
    """No other module of rollax has an installation command."""
    found = [
        path.name for path in (ROOT / "src").rglob("*.py") if "pip install" in path.read_text()
    ]
    assert found == ["installation.py"]


def nothing(name: object) -> None:
    return None


@pytest.mark.parametrize(
    ("path", "program", "environ", "name", "extra"),
    [
        (doctor.NVIDIA_DRIVER, None, {}, "NVIDIA GPU", "jax[cuda"),
        (None, "/usr/bin/nvidia-smi", {}, "NVIDIA GPU", "jax[cuda"),
        (None, None, {"TPU_NAME": "local"}, "TPU", "jax[tpu]"),
        (doctor.TPU_DEVICE, None, {}, "TPU", "jax[tpu]"),
    ],
)
def test_unused_accelerators(
    monkeypatch: pytest.MonkeyPatch,
    path: Path | None,
    program: str | None,
    environ: dict[str, str],
    name: str,
    extra: str,
) -> None:
    """An accelerator that JAX does not use has an entry with the command for its support."""
    monkeypatch.setattr(doctor, "installed_version", nothing)
    monkeypatch.setattr(doctor.jax, "default_backend", lambda: "cpu")
    found = unused_accelerators(environ, lambda one: one == path, lambda one: program)
    assert [entry.name for entry in found] == [name]
    assert extra in found[0].remedy and "pip install" in found[0].remedy


def test_no_report_if_the_accelerator_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is there a report if the machine has no accelerator."""
    assert unused_accelerators({}, lambda path: False, nothing) == []
    monkeypatch.setattr(doctor.jax, "default_backend", lambda: "gpu")
    assert unused_accelerators({"TPU_NAME": "local"}, lambda path: True, nothing) == []


def test_unused_accelerators_with_a_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The remedy names a plugin that does not start, or JAX_PLATFORMS."""
    monkeypatch.setattr(doctor.jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(doctor, "installed_version", lambda package: "1.0")
    found = unused_accelerators({}, lambda path: True, nothing)
    assert "jax.devices('cuda')" in found[0].remedy and "jax.devices('tpu')" in found[1].remedy
    found = unused_accelerators({"JAX_PLATFORMS": "cpu"}, lambda path: True, nothing)
    assert {entry.remedy for entry in found} == {"Unset JAX_PLATFORMS, which selects the CPU."}


@pytest.mark.parametrize(("driver", "version"), [("580.65.06", 13), ("550.54.14", 12)])
def test_cuda_version_of_a_driver(tmp_path: Path, driver: str, version: int) -> None:
    """Drivers before 580 run CUDA 12."""
    file = tmp_path / "version"
    file.write_text(f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue 2025\n")
    assert doctor.cuda_version(file) == version
    assert doctor.cuda_version(tmp_path / "none") == 13


def test_links_of_the_package_page_are_absolute() -> None:
    """Relative links and images of README.md become addresses of the repository."""
    pytest.importorskip("hatchling")
    links = runpy.run_path(str(ROOT / "hatch_build.py"))["absolute_links"]
    address = "https://example.org/rollax"
    text = "![a](docs/a.png) [b](docs/b.md#c) [d](https://jax.dev) [e](#e)"
    assert links(text, address) == (
        f"![a]({address}/raw/main/docs/a.png) [b]({address}/blob/main/docs/b.md#c) "
        "[d](https://jax.dev) [e](#e)"
    )
    assert "](docs/" not in links((ROOT / "README.md").read_text(), address)
