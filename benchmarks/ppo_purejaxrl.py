"""PPO of PureJaxRL (luchris429/purejaxrl), run from the path of a copy, in a virtual environment of its own.

Arguments: the path of its folder purejaxrl, its settings as a JSON object, seeds. Prints one JSON object: of each seed the mean
return of the episodes that ended in the last twentieth of training, and steps a second, compiling included. With a fourth
argument, "turns", it is measured as `peers.py` compares it.
"""

import json
import sys
import time
from unittest.mock import MagicMock

# Its wrappers import these for environments that are not asked for here.
sys.modules |= {
    name: MagicMock() for name in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix")
}
path, settings, seeds = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, path)

import jax  # noqa: E402
import numpy as np  # noqa: E402
from ppo import make_train  # noqa: E402

train, keys = jax.jit(jax.vmap(make_train(settings))), jax.random.split(jax.random.key(0), seeds)


def scores() -> dict:
    started = time.perf_counter()
    metrics = jax.device_get(train(keys)["metrics"])
    seconds = time.perf_counter() - started
    ended, returns = metrics["returned_episode"], metrics["returned_episode_returns"]  # [seeds, updates, steps, environments]
    late = ended.shape[1] - ended.shape[1] // 20
    means = [float(np.mean(returns[seed, late:][ended[seed, late:]])) for seed in range(seeds)]
    return {"returns": means, "steps_per_second": ended.size / seconds}


if "turns" in sys.argv[4:]:
    from timing import by_turns

    started = time.perf_counter()
    program = train.lower(keys).compile()
    compile_seconds = time.perf_counter() - started
    by_turns(
        lambda: jax.block_until_ready(program(keys)), settings["TOTAL_TIMESTEPS"] * seeds, compile_seconds, jax.__version__
    )
else:
    print(json.dumps({**scores(), "jax": jax.__version__}))
