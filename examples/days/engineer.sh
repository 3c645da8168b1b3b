# An engineer's session: check, train and export a custom environment and network.

# heater.py defines both. check_environment finds errors in an environment before training.
cp "$EXAMPLES/days/heater.py" "$EXAMPLES/own_environment.py" .
python heater.py check

# Train from Python with the custom network, and from the command line with the default network.
python heater.py train "$STEPS"
rollax train ppo mine/Thermostat --import heater --env.insulation 0.9 --total-steps "$STEPS" --run-dir runs/usual --no-tensorboard
rollax plot runs/own runs/usual --only return --label "own network" "usual network" --out return.png

# Export the custom network as NumPy arrays, which need no JAX on the device, and the default network as a JAX program.
python heater.py export
python heater.py drive
rollax export runs/usual --import heater --to jax --output usual
