"""The suite `rl2`: trials of several episodes of one task, in which a memory is kept. See `views.Trials`."""

from rollax.environments.suites.xminigrid.adapter import check_evaluation
from rollax.environments.suites.xminigrid.adapter import make_trials as make
from rollax.environments.suites.xminigrid.adapter import trial_defaults as arguments
from rollax.environments.suites.xminigrid.ruleset_files import resolve_arguments

__all__ = ["arguments", "check_evaluation", "make", "resolve_arguments"]
