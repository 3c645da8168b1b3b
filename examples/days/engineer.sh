# A day of an engineer: an environment and a network of one's own, checked, trained, shipped.

# heater.py has both; rollax says what is wrong with an environment before anything is trained.
cp "$EXAMPLES/days/heater.py" "$EXAMPLES/own_environment.py" .
python heater.py check

# Trained from Python with the own network, and as a command with the usual one.
python heater.py train "$STEPS"
rollax train ppo mine/Thermostat --import heater --env.insulation 0.9 --total-steps "$STEPS" --run-dir runs/usual --no-tensorboard
rollax plot runs/own runs/usual --only return --label "own network" "usual network" --out return.png

# The own network leaves as NumPy arrays: no JAX on the device. The usual one as a program for JAX.
python heater.py export
python heater.py drive
rollax export runs/usual --import heater --to jax --output usual
