"""The command line: which command runs, what all commands share, and how errors end."""

import os
import sys
from collections.abc import Callable, Sequence

from rollax import startup
from rollax.cli import benching, exporting, listings, plotting, reporting, runs, runs_list, sweeping, training
from rollax.cli.shared import Shared, take_shared
from rollax.errors import UnknownNameError, UsageError

OVERVIEW = """\
rollax: reinforcement learning trained end to end in JAX

  rollax train ppo gymnax/CartPole-v1     train, and leave a run folder
  rollax resume RUN                       go on with a run, bit for bit
  rollax sweep --help                     compare many settings: a grid or Optuna's samplers, on one machine or many
  rollax eval RUN                         play whole episodes with its policy, and with every elite of its archive
  rollax plot RUN...                      draw learning curves, figures for papers, aggregates over environments, archives
  rollax report RUN...                    one HTML page to show to others: curves to zoom, videos, settings, archives
  rollax render RUN                       an episode as a GIF, with --text in the terminal, with --sheet N many elites
  rollax export RUN --to FORMAT           its policy as files that need no rollax: jax, stablehlo, onnx, numpy
  rollax bench ppo gymnax/CartPole-v1     how fast it trains, and what the time of an update goes into
  rollax ls [FOLDER]                      list runs: what, how far, how good, done or not
  rollax envs [SUITE]                     list the environments
  rollax algorithms                       list the algorithms
  rollax doctor                           versions, devices, what is installed and what is not

rollax COMMAND --help says more; `rollax train ALGORITHM ENVIRONMENT --help` shows every setting with its tuned value.
Every command takes --import MODULE, also several times: the module registers environments of your own. Compiled programs are
kept in the user's cache folder, at most 1 GB, so that a second start is fast; --no-compilation-cache does without. One run by
several processes or hosts: --distributed, of train and resume, in every one of them (docs: scaling).
"""

COMMANDS: dict[str, Callable[[list[str], Shared], int]] = {
    "train": training.train,
    "resume": training.resume,
    "sweep": sweeping.sweep,
    "eval": runs.evaluate,
    "plot": plotting.plot,
    "report": reporting.report,
    "render": runs.render,
    "export": exporting.export,
    "bench": benching.bench,
    "ls": runs_list.ls,
    "envs": listings.envs,
    "algorithms": listings.algorithms,
    "doctor": listings.doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns the exit code: 0 done, 1 failed, 2 bad usage, 3 not finite, 4 a simulator on the host failed, 130
    or 143 stopped by a signal.
    """
    startup.imported()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        words, shared = take_shared(words)
        command = words[0] if words else "help"
        if command in ("-h", "--help", "help"):
            print(OVERVIEW, end="")
            return 0
        if command == "--version":
            from rollax.version import __version__

            print(__version__)
            return 0
        if command not in COMMANDS:
            raise UnknownNameError("command", command, COMMANDS)
        code = COMMANDS[command](words[1:], shared)
        return code if shared.place is None else _leave(code, alone=False)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return _refused(error, 2)
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain once more while closing it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141 if words[:1] in (["train"], ["resume"]) else 0  # a run that was cut short is no success
    except KeyboardInterrupt:
        print("error: interrupted at once; a run goes on from its last checkpoint", file=sys.stderr)
        return _leave(130, alone=True)
    except (OSError, RuntimeError) as error:
        if os.environ.get("ROLLAX_TRACEBACK"):
            raise
        print(f"error: {error}\n(ROLLAX_TRACEBACK=1 shows where)", file=sys.stderr)
        return _refused(error, getattr(error, "exit_code", 1))


def _refused(error: Exception, code: int) -> int:
    """The exit code; of several processes the others hear why this one does not begin."""
    if "rollax.scale.processes" in sys.modules:
        sys.modules["rollax.scale.processes"].refuse(error)
    return _leave(code, alone=True)


def _leave(code: int, alone: bool) -> int:
    """The exit code; one of several processes ends here, `alone` without the others."""
    if "rollax.scale.processes" in sys.modules:
        if "rollax.host.compilation_cache" in sys.modules:  # which would take such an end for a crash
            sys.modules["rollax.host.compilation_cache"].settled()
        return sys.modules["rollax.scale.processes"].leave(code, alone)
    return code


if __name__ == "__main__":
    sys.exit(main())
