"""Extension of Griffe that documents the fields of settings classes as one table.

The table replaces one heading per field: the fields of a class that is decorated with
`settings_dataclass` or `dataclass` become parameters of the class, with the docstring below each
field as its description.
"""

import re
from typing import Any

import griffe

DECORATORS = {"settings_dataclass", "dataclass", "dataclasses.dataclass"}
FIELD = re.compile(
    r"^(?:static_field|traced_field)\((.*?)(?:,\s*(?:low=|high=)?[-\w. /^*]+)*\)$", re.DOTALL
)


class SettingsTables(griffe.Extension):
    """Replace the documented fields of settings classes by a table of parameters."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Replace the fields of each settings class after the whole package is loaded."""
        moved = [(found, add_table(found)) for found in list(classes_of(pkg))]
        # Afterwards, because subclasses look up fields in their bases.
        for found, names in moved:
            for name in names & set(found.members):
                found.members[name].docstring = None  # fields without a docstring have no heading


def classes_of(owner: griffe.Object) -> Any:
    """Return the settings classes of a module and its submodules."""
    for member in owner.members.values():
        if member.is_alias:
            continue
        if member.is_module:
            yield from classes_of(member)
        elif member.is_class and is_settings(member):
            yield member


def is_settings(found: griffe.Class) -> bool:
    """Return whether a class is decorated with `settings_dataclass` or `dataclass`."""
    return any(
        decorator.callable_path.rpartition(".")[2] in DECORATORS for decorator in found.decorators
    )


def add_table(found: griffe.Class) -> set[str]:
    """Add the documented fields of a class and its bases to its docstring.

    Returns:
        The names of the fields.
    """
    fields = [
        member
        for base in (*reversed(found.mro()), found)
        for member in base.members.values()
        if member.is_attribute
        and not member.is_alias
        and member.annotation is not None
        and member.docstring
    ]
    rows = {field.name: field for field in fields}
    if not rows or found.docstring is None:
        return set()
    parameters = [
        griffe.DocstringParameter(
            name,
            annotation=field.annotation,
            description=field.docstring.value,
            value=default_of(field),
        )
        for name, field in rows.items()
    ]
    found.docstring.parsed.append(griffe.DocstringSectionParameters(parameters, title="Settings:"))
    return set(rows)


def default_of(field: griffe.Attribute) -> str | None:
    """Return the default value of a field as source code."""
    if field.value is None:
        return None
    text = str(field.value)
    match = FIELD.match(text)
    return match[1] if match else text
