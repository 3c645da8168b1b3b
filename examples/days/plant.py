"""A simulator that is slow and fails sometimes, as a gymnasium environment.

A tank is heated. The level and the temperature must follow a setpoint. A step takes 5 ms, and the
solver raises an error about once in 500 steps.
"""

import time

import gymnasium
import numpy as np

STEP_SECONDS = 0.005
FAILURE_RATE = 0.002


class Plant(gymnasium.Env):
    """Tank with an inflow and a heater.

    The observation is the level, the temperature and their setpoints. The actions are the changes
    of the inflow and of the heating power.
    """

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (4,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1.0, 1.0, 2)
        self.setpoint = self.np_random.uniform(-1.0, 1.0, 2)
        return self.observe(), {}

    def step(self, action):
        time.sleep(STEP_SECONDS)  # the work of the solver
        if self.np_random.uniform() < FAILURE_RATE:
            raise RuntimeError("solver: step size is too small")
        level, temperature = self.state
        inflow, heat = np.clip(action, -1.0, 1.0)
        level += 0.2 * inflow
        temperature += 0.2 * heat - 0.1 * inflow * temperature
        self.state = np.clip([level, temperature], -5.0, 5.0)
        error = float(np.abs(self.state - self.setpoint).sum())
        return self.observe(), -error, False, False, {"error": error}

    def observe(self):
        return np.concatenate([self.state, self.setpoint]).astype(np.float32)


gymnasium.register("Plant-v0", entry_point=Plant, max_episode_steps=50)
