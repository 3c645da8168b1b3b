"""Entry point of the command line: command dispatch, shared options and error handling."""

import os
import sys
from collections.abc import Callable, Sequence

from rollax import api  # noqa: F401  api: slow imports precede `finish_imports`
from rollax.cli import (
    bench_command,
    catalogue_commands,
    cross_play_command,
    evaluate_command,
    export_command,
    list_command,
    plot_commands,
    record_command,
    render_command,
    sweep_command,
    table_command,
    train_command,
)
from rollax.cli.parsing.dynamic_options import HELP_FLAGS
from rollax.cli.parsing.shared_options import SharedOptions, take_shared_options
from rollax.distributed import processes
from rollax.errors import TRACEBACK_VARIABLE, UnknownNameError, UsageError
from rollax.runtime import output, startup
from rollax.runtime.numerics import standard_numerics
from rollax.runtime.printing import print_line
from rollax.runtime.shell import format_command_line, running_command
from rollax.training.compile import background, cache
from rollax.training.console.signals import get_interrupt_folder
from rollax.training.user_imports import trust_folders
from rollax.version import __version__

OVERVIEW_TEXT = """\
rollax: reinforcement learning trained end to end in JAX

  rollax train ppo gymnax/CartPole-v1     train a policy and write a run folder
  rollax resume RUN                       continue a run, bit for bit
  rollax sweep --help                     compare settings by grid search or Optuna
  rollax eval RUN                         evaluate the policy and the elites of the archive
  rollax cross-play RUN...                play policies against each other and rate them by Elo
  rollax plot RUN...                      plot learning curves, figures for papers and archives
  rollax table RUN...                     print results and hyperparameters for a paper
  rollax report RUN...                    build an HTML report with curves, videos and settings
  rollax render RUN                       render an episode as a GIF or MP4, or in the terminal
  rollax record RUN                       record episodes as demonstrations, for rollax train bc
  rollax export RUN --to FORMAT           export the policy: jax, stablehlo, onnx or numpy
  rollax bench ppo gymnax/CartPole-v1     measure training speed and profile one update
  rollax ls [FOLDER]                      list runs with their progress, score and status
  rollax envs [SUITE]                     list the environments
  rollax algorithms                       list the algorithms
  rollax doctor                           show versions, devices and installed extras

Run `rollax COMMAND --help` for the options of a command, and
`rollax train ALGORITHM ENVIRONMENT --help` for all settings with their tuned values.

Options of every command:
  --import MODULE           import a module that registers custom environments (repeatable)
  --trust                   allow a run folder to name modules to import and databases to open
  --no-compilation-cache    do not cache compiled programs (default: up to 1 GB in the
                            user's cache folder)

To train one run with several processes or hosts, start `rollax train` or `rollax resume` with
--distributed in each process (see docs/scaling.md).
"""

COMMANDS: dict[str, Callable[[list[str], SharedOptions], int]] = {
    "train": train_command.train,
    "resume": train_command.resume,
    "sweep": sweep_command.sweep,
    "eval": evaluate_command.evaluate,
    "cross-play": cross_play_command.play,
    "plot": plot_commands.plot,
    "table": table_command.table,
    "report": plot_commands.report,
    "render": render_command.render,
    "record": record_command.record,
    "export": export_command.export,
    "bench": bench_command.bench,
    "ls": list_command.ls,
    "envs": catalogue_commands.envs,
    "algorithms": catalogue_commands.algorithms,
    "doctor": catalogue_commands.doctor,
}


# Commands that write their result to a folder, and the commands that continue them.
RUN_COMMANDS = {"train": "resume", "resume": "resume", "sweep": "sweep"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Exit codes: 0 finished, 1 failed, 2 bad usage, 3 non-finite numbers, 4 failure of a host
    simulator, 129, 130 or 143 stopped by a signal. Write errors of standard output change the code
    only for commands that do not write a folder (see `rollax.runtime.output.finish_output`).

    Args:
        arguments: Command-line arguments without the program name (default: `sys.argv[1:]`).

    Returns:
        The exit code.

    Raises:
        SystemExit: If the argument parser prints help or rejects an option.
    """
    startup.finish_imports()
    if startup.was_started_as_command():
        output.prepare_standard_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run_command(words)
    except SystemExit as ended:  # raised by the argument parser
        ended.code = output.finish_output(
            ended.code if isinstance(ended.code, int) else 0, is_run_complete=False
        )
        raise
    except OSError:  # standard error cannot be written
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        code = 1
    is_run = words[:1] in ([name] for name in RUN_COMMANDS) and not any(
        word in words for word in HELP_FLAGS
    )
    return output.finish_output(code, is_run)


def _run_command(words: list[str]) -> int:
    """Run a command, print its error if it fails, and return its exit code."""
    try:
        words, shared = take_shared_options(words)
        command = words[0] if words else "help"
        if command in ("-h", "--help", "help"):
            print(OVERVIEW_TEXT, end="")
            return 0
        if command == "--version":
            print(__version__)
            return 0
        if command not in COMMANDS:
            raise UnknownNameError("command", command, COMMANDS)
        with running_command(), trust_folders(shared.trust), standard_numerics():
            code = COMMANDS[command](words[1:], shared)
        return code if shared.place is None else _leave_processes(code, is_immediate=False)
    except UsageError as error:
        print_line(f"error: {error}", sys.stderr)
        return _leave_after_error(error, 2)
    except KeyboardInterrupt as interrupt:
        print_line(f"error: Interrupted.{_resume_hint(words, interrupt)}", sys.stderr)
        return _end_immediately(_leave_processes(130, is_immediate=True))
    except (OSError, RuntimeError) as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        if output.is_output_error(error):  # `output.finish_output` reports it and sets the code
            return _leave_after_error(error, 0)
        print_line(f"error: {error}\n(Set ROLLAX_TRACEBACK=1 to see the traceback.)", sys.stderr)
        return _leave_after_error(error, getattr(error, "exit_code", 1))


def _resume_hint(words: list[str], interrupt: KeyboardInterrupt) -> str:
    """Return a sentence with the command that continues an aborted run or study.

    The sentence is empty if the command had not created a folder.
    """
    command = RUN_COMMANDS.get(words[0] if words else "")
    folder = get_interrupt_folder(interrupt)
    if command is None or folder is None:
        return ""
    line = format_command_line("rollax", command, folder)
    return f" Run `{line}` to continue from the last checkpoint."


def _leave_after_error(error: Exception, code: int) -> int:
    """Send the error to the other processes of a distributed run, and return the exit code.

    In a distributed run, this process ends and the function does not return.
    """
    processes.send_error(error)
    return _leave_processes(code, is_immediate=True)


def _end_immediately(code: int) -> int:
    """End this process, even with running threads, if it was started as a command.

    Otherwise return the exit code.
    """
    if startup.was_started_as_command():
        cache.confirm_start()  # otherwise the next start would count this exit as a crash
        background.end_process(code)
    return code


def _leave_processes(code: int, is_immediate: bool) -> int:
    """End this process if it belongs to a distributed run. Otherwise return the exit code.

    If `is_immediate` is True, the process ends without waiting for the other processes.
    """
    cache.confirm_start()  # otherwise the next start would count this exit as a crash
    return processes.exit_process(code, is_immediate)


if __name__ == "__main__":
    sys.exit(main())
