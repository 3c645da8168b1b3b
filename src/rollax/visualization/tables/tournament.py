"""Cross-play: matches between the policies of runs, with win rates and Elo ratings."""

import csv
import functools
import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from rollax.acting.matches import make_match
from rollax.algorithm import Algorithm
from rollax.environments.environment import Environment
from rollax.environments.wrappers import AgentId
from rollax.errors import UsageError
from rollax.loading import load_versions
from rollax.policy import Policy
from rollax.populations.self_play import list_seats
from rollax.runtime.numerics import standard_numerics
from rollax.training import user_imports
from rollax.training.compile import cache
from rollax.training.compile.evaluators import max_eval_steps
from rollax.training.evaluation.aggregates import Estimate
from rollax.training.evaluation.elo import estimate_means, estimate_win_rates, fit_elo
from rollax.training.opponents import fit_policy, parse_run_and_checkpoint
from rollax.training.run_folder.files import write_output_file
from rollax.training.run_folder.tables import to_folder_list
from rollax.types import RunPath, State
from rollax.user_input.arguments import coerce_arguments
from rollax.user_input.coercion import format_repr

DEFAULT_GAMES = 256  # between two policies


class CrossPlay(NamedTuple):
    """Results of matches between N policies.

    Attributes:
        environment: Name of the environment.
        names: Name of each policy.
        games: Number of games between each pair of policies, int `[N, N]`. On the diagonal, each
            game counts for both sides. Games with a return that is not finite are left out.
        nonfinite_games: Number of games that are left out, int `[N, N]`.
        win_rates: Win rate of the row against the column, `[N, N]`, with Wilson intervals. A draw
            counts 0.5. A policy wins if the mean return of its agents is higher than that of the
            other agents.
        returns: Mean return of the agents of the row against the column, `[N, N]`, with normal
            intervals. The diagonal is the return against a copy of itself.
        elo: Elo rating of each policy, `[N]`, with a mean of 1000 (`fit_elo`).
    """

    environment: str
    names: tuple[str, ...]
    games: np.ndarray
    nonfinite_games: np.ndarray
    win_rates: Estimate
    returns: Estimate
    elo: Estimate

    def __repr__(self) -> str:
        return format_repr("CrossPlay", environment=self.environment, policies=len(self.names))

    def matrix_to_csv(self, path: Path | str | None = None) -> str:
        """Return the win rates and mean returns as CSV with one line per ordered pair of policies.

        Args:
            path: Output file for the text, or None for no file. An existing file is replaced.
        """
        head = ["policy", "opponent", "games"]
        for name in ("win_rate", "return_mean"):
            head += [name, f"{name}_low", f"{name}_high"]
        head += ["nonfinite_games"]
        rows = [
            [self.names[i], self.names[j], int(self.games[i, j])]
            + [float(part[i, j]) for part in (*self.win_rates, *self.returns)]
            + [int(self.nonfinite_games[i, j])]
            for i, j in itertools.product(range(len(self.names)), repeat=2)
        ]
        return _write_csv([head, *rows], path)

    def elo_to_csv(self, path: Path | str | None = None) -> str:
        """Return the Elo ratings as CSV, best first.

        Args:
            path: Output file for the text, or None for no file. An existing file is replaced.
        """
        rows = [
            [self.names[i], *(float(part[i]) for part in self.elo)]
            for i in np.argsort(-self.elo.value, kind="stable")
        ]
        return _write_csv([["policy", "elo", "elo_low", "elo_high"], *rows], path)


@user_imports.accept_trust_keyword
@standard_numerics()
@coerce_arguments(checkpoints=bool, games=int, seed=int, greedy=bool)
def cross_play(
    runs: RunPath | Iterable[RunPath],
    *,
    checkpoints: bool = False,
    games: int = DEFAULT_GAMES,
    seed: int = 0,
    greedy: bool = False,
    trust: bool = False,
) -> CrossPlay:
    """Let the policies of runs play against each other, and rate them.

    Each pair of policies plays on all sides of the game. A side is an agent type, or an agent if
    all agents have the same type. One policy plays the agents of the side, and the other policy
    plays all other agents.

    Args:
        runs: Results or folders of runs. "RUN@best" or "RUN@40960" selects another checkpoint than
            the last.
        checkpoints: Whether to include all checkpoints of each run and the versions in its pool of
            opponents.
        games: Number of games between each pair of policies, rounded up to a multiple of the number
            of sides times 2.
        seed: Random seed.
        greedy: Whether the policies take their most likely actions instead of sampling.
        trust: Whether to import the modules that are listed in the folders. Set it only for folders
            from people that you trust.

    Returns:
        Win rates, mean returns and Elo ratings.

    Raises:
        UsageError: If there are fewer than two policies, if they were trained in different
            environments, or if the environment has fewer than two agents.
    """
    if games < 1:
        raise UsageError(f"games must be at least 1, got {games}.")
    return play_policies(_load_policies(to_folder_list(runs), checkpoints), games, seed, greedy)


def _load_policies(runs: list[Path], checkpoints: bool) -> dict[str, Policy]:
    """Load the policies of all runs, keyed by a unique name."""
    policies: dict[str, Policy] = {}
    for run in runs:
        source = parse_run_and_checkpoint(str(run))
        loaded = load_versions(source.folder, None if checkpoints else source.checkpoint)
        for version, policy in loaded.items():
            name = f"{source.folder.resolve().name} {version}" if len(runs) > 1 else version
            policies[name if name not in policies else f"{source.folder} {version}"] = policy
    return policies


class _Player(NamedTuple):
    """Policy that can play all agents of an environment."""

    algorithm: Algorithm
    state: State


def play_policies(
    policies: Mapping[str, Policy], games: int = DEFAULT_GAMES, seed: int = 0, greedy: bool = False
) -> CrossPlay:
    """Let policies play against each other, and rate them.

    Args:
        policies: Policies, keyed by name.
        games: Number of games between each pair, as in `cross_play`.
        seed: Random seed.
        greedy: Whether the policies take their most likely actions instead of sampling.

    Returns:
        Win rates, mean returns and Elo ratings.

    Raises:
        UsageError: If there are fewer than two policies, if they were trained in different
            environments, or if the environment has fewer than two agents.
    """
    if len(policies) < 2:
        raise UsageError(
            f"cross-play must have at least two policies, got {len(policies)}. Name several runs, "
            "or include all checkpoints of a run (checkpoints)."
        )
    first = next(iter(policies.values()))
    environment = first.environment
    if isinstance(environment, AgentId):  # every policy adds its own agent ids
        environment = environment.env
    if (environment.num_agents or 1) < 2:
        raise UsageError(
            f"cross-play must be used with policies for two or more agents, and {environment.name} "
            "has one. Compare their returns with rollax eval."
        )
    players = [_fit_player(environment, name, policy) for name, policy in policies.items()]
    sides = np.asarray(list_seats(environment, ()))
    num_episodes = -(-games // (2 * len(sides)))
    max_steps = max_eval_steps(environment, first.spec)

    @functools.cache
    def compile_match(first: int, second: int) -> Callable[..., jax.Array]:
        algorithms = players[first].algorithm, players[second].algorithm
        return jax.jit(make_match(environment, *algorithms, num_episodes, max_steps, greedy))

    # Policies of one run share an algorithm, and therefore a compiled program.
    indices = {id(player.algorithm): index for index, player in enumerate(players)}
    record = _MatchRecord.empty(len(players))
    cache.enable()
    for i, j, side in itertools.product(
        range(len(players)), range(len(players)), range(len(sides))
    ):
        play = compile_match(*(indices[id(players[k].algorithm)] for k in (i, j)))
        key = jax.random.fold_in(jax.random.key(seed), (i * len(players) + j) * len(sides) + side)
        returns = np.asarray(play(players[i].state, players[j].state, sides[side], key))
        record.add(
            i, j, returns[:, ~sides[side]].mean(axis=1), returns[:, sides[side]].mean(axis=1)
        )
    return record.summarize(environment.name, tuple(policies))


def _fit_player(environment: Environment, name: str, policy: Policy) -> _Player:
    """Return a policy as a player of an environment. Raise UsageError if it does not fit."""
    fitted = fit_policy(environment, name, policy)
    if len(fitted.agents) < (environment.num_agents or 0):
        raise UsageError(
            f"{name} must control all agents of {environment.name}, got a policy that was trained "
            "against fixed opponents. Leave out this run."
        )
    return _Player(fitted.algorithm, policy.state)


class _MatchRecord(NamedTuple):
    """Sums over the games of each ordered pair of policies, float `[N, N]` each."""

    games: np.ndarray
    nonfinite: np.ndarray
    wins: np.ndarray
    total: np.ndarray
    square: np.ndarray

    @classmethod
    def empty(cls, size: int) -> "_MatchRecord":
        return cls(*(np.zeros((size, size)) for _ in cls._fields))

    def add(self, i: int, j: int, own: np.ndarray, other: np.ndarray) -> None:
        """Add games between policies i and j with the mean returns of their agents, `[N]` each."""
        is_finite = np.isfinite(own) & np.isfinite(other)
        for pair in ((i, j), (j, i)):
            self.nonfinite[pair] += np.sum(~is_finite)
        own, other = own[is_finite], other[is_finite]
        result = 0.5 + 0.5 * np.sign(own - other)
        for pair, values, results in (((i, j), own, result), ((j, i), other, 1.0 - result)):
            self.games[pair] += len(values)
            self.wins[pair] += results.sum()
            self.total[pair] += values.sum()
            self.square[pair] += np.square(values).sum()

    def summarize(self, environment: str, names: tuple[str, ...]) -> CrossPlay:
        return CrossPlay(
            environment=environment,
            names=names,
            games=self.games.astype(int),
            nonfinite_games=self.nonfinite.astype(int),
            win_rates=estimate_win_rates(self.wins, self.games),
            returns=estimate_means(self.total, self.square, self.games),
            elo=fit_elo(self.wins, self.games),
        )


def _write_csv(rows: Sequence[Sequence[str | int | float]], path: Path | str | None) -> str:
    """Return rows as CSV, after writing them to a file if `path` is not None."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    text = buffer.getvalue()
    if path is not None:
        write_output_file(Path(path), text.encode(), ". Choose another path.")
    return text
