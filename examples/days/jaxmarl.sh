# For users of JaxMARL: IPPO and MAPPO on one task, then prey against fixed predators.

# MAPPO is PPO with a critic that observes all agents.
rollax envs MPE_simple
rollax train ppo jaxmarl/MPE_simple_spread_v3 --total-steps "$STEPS" --run-dir runs/ippo --no-tensorboard
rollax train ppo jaxmarl/MPE_simple_spread_v3 --env.global-state true --total-steps "$STEPS" --run-dir runs/mappo --no-tensorboard

# Plot both in one figure, and render an episode with the names of the agents.
rollax plot runs/ippo runs/mappo --only return --label IPPO MAPPO --out spread.png
rollax render runs/mappo --out spread.gif

# Train both types of agents in one game with separate parameters. The output shows the return of each type.
rollax train ppo hunting/3-players --config.sharing type --total-steps "$STEPS" --run-dir runs/hunt --no-tensorboard
rollax eval runs/hunt

# Train new prey against the final predators of that run.
rollax train ppo hunting/3-players --opponents.predator runs/hunt@last --config.sharing type --total-steps "$STEPS" --run-dir runs/prey --no-tensorboard
rollax plot runs/prey
