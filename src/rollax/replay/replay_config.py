"""Settings of algorithms with a replay buffer, and the sizes of cycles of acting and learning."""

from fractions import Fraction

from rollax.config import settings_dataclass, static_field, traced_field
from rollax.errors import UsageError
from rollax.learning.optimizers import OptimizerName, ScheduleName

# Maximum number of steps in a cycle of acting and learning. The replay ratio is rounded to a
# fraction with at most this denominator. Smaller ratios use longer cycles.
DEFAULT_MAX_CYCLE_STEPS = 64


@settings_dataclass
class ReplayConfig:
    """Settings of algorithms with a replay buffer."""

    num_envs: int = static_field(1)
    """(static) Number of parallel environments."""
    num_steps: int = static_field(50)
    """(static) Number of steps of each environment per update."""
    capacity: int = static_field(1_000_000)
    """(static) Capacity of the replay buffer in steps, for all environments together."""
    batch_size: int = static_field(256)
    """(static) Number of samples per gradient step."""
    replay_ratio: float = static_field(1.0, low=0)
    """(static) Number of gradient steps per environment step."""
    normalize_observations: bool = static_field(False)
    """(static) Normalize observations by their running mean and variance."""
    optimizer: OptimizerName = static_field("adam", takes_function=True)
    """(static) Optimizer of optax. adam with weight_decay is AdamW."""
    learning_rate_schedule: ScheduleName = static_field("linear", takes_function=True)
    """(static) Shape of the change of the learning rates over training."""
    frozen: tuple[str, ...] = static_field(())
    """(static) Parts of the network that are not trained, such as encoder or critic.head."""
    frozen_fraction: float = static_field(1.0, low=0)
    """(static) End of freezing, as a fraction of training. 1 freezes until the end."""
    warmup: float = traced_field(1000.0, low=0)
    """Number of frames with random actions before learning starts."""
    learning_starts: float = traced_field(0.0, low=0)
    """Number of frames before learning starts (at least warmup). The policy acts after warmup."""
    learning_rate: float = traced_field(3e-4, low=0)
    """Learning rate."""
    learning_rate_final_fraction: float = traced_field(1.0, 0, 1)
    """Final learning rate as a fraction of the initial one. 1 is constant."""
    learning_rate_warmup_fraction: float = traced_field(0.0, 0, 1)
    """Fraction of training during which the learning rates rise from 0."""
    gamma: float = traced_field(0.99, 0, 1)
    """Discount factor."""
    max_grad_norm: float = traced_field(float("inf"), low=0)
    """Largest global gradient norm of each optimizer. Larger gradients are clipped."""
    weight_decay: float = traced_field(0.0, low=0)
    """Decay of the weights per step, in units of the learning rate."""
    adam_epsilon: float = traced_field(1e-8, low=0)
    """Epsilon of the optimizer."""
    total_updates: float = traced_field(float("inf"), low=1)
    """Number of updates after which schedules end. A run sets it from its total steps."""

    @property
    def steps_per_update(self) -> int:
        """Number of environment steps in one update."""
        return self.num_envs * self.num_steps


def compute_replay_cycle(config: ReplayConfig) -> tuple[int, int]:
    """Return the number of steps per environment and the number of gradient steps in one cycle.

    Raises:
        UsageError: If the replay ratio does not give a whole number of gradient steps, if
            `num_steps` is not a multiple of the cycle, or if `capacity` is below `batch_size`.
    """
    exact = Fraction(config.replay_ratio * config.num_envs)
    ratio = exact.limit_denominator(DEFAULT_MAX_CYCLE_STEPS)
    if abs(ratio - exact) > exact / 100:
        ratio = Fraction(round(exact * config.num_steps), config.num_steps)
    steps, updates = ratio.denominator, ratio.numerator
    if updates < 1 or abs(ratio - exact) > exact / 100:
        below = int(exact * config.num_steps)
        nearest = [f"{n / config.steps_per_update:.3g}" for n in (below, below + 1) if n > 0]
        multiple = -(-config.num_steps // round(1 / exact)) * round(1 / exact) if exact else None
        raise UsageError(
            f"replay_ratio ({config.replay_ratio}) with num_envs ({config.num_envs}) must be a "
            f"positive integer number of gradient steps in num_steps ({config.num_steps}). Use "
            "replay_ratio "
            f"{' or '.join(nearest)}" + (f", or num_steps {multiple}." if multiple else ".")
        )
    if config.num_steps % steps:
        raise UsageError(
            f"num_steps ({config.num_steps}) must be a multiple of {steps}, the length of the "
            f"cycle of acting and learning for replay_ratio ({config.replay_ratio}) and num_envs "
            f"({config.num_envs}). Use {-(-config.num_steps // steps) * steps}."
        )
    if config.capacity < config.batch_size:
        raise UsageError(
            f"capacity ({config.capacity}) must be at least batch_size ({config.batch_size})."
        )
    return steps, updates
