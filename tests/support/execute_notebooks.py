"""Execution of the notebooks, which updates their outputs.

Usage: `python tests/support/execute_notebooks.py [NOTEBOOK...]`

The kernel is this interpreter. Notebooks run in a temporary folder, so that runs are not written to
the checkout. `--output FOLDER` writes the executed notebooks to a folder instead.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
CELL_SECONDS = 600  # limit of one cell
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class CurrentInterpreter(KernelSpecManager):
    """Kernel specifications that always start the current interpreter."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")


def execute(notebook: Path, output: Path) -> None:
    """Execute a notebook in a temporary folder and write it to `output`.

    Args:
        notebook: Notebook to execute.
        output: File to write, which may be the notebook itself.

    Raises:
        CellExecutionError: If a cell raises an error.
    """
    document = nbformat.read(notebook, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            document,
            km=AsyncKernelManager(kernel_spec_manager=CurrentInterpreter()),
            timeout=CELL_SECONDS,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=kernel_environment())
    document.metadata = nbformat.from_dict(METADATA)
    nbformat.write(document, output)


def kernel_environment() -> dict[str, str]:
    """Return the environment variables of kernels, which import rollax from this checkout."""
    path = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONWARNINGS": "ignore:IProgress not found",  # warning of tqdm without ipywidgets
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Execute notebooks and update their outputs.")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of notebooks/")
    parser.add_argument("--output", type=Path, help="folder for the executed notebooks")
    arguments = parser.parse_args()
    for notebook in arguments.notebooks or sorted(NOTEBOOKS.glob("*.ipynb")):
        print(notebook.name, flush=True)
        folder = arguments.output or notebook.parent
        execute(notebook, folder / notebook.name)


if __name__ == "__main__":
    main()
