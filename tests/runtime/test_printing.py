"""Tests of printing: text from elsewhere is printed without control characters and passwords."""

import ast
import json
from pathlib import Path

import pytest

from rollax.runtime.printing import (
    escape_control_characters,
    escape_to_one_line,
    mask_address,
    mask_secrets,
    print_line,
)

SOURCE = Path(__file__).parents[2] / "src" / "rollax"
# Calls of `print` with fixed texts.
OF_ITS_OWN = {
    "runtime/printing.py": 1,
    "cli/main.py": 2,
    "cli/parsing/help.py": 1,
    "cli/list_command.py": 1,
}
OF_ITS_OWN |= {"cli/bench_command.py": 1, "cli/sweep_command.py": 1, "cli/train_command.py": 1}
SECRET = "p4ss"


@pytest.mark.quick
@pytest.mark.parametrize(
    "letter", ["\x00", "\x07", "\x08", "\r", "\x1b", "\x7f", "\x9b", "\u202e", "\u2066", "\udc80"]
)
def test_control_characters_are_escaped(letter: str) -> None:
    assert escape_control_characters(f"a{letter}b\n\tc") == f"a\\u{ord(letter):04x}b\n\tc"
    assert escape_to_one_line(f"a{letter}b\nc") == f"a\\u{ord(letter):04x}b\\nc"
    assert escape_control_characters("große Läufe 学習 🙂") == "große Läufe 学習 🙂"


def test_printed_json_can_be_parsed(capsys: pytest.CaptureFixture) -> None:
    print_line(json.dumps({"run": "a\x7f\x1b[31m"}))
    assert json.loads(capsys.readouterr().out) == {"run": "a\x7f\x1b[31m"}


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (f"postgresql://me:{SECRET}@host:5432/db", "postgresql://me:***@host:5432/db"),
        (
            f"postgresql+psycopg://me:{SECRET}@{SECRET}@host/db",
            "postgresql+psycopg://me:***@host/db",
        ),
        (f"mysql://me:{SECRET}/{SECRET}@host/db", "mysql://***"),
        (f"mysql://me:{SECRET}'{SECRET}\"{SECRET}@host/db", "mysql://me:***@host/db"),
        (f"postgresql://host/db?user=me&password={SECRET}", "postgresql://host/db?***"),
        (f"postgresql://host/db?password={SECRET}@{SECRET}", "postgresql://***"),
        (f"redis://:{SECRET}@host:6379/0", "redis://:***@host:6379/0"),
        (f"postgresql:/me:{SECRET}@host", "postgresql:***"),
        ("sqlite:////home/me/tri@ls.db", "sqlite:////home/me/tri@ls.db"),
        ("studies/journal.log", "studies/journal.log"),
    ],
)
def test_passwords_are_masked(address: str, shown: str) -> None:
    assert mask_address(address) == shown
    assert (
        SECRET not in mask_secrets(f"the storage {address} answers no more") or "://" not in address
    )


def test_addresses_of_pages_are_not_masked() -> None:
    page = "see https://example.org/docs?page=2, not https://example.org/?token=abc"
    assert (
        mask_secrets(page)
        == "see https://example.org/docs?page=2, not https://example.org/?token=***"
    )


def test_only_listed_modules_call_print() -> None:
    """All other output uses functions of `runtime.printing`."""
    found: dict[str, int] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "print"
            ):
                name = str(path.relative_to(SOURCE))
                found[name] = found.get(name, 0) + 1
    assert found == OF_ITS_OWN
