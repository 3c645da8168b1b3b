# A day of a contributor: an algorithm of one's own, held against the laws, beside one that stands.

# A2C in one file, which registers itself under its name.
cp "$EXAMPLES/own_algorithm.py" .
python -c "import own_algorithm, rollax; print(rollax.check_algorithm('a2c'))"

# The smallest tasks first: does it learn that an action decides the reward?
rollax envs probe
rollax train a2c probe/action-observation --import own_algorithm --total-steps 20k --run-dir runs/probe --no-tensorboard

# Then a real one, beside PPO with the same steps, three seeds each.
rollax train a2c gymnax/CartPole-v1 --import own_algorithm --seeds 3 --total-steps "$STEPS" --run-dir runs/a2c --no-tensorboard
rollax train ppo gymnax/CartPole-v1 --seeds 3 --total-steps "$STEPS" --run-dir runs/ppo --no-tensorboard
rollax plot runs/a2c runs/ppo --import own_algorithm --out beside.png

# Archives take other scores as well: ask and tell, with NumPy in and out.
python "$EXAMPLES/days/search.py"
