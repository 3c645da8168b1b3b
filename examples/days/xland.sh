# A day coming from XLand-MiniGrid: RL^2 on rulesets, held-out tasks, and which of them fail.

# Trials of three episodes of one ruleset; the memory lasts over all of them. The task sets are disjoint by construction.
rollax envs rl2/XLand-MiniGrid-R1-9x9
rollax train ppo rl2/XLand-MiniGrid-R1-9x9 --env.num-rulesets 200 --total-steps "$STEPS" --eval-episodes 64 --run-dir runs/rl2 --no-tensorboard

# Does it adapt within a trial, on tasks that neither training nor the choice of a checkpoint has used?
rollax eval runs/rl2 --eval-env.split held-out --episodes 64

# The tasks that go worst, in words.
rollax eval runs/rl2 --eval-env.split held-out --tasks 3 --episodes 4

# Curves with the returns within trials, and a trial in the characters of the terminal and as a picture.
rollax plot runs/rl2
rollax render runs/rl2 --seed 1 --out trial.gif

# It was stopped, or the night is long: go on, the learning rate held.
rollax resume runs/rl2 --total-steps "$((2 * STEPS))" --learning-rate 1e-4
