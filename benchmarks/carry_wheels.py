r"""Collection of Python packages to carry to a machine without a network.

Usage: `python benchmarks/carry_wheels.py FOLDER [PACKAGE ...] [--python 3.12]`.

Downloads wheels without their dependencies and unpacks them into FOLDER. On the other
machine, the folder needs only to be on PYTHONPATH, and nothing is installed there:

    PYTHONPATH=src:FOLDER python benchmarks/accelerator.py

By default, the packages are those that rollax needs in addition to jax, equinox, optax, orbax,
jaxtyping, matplotlib, scipy, rich, pyyaml, pillow, filelock and six, and XLand-MiniGrid. Packages
that are named replace this list. `+` in front of a name adds it to the list. The program prints the
requirements of the packages that are not in FOLDER, so that you can compare them with the packages
of the other machine.

Examples:

    python benchmarks/carry_wheels.py carried
    python benchmarks/carry_wheels.py carried +craftax
    python benchmarks/carry_wheels.py peers rejax==0.1.3 gymnax==0.0.9 distrax tfp-nightly \
        decorator gast dm-tree wrapt --platforms manylinux_2_28_x86_64 manylinux_2_17_x86_64
"""

import argparse
import email
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MISSING = (
    "tyro",
    "docstring-parser",
    "typeguard",
    "gymnax",
    "gymnasium",
    "farama-notifications",
    "platformdirs",
    "tensorboardX",
    "xminigrid",
)


def main() -> None:
    arguments = parsed()
    packages = selected(arguments.packages)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        download(packages, Path(folder), arguments.python, arguments.platforms)
        wheels = sorted(Path(folder).glob("*.whl"))
        for wheel in wheels:
            unpack(wheel, arguments.folder)
        size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"Unpacked {len(wheels)} packages ({size / 1e6:.1f} MB packed) into {arguments.folder}.")
    if needed := requirements(arguments.folder):
        print(f"They also require: {', '.join(needed)}.")
    print(f"On the other machine, from the root of the checkout:\n  {how_to_use(arguments.folder)}")


def selected(names: list[str]) -> list[str]:
    """Return the packages to download, given the arguments of the command line."""
    added = [name[1:] for name in names if name.startswith("+")]
    replaced = [name for name in names if not name.startswith("+")]
    return [*(replaced or MISSING), *added]


def download(packages: list[str], folder: Path, python: str, platforms: list[str]) -> None:
    """Download one wheel per package without dependencies. Exit if one cannot be downloaded."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python]
    command += [word for name in platforms for word in ("--platform", name)]
    command += ["--disable-pip-version-check", "--dest", str(folder), *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"pip cannot download {', '.join(packages)} for Python {python}:\n{done.stderr}\n"
            "For compiled packages, add --platforms, such as manylinux_2_28_x86_64."
        )


def unpack(wheel: Path, folder: Path) -> None:
    """Unpack a wheel. Files of another version of the package are removed first."""
    with zipfile.ZipFile(wheel) as file:
        metadata = next(x for x in file.namelist() if x.endswith(".dist-info/METADATA"))
        project = metadata.split("-")[0]
        for old in folder.glob(f"{project}-*.dist-info"):
            remove(folder, old)
        file.extractall(folder)
    for libraries in folder.glob("*.data/*lib"):  # purelib and platlib
        shutil.copytree(libraries, folder, dirs_exist_ok=True)
    for data in folder.glob("*.data"):
        shutil.rmtree(data)


def remove(folder: Path, old: Path) -> None:
    """Remove the files of a package, which the RECORD of its folder of metadata lists."""
    for line in (old / "RECORD").read_text(encoding="utf-8").splitlines():
        (folder / line.split(",")[0]).unlink(missing_ok=True)
    shutil.rmtree(old, ignore_errors=True)


def requirements(folder: Path) -> list[str]:
    """Return the names of packages that those in a folder require, and that are not in it."""
    carried, required = set(), set()
    for path in folder.glob("*.dist-info/METADATA"):
        metadata = email.message_from_string(path.read_text(encoding="utf-8"))
        carried.add(normalized(str(metadata["Name"])))
        for line in metadata.get_all("Requires-Dist", []):
            if "extra ==" not in line:
                required.add(normalized(re.split(r"[^\w.\-]", line, maxsplit=1)[0]))
    return sorted(required - carried)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def how_to_use(folder: Path) -> str:
    return f"PYTHONPATH=src:{folder} python benchmarks/accelerator.py"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder of the unpacked packages")
    parser.add_argument("packages", nargs="*", help=f"of pip; by default {', '.join(MISSING)}")
    parser.add_argument("--python", default="3.12", help="version of Python there [3.12]")
    parser.add_argument(
        "--platforms", nargs="+", default=["any"], help="of the wheels; any: pure Python [any]"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
