# A contributor's session: check a custom algorithm and compare it with PPO.

# A2C in one file, which registers itself as an algorithm.
cp "$EXAMPLES/own_algorithm.py" .
python -c "import own_algorithm, rollax; print(rollax.check_algorithm('a2c'))"

# Start with the smallest task: the reward depends on the action and the observation.
rollax envs probe
rollax train a2c probe/action-observation --import own_algorithm --total-steps 20k --run-dir runs/probe --no-tensorboard

# Train on CartPole and compare with PPO, with the same number of steps and three seeds each.
rollax train a2c gymnax/CartPole-v1 --import own_algorithm --seeds 3 --total-steps "$STEPS" --run-dir runs/a2c --no-tensorboard
rollax train ppo gymnax/CartPole-v1 --seeds 3 --total-steps "$STEPS" --run-dir runs/ppo --no-tensorboard
rollax plot runs/a2c runs/ppo --import own_algorithm --out beside.png

# Archives also accept external scores through an ask-and-tell interface with NumPy arrays.
python "$EXAMPLES/days/search.py"
