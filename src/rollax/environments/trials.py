"""The suite `rl2`: trials of several episodes of one task, in which a memory is kept. See `views.Trials`."""

from rollax.environments.xminigrid import check_evaluation
from rollax.environments.xminigrid import make_trials as make
from rollax.environments.xminigrid import trial_defaults as arguments

__all__ = ["arguments", "check_evaluation", "make"]
