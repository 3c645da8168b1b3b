"""Names of other libraries for settings, arguments and metrics, and their names in rollax.

Errors about an unknown name suggest the name in this table. The page
docs/tutorials/from-sb3-and-cleanrl.md contains the tables of `format_table`.
"""

from collections.abc import Iterable
from typing import NamedTuple

from rollax.synonyms.algorithm_names import OFF_POLICY_SYNONYMS, ON_POLICY_SYNONYMS
from rollax.synonyms.run_names import (
    CALLBACK_METHODS_SYNONYMS,
    METRICS_SYNONYMS,
    NETWORK_SYNONYMS,
    RUN_SYNONYMS,
)
from rollax.synonyms.synonym import Synonym

SYNONYMS: dict[str, tuple[Synonym, ...]] = {
    "Arguments and options": RUN_SYNONYMS,
    "PPO and other on-policy algorithms": ON_POLICY_SYNONYMS,
    "SAC, TD3 and DQN": OFF_POLICY_SYNONYMS,
    "Networks": NETWORK_SYNONYMS,
    "Metrics": METRICS_SYNONYMS,
    "Methods of a callback": CALLBACK_METHODS_SYNONYMS,
}
"""Synonyms by the title of their table."""


class SynonymMatch(NamedTuple):
    """Names of rollax for a name of another library.

    Attributes:
        names: Names, as spelled in the list of known names.
        remark: Difference in meaning, or an empty string.
    """

    names: tuple[str, ...]
    remark: str

    def describe(self) -> str:
        """Return the names and the remark, for an error message."""
        remark = f" ({self.remark})" if self.remark else ""
        return f"{' and '.join(self.names)}{remark}"


def find_synonym(name: str, known: Iterable[str]) -> SynonymMatch | None:
    """Return the names of rollax for a name of another library.

    Case, dashes and prefixes such as `--`, `config.` and `network.` are ignored. A name that rollax
    has too, but not in this context, is not a synonym of other names.

    Args:
        name: Unknown name.
        known: Names that are known in this context. Other names are not suggested.

    Returns:
        The names, or None if the table does not contain the name.
    """
    spelled: dict[str, str] = {}
    for each in known:
        spelled.setdefault(_normalize(each), each)
    foreign = _normalize(name)
    for synonyms in SYNONYMS.values():
        for synonym in synonyms:
            names = tuple(spelled[each] for each in synonym.rollax if each in spelled)
            is_listed = foreign in map(_normalize, synonym.foreign)
            if names and is_listed and foreign not in synonym.rollax:
                return SynonymMatch(names, synonym.remark)
    return None


def _normalize(name: str) -> str:
    plain = name.removeprefix("--").replace("-", "_").lower()
    for prefix in ("config.", "network.", "options."):
        plain = plain.removeprefix(prefix)
    return plain


def format_table(title: str) -> str:
    """Return the Markdown table of a title in `SYNONYMS`."""
    rows = ["| SB3 | CleanRL | others | rollax | remark |", "|---|---|---|---|---|"]
    for synonym in SYNONYMS[title]:
        names = (synonym.sb3, synonym.cleanrl, synonym.others, synonym.rollax)
        cells = [", ".join(f"`{name}`" for name in each) for each in names]
        rows.append(f"| {' | '.join([*cells, synonym.remark])} |".replace("|  |", "| |"))
    return "\n".join(rows)
