"""The help of `rollax train`: the settings that matter first, in groups, each with the value that is tuned for the pair."""

import ast
import dataclasses
import inspect
import textwrap
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollax.typed import hints

WIDTH = 100  # where there is no terminal
MOST_SETTINGS = 8  # of an algorithm, in the short help
# What people change first, in this order; of an algorithm that has fewer of these, its first settings.
RUN = ("total_steps", "seeds", "seed", "run_dir")
SETTINGS = (
    "intrinsic_coefficient",
    *("learning_rate", "gamma", "num_envs", "num_steps", "num_minibatches", "num_epochs", "gae_lambda", "entropy_coefficient"),
    *("batch_size", "capacity", "warmup", "tau", "exploration_fraction", "grid", "num_emitters", "sigma"),
    *("iso_sigma", "line_sigma", "gradient_fraction", "critic_updates", "policy_updates", "num_iterations"),
)
NETWORK = ("hidden", "activation", "core")


class Option(NamedTuple):
    """A line of help."""

    name: str  # with dashes and prefix: "--config.learning-rate"
    values: str  # what it takes: "FLOAT"
    default: str
    words: str


class Group(NamedTuple):
    """Options under one title."""

    title: str
    options: list[Option]


TRAIN = """\
usage: rollax train ALGORITHM ENVIRONMENT [options]

Trains ALGORITHM on ENVIRONMENT and leaves a run folder. Both are needed:

  ALGORITHM     {algorithms}
                (`rollax algorithms` says what each is)
  ENVIRONMENT   an id such as gymnax/CartPole-v1 (`rollax envs` lists them)

  rollax train ppo gymnax/CartPole-v1
  rollax train ppo gymnax/CartPole-v1 --total-steps 100k --seeds 8
  rollax train sac gymnax/Pendulum-v1 --learning-rate 3e-4 --hidden 128 128
  rollax train ppo gymnax/CartPole-v1 --help          the settings that matter, with their tuned values
  rollax train ppo gymnax/CartPole-v1 --help-all      all of them

One run by several processes or hosts: --distributed in every one of them, with --coordinator HOST:PORT of the first,
--num-processes N and --process-id I where no Slurm, Open MPI, Kubernetes or TPU says which one it is (docs: scaling).
"""

FURTHER = """\
Further: --env.NAME VALUE sets an argument of the environment, --eval-env.NAME VALUE another value of it for evaluations
(tasks that are held out, other physics). --sweep.NAME VALUES trains a member for each value of a setting, and each
seed, in one compiled program; `rollax sweep` compares settings of all kinds. --preset FILE takes tuned settings from a
file. --evolve.NAME LOW HIGH [log|linear] moves a setting within a range by population-based
training over the members that --seeds counts. --opponents.TYPE RUN lets agents of a type follow the policy of another
run instead of learning. --distributed, in every one of several processes: one run by all of them, which are found by
Slurm and the like, or by --coordinator HOST:PORT --num-processes N --process-id I. --import MODULE imports a module that
registers environments or algorithms of your own. Settings marked * shape the program; all others can be swept and
evolved. Whole numbers may be written 1e6 or 100k."""


def train_help(algorithm: str, environment: str, groups: list[Group], everything: bool) -> None:
    """Prints the help of a pair. `everything`: whether `groups` hold all that there is."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH, no_color=True)
    with console.capture() as captured:
        _print(console, algorithm, environment, groups, everything)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _print(console: Console, algorithm: str, environment: str, groups: list[Group], everything: bool) -> None:
    console.print(f"usage: rollax train {algorithm} {environment} [options]\n", markup=False, soft_wrap=True)
    console.print("In brackets: the defaults, tuned for this pair where it has a preset.")
    for group in groups:
        console.print(Text(f"\n{group.title}", style="bold"))
        console.print(_table(group.options))
    console.print()
    console.print(" ".join(FURTHER.split()), markup=False)
    if not everything:
        console.print("\n--help-all shows all settings.", markup=False)


def _table(options: list[Option]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for option in options:
        name = Text(f"  {option.name}", style="cyan").append(f" {option.values}" if option.values else "", style="dim")
        words = Text(option.words)
        table.add_row(name, words.append(f" [{option.default}]" if option.default else "", style="green"))
    return table


def text_of(kind: type) -> str:
    """The options of a dataclass with defaults, a line or more for each."""
    options = group_of("", kind(), "", {field.name for field in dataclasses.fields(kind)}, None).options
    console = Console(highlight=False, width=WIDTH, no_color=True)
    with console.capture() as captured:
        console.print(_table(options))
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def group_of(title: str, instance: Any, prefix: str, short: set[str], chosen: tuple[str, ...] | None) -> Group:
    """The options of settings: those `chosen` in that order, or all. `short`: names that need no prefix."""
    words, kinds = documented(type(instance)), hints(type(instance))
    fields = {field.name: field for field in dataclasses.fields(instance)}
    names = [name for name in (fields if chosen is None else chosen) if name in fields and name != "total_updates"]
    options = []
    for name in names:
        dashed = name.replace("_", "-")
        text = words.get(name, "").replace("(static)", "").strip()
        if fields[name].metadata.get("static"):
            text = f"* {text}"
        full = f"--{dashed}" if name in short else f"--{prefix}{dashed}"
        options.append(Option(full, metavar(kinds[name]), default(getattr(instance, name)), text))
    return Group(title, options)


def foremost(config: type) -> tuple[str, ...]:
    """The settings of an algorithm that matter most: the usual ones, then its own in their order."""
    names = [field.name for field in dataclasses.fields(config)]
    usual = [name for name in SETTINGS if name in names]
    return tuple([*usual, *(name for name in names if name not in usual)][:MOST_SETTINGS])


def documented(kind: type) -> dict[str, str]:
    """What is written below the fields of a dataclass and of those it derives from; nothing where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError, IndexError):
            continue
        rows = body.body if isinstance(body, ast.ClassDef) else []
        for field, text in zip(rows, rows[1:], strict=False):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
                found[field.target.id] = " ".join(text.value.value.split())  # pyright: ignore
    return found


def metavar(hint: Any) -> str:
    """What an option takes, in a word or two."""
    names = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: ""}
    if hint in names:
        return names[hint]
    inner = [part for part in get_args(hint) if part not in (NoneType, Ellipsis)]
    if get_origin(hint) is Literal:
        return "|".join(map(str, inner))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(metavar, inner)))
    if get_origin(hint) is tuple:
        words = [metavar(part) for part in inner]
        return f"{words[0]} ..." if Ellipsis in get_args(hint) else " ".join(words)
    return "VALUE"


def default(value: Any) -> str:
    """A default, as it would be typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(default, value)) or "none"
    if isinstance(value, int):
        return str(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
