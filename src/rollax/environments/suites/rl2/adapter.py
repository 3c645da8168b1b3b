"""Suite `rl2`: trials of several episodes with one task, for policies that adapt to the task.

See `rollax.environments.wrappers.Trials`.
"""

from rollax.environments.suites.xminigrid.adapter import check_evaluation
from rollax.environments.suites.xminigrid.adapter import (
    default_trial_arguments as default_arguments,
)
from rollax.environments.suites.xminigrid.adapter import make_trials as make
from rollax.environments.suites.xminigrid.ruleset_files import resolve_arguments

__all__ = ["default_arguments", "check_evaluation", "make", "resolve_arguments"]
