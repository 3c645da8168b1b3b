# For users of Stable-Baselines3 and CleanRL: two algorithms, five seeds each, a figure, a video and an exported policy.

# List the environments, and describe one of them.
rollax envs cartpole
rollax envs gymnax/CartPole-v1

# Train PPO with its preset, five seeds in one compiled program.
rollax train ppo gymnax/CartPole-v1 --seeds 5 --total-steps "$STEPS" --run-dir runs/ppo --no-tensorboard

# Train DQN for comparison, with another learning rate.
rollax train dqn gymnax/CartPole-v1 --seeds 5 --total-steps "$STEPS" --learning-rate 5e-4 --run-dir runs/dqn --no-tensorboard

# List the runs, and evaluate them on episodes that did not select a checkpoint.
rollax ls runs
rollax eval runs/ppo runs/dqn --checkpoint best

# Draw a figure for a paper with custom legend names, and write its numbers to a table.
rollax plot runs/ppo runs/dqn --only return --columns 1 --label PPO DQN --csv --out return.pdf

# Build an HTML report, and render one episode.
rollax report runs/ppo runs/dqn --out report.html
rollax render runs/ppo --out episode.gif

# Export the policy as an ONNX model with a model card, and run it with ONNX Runtime.
rollax export runs/ppo --checkpoint best --to onnx --output policy
python "$EXAMPLES/onnx_policy.py" policy
