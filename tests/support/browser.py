"""Pages in a headless browser without network access."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser: chromium, chromium-browser or google-chrome"
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)


def opened(
    page: Path, folder: Path, budget: int = 20000, picture: Path | None = None, at: str = ""
) -> subprocess.CompletedProcess:
    """Return the process of a browser that opened a page, with its elements or a screenshot.

    Args:
        page: File to open.
        folder: Folder for data of the browser.
        budget: Virtual time in milliseconds.
        picture: File of the screenshot. Without it, standard output has the elements.
        at: Fragment of the address.
    """
    wanted = "--dump-dom" if picture is None else f"--screenshot={picture}"
    command = [
        *(
            CHROMIUM,
            *FLAGS,
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={folder / 'browser'}",
        ),
        *(
            "--enable-logging=stderr",
            "--window-size=900,600",
            f"--virtual-time-budget={budget}",
            wanted,
            page.resolve().as_uri() + at,
        ),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=240, env=environment
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line], done.stderr
    return done
