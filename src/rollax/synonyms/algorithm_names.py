"""Names of other libraries for settings of algorithms."""

from rollax.synonyms.synonym import Synonym, split_names

ON_POLICY_SYNONYMS = (
    Synonym(
        rollax=split_names("num_envs"),
        sb3=split_names("n_envs"),
        cleanrl=split_names("num_envs"),
        others=split_names("num_env_runners num_workers num_actors"),
    ),
    Synonym(
        rollax=split_names("num_steps"),
        sb3=split_names("n_steps"),
        cleanrl=split_names("num_steps"),
        others=split_names(
            "unroll_length rollout_length rollout_fragment_length num_steps_per_update"
        ),
        remark="for each environment",
    ),
    Synonym(
        rollax=split_names("num_minibatches"),
        sb3=split_names("batch_size"),
        cleanrl=split_names("num_minibatches"),
        others=split_names("minibatch_size sgd_minibatch_size n_minibatches"),
        remark="num_envs * num_steps / batch_size",
    ),
    Synonym(
        rollax=split_names("num_epochs"),
        sb3=split_names("n_epochs"),
        cleanrl=split_names("update_epochs"),
        others=split_names("num_sgd_iter ppo_epochs num_updates_per_batch"),
    ),
    Synonym(
        rollax=split_names("learning_rate"),
        sb3=split_names("learning_rate"),
        cleanrl=split_names("learning_rate"),
        others=split_names("lr step_size"),
    ),
    Synonym(
        rollax=split_names("learning_rate_final_fraction"),
        cleanrl=split_names("anneal_lr"),
        others=split_names("lr_schedule"),
        remark="0 anneals to zero, 1 is constant. SB3 passes a schedule as the rate",
    ),
    Synonym(
        rollax=split_names("gamma"),
        sb3=split_names("gamma"),
        cleanrl=split_names("gamma"),
        others=split_names("discount discounting discount_factor"),
    ),
    Synonym(
        rollax=split_names("gae_lambda"),
        sb3=split_names("gae_lambda"),
        cleanrl=split_names("gae_lambda"),
        others=split_names("lam lambda lambda_ gae_lam"),
    ),
    Synonym(
        rollax=split_names("clip"),
        sb3=split_names("clip_range"),
        cleanrl=split_names("clip_coef"),
        others=split_names("clip_eps clip_param clipping_epsilon clip_ratio"),
    ),
    Synonym(
        rollax=split_names("clip_values value_clip"),
        sb3=split_names("clip_range_vf"),
        cleanrl=split_names("clip_vloss"),
        others=split_names("vf_clip_param"),
        remark="off, as in SB3. It is on in CleanRL",
    ),
    Synonym(
        rollax=split_names("entropy_coefficient"),
        sb3=split_names("ent_coef"),
        cleanrl=split_names("ent_coef"),
        others=split_names("entropy_coeff entropy_coef entropy_cost entropy_weight"),
    ),
    Synonym(
        rollax=split_names("value_coefficient"),
        sb3=split_names("vf_coef"),
        cleanrl=split_names("vf_coef"),
        others=split_names("vf_loss_coeff value_coef critic_coef value_loss_coef vf_cost"),
        remark="the loss has a factor 1/2 in rollax and CleanRL, so 0.5 in SB3 is 1.0",
    ),
    Synonym(
        rollax=split_names("normalize_advantages"),
        sb3=split_names("normalize_advantage"),
        cleanrl=split_names("norm_adv"),
        remark="minibatch, batch or off",
    ),
    Synonym(
        rollax=split_names("max_grad_norm"),
        sb3=split_names("max_grad_norm"),
        cleanrl=split_names("max_grad_norm"),
        others=split_names("grad_clip grad_norm_clip clip_grad_norm"),
        remark="separately for policy and critic if they are separate",
    ),
    Synonym(
        rollax=split_names("target_kl"),
        sb3=split_names("target_kl"),
        cleanrl=split_names("target_kl"),
        others=split_names("kl_target desired_kl"),
        remark="stops after an epoch",
    ),
    Synonym(
        rollax=split_names("normalize_observations normalize_rewards"),
        sb3=split_names("VecNormalize"),
        cleanrl=split_names("NormalizeObservation NormalizeReward"),
        others=split_names("normalize_env norm_obs norm_reward observation_filter"),
        remark="part of the checkpoint",
    ),
)

OFF_POLICY_SYNONYMS = (
    Synonym(
        rollax=split_names("capacity"),
        sb3=split_names("buffer_size"),
        cleanrl=split_names("buffer_size"),
        others=split_names("replay_size memory_size replay_buffer_size max_replay_size"),
    ),
    Synonym(
        rollax=split_names("warmup"),
        sb3=split_names("learning_starts"),
        cleanrl=split_names("learning_starts"),
        others=split_names("start_steps random_steps min_replay_size"),
        remark="frames of random actions",
    ),
    Synonym(
        rollax=split_names("batch_size"),
        sb3=split_names("batch_size"),
        cleanrl=split_names("batch_size"),
        others=split_names("train_batch_size"),
    ),
    Synonym(
        rollax=split_names("tau"),
        sb3=split_names("tau"),
        cleanrl=split_names("tau"),
        others=split_names("polyak soft_target_tau"),
    ),
    Synonym(
        rollax=split_names("replay_ratio"),
        sb3=split_names("gradient_steps train_freq"),
        cleanrl=split_names("train_frequency"),
        others=split_names("utd_ratio grad_updates_per_step update_every training_intensity"),
        remark="gradient steps per frame: gradient_steps / (train_freq * n_envs), "
        "1 / train_frequency",
    ),
    Synonym(
        rollax=split_names("exploration_noise noise_correlation"),
        sb3=split_names("action_noise"),
        cleanrl=split_names("exploration_noise"),
        others=split_names("expl_noise act_noise"),
    ),
    Synonym(
        rollax=split_names("policy_delay"),
        sb3=split_names("policy_delay"),
        cleanrl=split_names("policy_frequency"),
        others=split_names("policy_freq"),
    ),
    Synonym(
        rollax=split_names("target_noise"),
        sb3=split_names("target_policy_noise"),
        cleanrl=split_names("policy_noise"),
    ),
    Synonym(
        rollax=split_names("target_noise_clip"),
        sb3=split_names("target_noise_clip"),
        cleanrl=split_names("noise_clip"),
    ),
    Synonym(
        rollax=split_names("learn_temperature initial_temperature"),
        sb3=split_names("ent_coef"),
        cleanrl=split_names("autotune alpha"),
        others=split_names("initial_alpha"),
        remark="ent_coef auto is learn_temperature",
    ),
    Synonym(
        rollax=split_names("target_entropy"),
        sb3=split_names("target_entropy"),
        cleanrl=split_names("target_entropy"),
        remark="for each dimension of the action",
    ),
    Synonym(
        rollax=split_names("epsilon exploration_fraction"),
        sb3=split_names("exploration_initial_eps exploration_fraction"),
        cleanrl=split_names("start_e exploration_fraction"),
        others=split_names("eps_start eps_decay"),
    ),
    Synonym(
        rollax=split_names("epsilon_final_fraction"),
        sb3=split_names("exploration_final_eps"),
        cleanrl=split_names("end_e"),
        others=split_names("eps_end final_epsilon"),
        remark="a fraction of epsilon",
    ),
    Synonym(
        rollax=split_names("target_update_period"),
        sb3=split_names("target_update_interval"),
        cleanrl=split_names("target_network_frequency"),
        others=split_names("target_network_update_freq target_update_freq"),
        remark="in gradient steps",
    ),
)
