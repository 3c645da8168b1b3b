# A day coming from Stable-Baselines3 or CleanRL: two algorithms, five seeds each, a figure, a video, a file for the robot.

# What is there, and what does one environment want to know?
rollax envs cartpole
rollax envs gymnax/CartPole-v1

# PPO with the settings that are tuned for it, five seeds in one compiled program.
rollax train ppo gymnax/CartPole-v1 --seeds 5 --total-steps "$STEPS" --run-dir runs/ppo --no-tensorboard

# DQN beside it, and a learning rate of one's own.
rollax train dqn gymnax/CartPole-v1 --seeds 5 --total-steps "$STEPS" --learning-rate 5e-4 --run-dir runs/dqn --no-tensorboard

# Which runs are there, and how good are they on episodes that chose nothing?
rollax ls runs
rollax eval runs/ppo runs/dqn --checkpoint best

# The figure of a paper, with names for its legend, and its numbers as a table.
rollax plot runs/ppo runs/dqn --only return --columns 1 --label PPO DQN --csv --out return.pdf

# One page to send to a colleague, and an episode to look at.
rollax report runs/ppo runs/dqn --out report.html
rollax render runs/ppo --out episode.gif

# The policy without rollax: an ONNX model with a card, tried by ONNX Runtime.
rollax export runs/ppo --checkpoint best --to onnx --output policy
python "$EXAMPLES/onnx_policy.py" policy
