# A day coming from JaxMARL: IPPO and MAPPO on one task, then predators against prey that do not learn.

# MAPPO is PPO whose critic observes all agents.
rollax envs MPE_simple
rollax train ppo jaxmarl/MPE_simple_spread_v3 --total-steps "$STEPS" --run-dir runs/ippo --no-tensorboard
rollax train ppo jaxmarl/MPE_simple_spread_v3 --env.global-state true --total-steps "$STEPS" --run-dir runs/mappo --no-tensorboard

# Both in one figure, and the agents at play, each with its name.
rollax plot runs/ippo runs/mappo --only return --label IPPO MAPPO --out spread.png
rollax render runs/mappo --out spread.gif

# A game of two sides, in which each type of agents has parameters of its own: the lines tell the return of each.
rollax train ppo hunting/3-players --config.sharing type --total-steps "$STEPS" --run-dir runs/hunt --no-tensorboard
rollax eval runs/hunt

# New prey against the predators of that run, as they were at its end.
rollax train ppo hunting/3-players --opponents.predator runs/hunt@last --config.sharing type --total-steps "$STEPS" --run-dir runs/prey --no-tensorboard
rollax plot runs/prey
