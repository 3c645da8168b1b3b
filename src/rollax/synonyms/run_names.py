"""Names of other libraries for arguments, run options, network settings, metrics and callbacks."""

from rollax.synonyms.synonym import Synonym, split_names

RUN_SYNONYMS = (
    Synonym(
        rollax=split_names("total_steps"),
        sb3=split_names("total_timesteps"),
        cleanrl=split_names("total_timesteps"),
        others=split_names("num_timesteps max_timesteps total_frames timesteps n_timesteps"),
        remark="frames of all environments together",
    ),
    Synonym(
        rollax=split_names("environment"),
        sb3=split_names("env"),
        cleanrl=split_names("env_id"),
        others=split_names("env_name"),
        remark="an id such as gymnax/CartPole-v1",
    ),
    Synonym(
        rollax=split_names("arguments"),
        sb3=split_names("env_kwargs"),
        others=split_names("env_config env_params"),
        remark="arguments of the environment",
    ),
    Synonym(
        rollax=split_names("eval_arguments"),
        sb3=split_names("eval_env"),
        remark="arguments of the environment that differ in evaluations",
    ),
    Synonym(
        rollax=split_names("callback"), sb3=split_names("callback"), others=split_names("callbacks")
    ),
    Synonym(
        rollax=split_names("stop_when"),
        sb3=split_names("StopTrainingOnRewardThreshold"),
        others=split_names("stop early_stopping"),
        remark='a condition such as "return_mean>=195"',
    ),
    Synonym(
        rollax=split_names("eval_count"),
        sb3=split_names("eval_freq"),
        others=split_names("eval_interval evaluation_interval num_evals"),
        remark="number of evaluations during training, not the interval",
    ),
    Synonym(
        rollax=split_names("eval_episodes"),
        sb3=split_names("n_eval_episodes"),
        others=split_names("num_eval_envs num_eval_episodes evaluation_duration"),
    ),
    Synonym(
        rollax=split_names("eval_stochastic"),
        sb3=split_names("deterministic"),
        others=split_names("deterministic_eval"),
        remark="the opposite of deterministic",
    ),
    Synonym(
        rollax=split_names("checkpoint_steps"),
        sb3=split_names("save_freq"),
        cleanrl=split_names("save_model"),
        others=split_names("checkpoint_freq checkpoint_interval"),
        remark="frames between checkpoints",
    ),
    Synonym(
        rollax=split_names("run_dir"),
        sb3=split_names("save_path"),
        cleanrl=split_names("exp_name"),
        others=split_names("log_dir run_name default_root_dir output_dir"),
    ),
    Synonym(
        rollax=split_names("log_lines"),
        sb3=split_names("log_interval"),
        others=split_names("log_freq log_every_n_steps"),
        remark="number of lines over the whole run, not the interval",
    ),
    Synonym(
        rollax=split_names("tensorboard"),
        sb3=split_names("tensorboard_log"),
        remark="on or off. The files are in the run folder",
    ),
    Synonym(
        rollax=split_names("wandb"),
        cleanrl=split_names("wandb_project_name track"),
        others=split_names("wandb_project"),
        remark="name of the project",
    ),
    Synonym(rollax=split_names("quiet"), sb3=split_names("verbose progress_bar")),
    Synonym(
        rollax=split_names("devices"),
        sb3=split_names("device"),
        cleanrl=split_names("cuda"),
        others=split_names("num_devices num_gpus"),
        remark="number of devices. JAX_PLATFORMS=cpu selects the CPU",
    ),
    Synonym(
        rollax=split_names("seeds"),
        others=split_names("num_seeds"),
        remark="number of seeds that train in one program",
    ),
)

NETWORK_SYNONYMS = (
    Synonym(
        rollax=split_names("hidden"),
        sb3=split_names("net_arch policy_kwargs"),
        others=split_names(
            "hidden_sizes hidden_dims fcnet_hiddens fc_dim_size hidden_layer_sizes "
            "policy_hidden_layer_sizes agent_kwargs"
        ),
        remark="sizes of the hidden layers",
    ),
    Synonym(
        rollax=split_names("activation"),
        sb3=split_names("activation_fn"),
        others=split_names("fcnet_activation"),
    ),
    Synonym(rollax=split_names("shared"), sb3=split_names("share_features_extractor")),
    Synonym(
        rollax=split_names("core core_size"),
        sb3=split_names("RecurrentPPO lstm_hidden_size"),
        cleanrl=split_names("ppo_atari_lstm"),
        others=split_names("use_lstm lstm_cell_size rnn_hidden_dim gru_hidden_dim"),
        remark="core gru or lstm. sequence_length is a setting of the algorithm",
    ),
    Synonym(
        rollax=split_names("initial_std"),
        sb3=split_names("log_std_init"),
        remark="the standard deviation, not its logarithm",
    ),
)

METRICS_SYNONYMS = (
    Synonym(
        rollax=split_names("return_mean"),
        sb3=split_names("mean_reward eval/mean_reward"),
        others=split_names("eval/episode_reward episode_return_mean test_reward"),
        remark="of an evaluation",
    ),
    Synonym(
        rollax=split_names("episode_return"),
        sb3=split_names("ep_rew_mean rollout/ep_rew_mean"),
        cleanrl=split_names("episodic_return charts/episodic_return"),
        others=split_names("episode_reward_mean"),
        remark="of training",
    ),
    Synonym(
        rollax=split_names("length_mean"),
        sb3=split_names("mean_ep_length eval/mean_ep_length"),
        others=split_names("episode_len_mean"),
    ),
    Synonym(
        rollax=split_names("steps_per_second"),
        sb3=split_names("fps time/fps"),
        cleanrl=split_names("SPS charts/SPS"),
    ),
)

CALLBACK_METHODS_SYNONYMS = (
    Synonym(
        rollax=split_names("on_metrics"),
        sb3=split_names("_on_step _on_rollout_end"),
        others=split_names(
            "on_step on_rollout_end on_train_result on_train_epoch_end on_epoch_end"
        ),
        remark="after each line of training metrics",
    ),
    Synonym(
        rollax=split_names("on_evaluation"),
        others=split_names("on_evaluate_end on_validation_end on_validation_epoch_end"),
    ),
    Synonym(
        rollax=split_names("on_checkpoint"),
        others=split_names("on_save_checkpoint on_checkpoint_saved"),
    ),
    Synonym(
        rollax=split_names("on_end"),
        sb3=split_names("_on_training_end"),
        others=split_names("on_training_end on_train_end on_algorithm_end on_fit_end"),
    ),
)
