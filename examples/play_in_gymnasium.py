"""Plays the policy of a run in plain gymnasium: `python examples/play_in_gymnasium.py RUN CartPole-v1`."""

import sys

import gymnasium

import rollax

policy = rollax.load(sys.argv[1])
environment = gymnasium.make(sys.argv[2])
for episode in range(5):
    obs, _ = environment.reset(seed=episode)
    begins, ended, total = True, False, 0.0  # a policy with a memory begins it anew with the episode
    while not ended:
        obs, reward, terminated, truncated, _ = environment.step(policy.predict(obs, begins))
        begins, ended, total = False, terminated or truncated, total + float(reward)
    print(f"episode {episode}: return {total:g}")
