"""Names that other libraries use for settings, arguments and metrics, with the rollax names.

Errors about an unknown name suggest the rollax name in this table. The page
docs/tutorials/from-sb3-and-cleanrl.md contains the tables of `format_table`.
"""

import functools
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import NamedTuple

from rollax.errors import UnknownNameError


class Synonym(NamedTuple):
    """Names of one setting in rollax and in other libraries.

    Attributes:
        rollax: Names in rollax. Not every name exists for every algorithm.
        sb3: Names in Stable-Baselines3.
        cleanrl: Names in CleanRL.
        others: Names in other libraries, such as RLlib, Brax, PureJaxRL and Lightning.
        remark: Difference in meaning.
    """

    rollax: tuple[str, ...]
    sb3: tuple[str, ...] = ()
    cleanrl: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    remark: str = ""

    @property
    def foreign(self) -> tuple[str, ...]:
        """Names in all libraries except rollax."""
        return (*self.sb3, *self.cleanrl, *self.others)


@functools.cache
def read_synonyms() -> dict[str, tuple[Synonym, ...]]:
    """Return the synonyms, keyed by the title of their table."""
    import yaml  # slow, and only errors need it

    text = resources.files("rollax.synonyms").joinpath("synonyms.yaml").read_text("utf-8")
    return {title: tuple(map(_make_synonym, rows)) for title, rows in yaml.safe_load(text).items()}


def _make_synonym(row: Mapping[str, str]) -> Synonym:
    names = {field: tuple(text.split()) for field, text in row.items() if field != "remark"}
    return Synonym(**names, remark=row.get("remark", ""))


class SynonymMatch(NamedTuple):
    """rollax names that correspond to a name of another library.

    Attributes:
        names: Names in rollax, spelled as in the argument `known` of `find_synonym`.
        remark: Difference in meaning, or an empty string.
    """

    names: tuple[str, ...]
    remark: str

    def describe(self) -> str:
        """Format the names and the remark for an error message."""
        remark = f" ({self.remark})" if self.remark else ""
        return f"{' and '.join(self.names)}{remark}"


def find_synonym(name: str, known: Iterable[str]) -> SynonymMatch | None:
    """Return the rollax names that correspond to a name of another library.

    Case and the prefixes `--`, `config.`, `network.` and `options.` are ignored, and dashes count
    as underscores. A name that is also a rollax name in the same row of the table is not treated as
    a synonym.

    Args:
        name: Unknown name.
        known: Names that are valid in this context. Only these are suggested.

    Returns:
        The names and a remark, or None without a match.
    """
    spelled: dict[str, str] = {}
    for each in known:
        spelled.setdefault(_normalize(each), each)
    foreign = _normalize(name)
    for synonyms in read_synonyms().values():
        for synonym in synonyms:
            names = tuple(spelled[each] for each in synonym.rollax if each in spelled)
            is_listed = foreign in map(_normalize, synonym.foreign)
            if names and is_listed and foreign not in synonym.rollax:
                return SynonymMatch(names, synonym.remark)
    return None


class UnknownSettingError(UnknownNameError):
    """Error for an unknown setting, argument, option, metric or method.

    If another library uses the unknown name, the message gives the name that rollax uses for the
    same thing. Otherwise it is the message of `UnknownNameError`.

    Args:
        kind: Category of the name, such as "keyword".
        name: The unknown name.
        names: All known names.
        more: Text that is appended to the message.
    """

    def __init__(self, kind: str, name: str, names: Iterable[str], more: str = "") -> None:
        known = list(names)
        synonym = find_synonym(name, known)
        remedy = None if synonym is None else f"rollax calls it {synonym.describe()}."
        super().__init__(kind, name, known, more, remedy)


def _normalize(name: str) -> str:
    plain = name.removeprefix("--").replace("-", "_").lower()
    for prefix in ("config.", "network.", "options."):
        plain = plain.removeprefix(prefix)
    return plain


def format_table(title: str) -> str:
    """Return the synonyms with the given title (see `read_synonyms`) as a Markdown table."""
    rows = ["| SB3 | CleanRL | others | rollax | remark |", "|---|---|---|---|---|"]
    for synonym in read_synonyms()[title]:
        names = (synonym.sb3, synonym.cleanrl, synonym.others, synonym.rollax)
        cells = [", ".join(f"`{name}`" for name in each) for each in names]
        rows.append(f"| {' | '.join([*cells, synonym.remark])} |".replace("|  |", "| |"))
    return "\n".join(rows)
