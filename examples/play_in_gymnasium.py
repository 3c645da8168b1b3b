"""Play the policy of a run in a gymnasium environment.

Run it with `python examples/play_in_gymnasium.py RUN CartPole-v1`.
"""

import sys

import gymnasium

import rollax

policy = rollax.load(sys.argv[1])
environment = gymnasium.make(sys.argv[2])
for episode in range(5):
    obs, _ = environment.reset(seed=episode)
    # A true `begins` resets the memory of a recurrent policy.
    begins, ended, total = True, False, 0.0
    while not ended:
        obs, reward, terminated, truncated, _ = environment.step(policy.predict(obs, begins))
        begins, ended, total = False, terminated or truncated, total + float(reward)
    print(f"episode {episode}: return {total:g}")
