# For users of XLand-MiniGrid: RL^2 on rulesets, held-out tasks, and the tasks that fail.

# A trial has three episodes of one ruleset, and the memory is kept between them. The task sets are disjoint by construction.
rollax envs rl2/XLand-MiniGrid-R1-9x9
rollax train ppo rl2/XLand-MiniGrid-R1-9x9 --env.num-rulesets 200 --total-steps "$STEPS" --eval-episodes 64 --run-dir runs/rl2 --no-tensorboard

# Measure the adaptation within a trial on tasks that neither training nor checkpoint selection has used.
rollax eval runs/rl2 --eval-env.split held-out --episodes 64

# Describe the tasks with the lowest returns.
rollax eval runs/rl2 --eval-env.split held-out --tasks 3 --episodes 4

# Plot the returns within trials, and render a trial as text and as an animation.
rollax plot runs/rl2
rollax render runs/rl2 --seed 1 --out trial.gif

# Continue the run with a constant learning rate.
rollax resume runs/rl2 --total-steps "$((2 * STEPS))" --learning-rate 1e-4
