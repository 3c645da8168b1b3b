"""Help of `rollax train`: groups of options with descriptions and tuned default values."""

import contextlib
import dataclasses
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, NamedTuple, Union, get_args, get_origin

import docstring_parser
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rollax.types import Settings, TypeHint
from rollax.user_input.coercion import field_types

DEFAULT_WIDTH = 100  # columns, if the output is not a terminal
MAX_MAIN_SETTINGS = 8  # number of algorithm settings in the short help
# Settings that users change most often, in the order of the short help. Algorithms with fewer of
# them show their first settings instead.
MAIN_RUN_OPTIONS = ("total_steps", "seeds", "seed", "stop_when", "run_dir")
MAIN_SETTINGS = (
    "intrinsic_coefficient",
    *(
        "learning_rate",
        "gamma",
        "num_envs",
        "num_steps",
        "num_minibatches",
        "num_epochs",
        "gae_lambda",
        "entropy_coefficient",
    ),
    *(
        "batch_size",
        "capacity",
        "warmup",
        "tau",
        "exploration_fraction",
        "grid",
        "num_emitters",
        "sigma",
    ),
    *(
        "iso_sigma",
        "line_sigma",
        "gradient_fraction",
        "critic_updates",
        "policy_updates",
        "num_iterations",
    ),
)
MAIN_NETWORK_SETTINGS = ("hidden", "activation", "core")


class OptionHelp(NamedTuple):
    """Help of one option.

    Attributes:
        name: Name with dashes and prefix, for example `--config.learning-rate`.
        values: Placeholder for the values of the option, for example `FLOAT`.
        default: Default value as text.
        description: Description.
    """

    name: str
    values: str
    default: str
    description: str


class OptionGroup(NamedTuple):
    """Group of options with a title."""

    title: str
    options: list[OptionHelp]


TRAIN_HELP = """\
usage: rollax train ALGORITHM ENVIRONMENT [options]

Trains ALGORITHM on ENVIRONMENT and writes a run folder. Both arguments are required:

  ALGORITHM     {algorithms}
                (`rollax algorithms` describes them)
  ENVIRONMENT   an id such as gymnax/CartPole-v1 (`rollax envs` lists them)

  rollax train ppo gymnax/CartPole-v1
  rollax train ppo gymnax/CartPole-v1 --total-steps 100k --seeds 8
  rollax train sac gymnax/Pendulum-v1 --learning-rate 3e-4 --hidden 128 128
  rollax train ppo gymnax/CartPole-v1 --stop-when "return_mean>=475"
  rollax train ppo gymnax/CartPole-v1 --help          show the main settings with tuned values
  rollax train ppo gymnax/CartPole-v1 --help-all      show all settings

To train one run with several processes or hosts, pass --distributed in each process. Outside
Slurm, Open MPI, Kubernetes and TPU pods, also pass --coordinator HOST:PORT of the first process,
--num-processes N and --process-id I (docs: scaling).
"""

FURTHER_HELP = """\
More options: --env.NAME VALUE sets an argument of the environment. --eval-env.NAME VALUE sets it
for evaluations only, for example to test on held-out tasks or other physics.
--sweep.NAME VALUES trains one member for each value of a setting and each seed, in one compiled
program. `rollax sweep` compares settings of all kinds. --preset FILE reads tuned settings from a
file. --evolve.NAME LOW HIGH [log|linear] tunes a setting within a range by population-based
training over the members given by --seeds. --opponents.TYPE RUN makes agents of a type follow the
policy of another run instead of learning. --randomize.NAME LOW HIGH samples a parameter of the
environment in every training episode. --curriculum.NAME FIRST LAST changes a parameter of the
environment during training. --distributed trains one run with several processes. Pass it in each
process. The processes are found through Slurm and similar systems, or by
--coordinator HOST:PORT --num-processes N --process-id I. --import MODULE imports a module that
registers custom environments or algorithms. Settings marked * determine array shapes. All others
can be swept and evolved. Counts may be written as 1e6 or 100k."""


def print_train_help(
    algorithm: str, environment: str, groups: list[OptionGroup], has_all_options: bool
) -> None:
    """Print the help of an algorithm and an environment.

    Args:
        algorithm: Name of the algorithm.
        environment: Id of the environment.
        groups: Groups of options to show.
        has_all_options: Whether `groups` contain all options. If False, the help mentions
            `--help-all`.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=DEFAULT_WIDTH, no_color=True)
    with console.capture() as captured:
        _print_help(console, algorithm, environment, groups, has_all_options)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _print_help(
    console: Console,
    algorithm: str,
    environment: str,
    groups: list[OptionGroup],
    has_all_options: bool,
) -> None:
    console.print(
        f"usage: rollax train {algorithm} {environment} [options]\n", markup=False, soft_wrap=True
    )
    console.print("Defaults in brackets are tuned if a preset for this environment exists.")
    for group in groups:
        console.print(Text(f"\n{group.title}", style="bold"))
        console.print(_make_option_table(group.options))
    console.print()
    console.print(" ".join(FURTHER_HELP.split()), markup=False)
    if not has_all_options:
        console.print("\n--help-all shows all settings.", markup=False)


def _make_option_table(options: list[OptionHelp]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for option in options:
        name = Text(f"  {option.name}", style="cyan").append(
            f" {option.values}" if option.values else "", style="dim"
        )
        words = Text(option.description)
        table.add_row(
            name, words.append(f" [{option.default}]" if option.default else "", style="green")
        )
    return table


def format_options(kind: type) -> str:
    """Format the options of a dataclass as a help table with their defaults."""
    options = make_option_group(
        "", kind(), "", {field.name for field in dataclasses.fields(kind)}, None
    ).options
    console = Console(highlight=False, width=DEFAULT_WIDTH, no_color=True)
    with console.capture() as captured:
        console.print(_make_option_table(options))
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def make_option_group(
    title: str,
    instance: Settings,
    prefix: str,
    unprefixed_names: set[str],
    shown_names: tuple[str, ...] | None,
) -> OptionGroup:
    """Build the option group of a settings object.

    Args:
        title: Title of the group.
        instance: Settings whose values are the defaults.
        prefix: Prefix of the options, for example `config.`.
        unprefixed_names: Names of settings that the help shows without the prefix.
        shown_names: Names of the settings to include, in this order. None includes all.

    Returns:
        The group.
    """
    words, kinds = field_docstrings(type(instance)), field_types(type(instance))
    fields = {field.name: field for field in dataclasses.fields(instance)}
    names = [
        name
        for name in (fields if shown_names is None else shown_names)
        if name in fields and name != "total_updates"
    ]
    options = []
    for name in names:
        dashed = name.replace("_", "-")
        text = words.get(name, "").replace("(static)", "").strip()
        if fields[name].metadata.get("static"):
            text = f"* {text}"
        full = f"--{dashed}" if name in unprefixed_names else f"--{prefix}{dashed}"
        options.append(
            OptionHelp(
                full, option_metavar(kinds[name]), format_default(getattr(instance, name)), text
            )
        )
    return OptionGroup(title, options)


def main_settings(config: type) -> tuple[str, ...]:
    """Return the names of the settings in the short help, those in `MAIN_SETTINGS` first."""
    names = [field.name for field in dataclasses.fields(config)]
    usual = [name for name in MAIN_SETTINGS if name in names]
    return tuple([*usual, *(name for name in names if name not in usual)][:MAX_MAIN_SETTINGS])


def field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields of a dataclass, keyed by field name.

    Fields of base classes are included. Classes without available source code are skipped.
    """
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        with contextlib.suppress(OSError, TypeError, SyntaxError):
            fields = docstring_parser.parse_from_object(base).params
            found |= {
                field.arg_name: " ".join((field.description or "").split()) for field in fields
            }
    return found


def option_metavar(hint: TypeHint) -> str:
    """Return a placeholder for the values of an option, for example `INT ...`."""
    names = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: ""}
    if hint in names:
        return names[hint]
    inner = [part for part in get_args(hint) if part not in (NoneType, Ellipsis)]
    if get_origin(hint) is Literal:
        return "|".join(map(str, inner))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(option_metavar, inner)))
    if get_origin(hint) is tuple:
        words = [option_metavar(part) for part in inner]
        return f"{words[0]} ..." if Ellipsis in get_args(hint) else " ".join(words)
    return "VALUE"


def format_default(value: object) -> str:
    """Format a default value in the notation of the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(format_default, value)) or "none"
    if isinstance(value, int):
        return str(value)
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
