# For users with a slow simulator: check it, train in worker processes, survive failures, stop, resume and export

# plant.py contains a simulator whose step takes 5 ms, and which fails about once in 500 steps. The first guess of its id lacks the module.
cp "$EXAMPLES/days/plant.py" .
! rollax train sac gymnasium/Plant-v0 --total-steps "$STEPS" --run-dir runs/plant

# With the module, training begins. After a while the simulator fails. The run is saved, and the last line has the option that restarts simulators.
! rollax train sac gymnasium/plant:Plant-v0 --total-steps "$STEPS" --run-dir runs/plant --no-tensorboard

# Four worker processes share the simulators. Ctrl-C (here: timeout) saves the run after the current step.
! timeout --signal=INT 30 rollax resume runs/plant --import plant --env-restarts 3 --env-workers 4
rollax resume runs/plant --import plant

# Evaluate the best checkpoint on new episodes, and draw the return and the number of restarts.
rollax eval runs/plant --import plant --checkpoint best --episodes 20
rollax plot runs/plant --import plant --only return env_restarts --out return.png

# Export the policy as NumPy arrays, which run without JAX.
rollax export runs/plant --import plant --checkpoint best --to numpy --output policy
