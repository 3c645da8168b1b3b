"""Tests of edited config.yaml files.

Errors name the file and the key, and nothing in the file is executed.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fuzz.conftest import is_remedy
from rollax import NetworkConfig, PPOConfig, RunOptions, UsageError
from rollax.training.run_folder.layout import CONFIG_FILE, read_spec, write_spec
from rollax.training.spec import make_spec


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the config of a run with values under every key but the last."""
    folder = tmp_path_factory.mktemp("written")
    config, network = PPOConfig(num_envs=4, num_steps=8), NetworkConfig(filters=((16, 3, 1),))
    options = RunOptions(total_steps=3200, seeds=4)
    spec = make_spec(
        "ppo",
        "probe/memory",
        {"delay": 3},
        config,
        network,
        options,
        {"gamma": [0.9, 0.99]},
        {"delay": 4},
    )
    write_spec(folder, spec)
    assert read_spec(folder) == spec
    return (folder / CONFIG_FILE).read_text()


Refuses = Callable[[str | bytes], str]


@pytest.fixture
def refuses(nowhere: Path) -> Refuses:
    """Return a function that checks that content is refused with the name of the file.

    It returns the message.
    """

    def read(content: str | bytes) -> str:
        (nowhere / CONFIG_FILE).write_bytes(
            content.encode() if isinstance(content, str) else content
        )
        with pytest.raises(UsageError) as caught:
            read_spec(nowhere)
        assert str(nowhere / CONFIG_FILE) in str(caught.value) or "another format" in str(
            caught.value
        ), caught.value
        assert is_remedy(str(caught.value))
        return str(caught.value)

    return read


def changed(text: str, path: str, value: Any) -> str:
    """Return the file with another value under a key such as config.gamma.

    The value `...` removes the key.
    """
    document = yaml.safe_load(text)
    *outer, last = path.split(".")
    place = document
    for key in outer:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return yaml.safe_dump(document, sort_keys=False)


@pytest.mark.parametrize(
    ("path", "value", "part"),
    [
        ("config.num_envs", "four", "config.num_envs ('four') must be an integer"),
        ("config.num_envs", 4.5, "config.num_envs (4.5) must be an integer. Use 4 or 5"),
        ("config.num_envs", -4, "config.num_envs (-4) must be at least 1"),
        ("config.num_envs", 10**12, "config.num_envs (1000000000000) must be at most 2147483647"),
        ("config.gamma", float("nan"), "config.gamma (nan) must be between 0 and 1"),
        ("config.gamma", None, "config.gamma (None) must be a number"),
        ("config.gamma", [0.9], "config.gamma ([0.9]) must be a number"),
        ("config.gamma", ..., "the key config.gamma is missing"),
        ("config.gama", 1, "unknown key 'config.gama': did you mean config.gamma"),
        (
            "config.clip_values",
            "no",
            "config.clip_values ('no') must be True or False, not a string",
        ),
        (
            "config.normalize_advantages",
            "mini",
            "config.normalize_advantages ('mini') must be one of",
        ),
        ("config", [1, 2], "config ([1, 2]) must be a dictionary"),
        ("config", ..., "the key config is missing"),
        ("network.hidden", 64.5, "network.hidden (64.5)"),
        ("network.hidden", ["64"], "network.hidden"),
        ("network.filters", [[16, 3]], "network.filters"),
        ("network", 5, "network (5) must be a dictionary"),
        ("options.total_steps", None, "options.total_steps"),
        ("options.total_steps", 10**400, "total_steps (a number of about 400 digits)"),
        ("options.seeds", 0, "seeds (0) must be at least 1"),
        ("options.wandb", 5, "options.wandb (5) must be a string or None"),
        ("options.best_mode", "most", "options.best_mode ('most') must be one of max, min"),
        ("options", None, "options (None) must be a dictionary"),
        ("algorithm", "pppo", "unknown algorithm 'pppo': did you mean ppo"),
        ("algorithm", 5, "algorithm (5) must be a string"),
        ("algorithm", "sac", "unknown key 'config."),
        ("environment", ["probe/memory"], "environment (['probe/memory']) must be a string"),
        ("arguments", [], "arguments ([]) must be a dictionary"),
        ("sweep", {"gamma": 5}, "gamma (5.0) must be between 0 and 1"),
        ("sweep", {"num_envs": [4]}, "unknown setting to sweep over"),
        ("sweep", 5, "sweep (5) must be a dictionary"),
        ("evolve", {"gamma": [0.9]}, "evolve gamma must be (low, high) or (low, high, scale), got"),
        ("evolve", {"clip": [0.1, 0.3]}, "cannot be combined"),
        ("opponents", {"a": 5}, "opponents ("),
        ("imports", "my_module", "imports ('my_module') must be a sequence"),
        ("own_environment", "no", "own_environment ('no') must be True or False"),
        ("updates_per_line", 0, "updates_per_line must be between 1 and 250, got 0"),
        (
            "updates_per_evaluation",
            -10,
            "updates_per_evaluation must be 0 or a multiple of updates_per_line (1), got -10",
        ),
        ("updates_per_generation", "x", "updates_per_generation ('x') must be an integer"),
        ("format", 99, "in another format"),
        ("more", 1, "unknown key 'more'"),
    ],
    ids=str,
)
def test_invalid_values_are_refused(
    refuses: Refuses, text: str, path: str, value: Any, part: str
) -> None:
    assert part in refuses(changed(text, path, value))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00binary",
        b"- a\n- list\n",
        b"just text",
        b"a: [1, 2",
        b"a: b: c",
        b"\t- x",
        b"format: 1\nformat: 1\n",
        b"arguments: !!python/object/apply:os.system ['touch executed']\n",
        b"format: 1\narguments: &a {x: *a}\n",
        b"[" * 5000,
        b"when: 2024-13-45\n",
        b"number: " + b"9" * 5000,
        b"x" * 11_000_000,
    ],
    ids=lambda content: repr(content[:24]),
)
def test_invalid_files_are_refused(refuses: Refuses, nowhere: Path, content: bytes) -> None:
    refuses(content)
    assert [path.name for path in nowhere.iterdir()] == [CONFIG_FILE]


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        (
            "delay: 3",
            "delay: 2020-01-01",
            "arguments.delay must be a string, a number, true, false or null, got "
            "2020-01-01 (date)",
        ),
        ("delay: 3", "delay: !!binary aGVsbG8=", "arguments.delay"),
        ("delay: 3", "delay: !!set {a, b}", "arguments.delay"),
        (
            "arguments:\n",
            "arguments: &a\n  own: *a\n",
            "contains more values than a run writes, or itself",
        ),
        ("  gamma: 0.99\n", "  gamma: 0.99\n  gamma: 0.9\n", "'gamma' occurs twice"),
    ],
)
def test_unsupported_yaml_types_are_refused(
    refuses: Refuses, text: str, old: str, new: str, part: str
) -> None:
    assert old in text
    assert part in refuses(text.replace(old, new, 1))


def test_numbers_in_common_notations(nowhere: Path, text: str) -> None:
    """YAML 1.1 reads 1e-3 as a string, but it is accepted as a number.

    Finite anchors are accepted.
    """
    (nowhere / CONFIG_FILE).write_text(
        changed(text, "config.learning_rate", "1e-3").replace("gamma: 0.99", "gamma: &g 0.99", 1)
    )
    assert read_spec(nowhere).config.learning_rate == 1e-3


WRONG = [
    None,
    True,
    -1,
    0,
    2.5,
    10**12,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "x",
    "1e3",
    [],
    [1],
    {},
    {"a": 1},
    [[1]],
]


@pytest.mark.parametrize("seed", range(6))
def test_random_changes(nowhere: Path, text: str, seed: int) -> None:
    """Random values and random bytes give a specification or a UsageError."""
    draw, document = random.Random(seed), yaml.safe_load(text)
    paths = list(document) + [
        f"{outer}.{key}"
        for outer, inner in document.items()
        if isinstance(inner, dict)
        for key in inner
    ]
    for _ in range(30):
        content = changed(text, draw.choice(paths), draw.choice([..., *WRONG])).encode()
        if draw.random() < 0.5:
            where = draw.randrange(len(text))
            content = (
                text[:where].encode()
                + draw.randbytes(draw.choice((0, 1, 3)))
                + text[where + draw.choice((0, 1, 40)) :].encode()
            )
        (nowhere / CONFIG_FILE).write_bytes(content)
        try:
            read_spec(nowhere)
        except UsageError as error:
            assert is_remedy(str(error)), error
