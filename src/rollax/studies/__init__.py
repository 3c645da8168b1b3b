"""Studies: many settings of a run compared, by a grid, at random or by Optuna's samplers, on one machine or on many."""
