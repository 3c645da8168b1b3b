"""What a second start does before its first evaluation: what can be counted of its time."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import rollax
from jax._src import monitoring

programs, events = [], []
def see(name, seconds, **of):
    if name.endswith("backend_compile_duration"):
        programs.append(of.get("fun_name", ""))
monitoring.register_event_duration_secs_listener(see)
monitoring.register_event_listener(lambda name, **_: events.append(name))

class Show:
    def status(self, text): pass
    def message(self, text):
        if " 0 steps " in text:
            missed = sum(name.endswith("/cache_misses") for name in events)
            large = [name for name in programs if any(word in name for word in ("run", "evaluate", "begin"))]
            print(len(programs), missed, *sorted(large), flush=True)
    def picture(self, make): pass
    def progress(self, done, total, figures): pass
    def close(self): pass

small = {"num_envs": 4, "num_steps": 8, "num_minibatches": 2}
options = {"run_dir": sys.argv[1], "tensorboard": False}
rollax.train("ppo", "gymnax/CartPole-v1", total_steps=64, config=small, options=options, show=Show())
"""
MOST_PROGRAMS = 16  # 10 with jax 0.10; without care for it there were 30


def start(folder: Path, cache: Path) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    given = {"ROLLAX_COMPILATION_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    line = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(line, env=kept | given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_second_start_compiles_nothing_before_its_first_evaluation(tmp_path: Path) -> None:
    """Few programs, all of them read: that of the first state and that of the evaluation, and meanwhile that of updates."""
    number, missed, *_ = start(tmp_path / "first", tmp_path / "cache")
    assert int(missed) >= 2
    number, missed, *large = start(tmp_path / "second", tmp_path / "cache")
    assert int(number) <= MOST_PROGRAMS and int(missed) == 0
    assert set(large) - {"jit(run)"} == {"jit(begin)", "jit(evaluate)"}
