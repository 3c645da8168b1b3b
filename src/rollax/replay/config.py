"""The settings of all that learns from replay, and the cycles of acting and learning that they ask for."""

from fractions import Fraction

from rollax.config import number, settings, static
from rollax.errors import UsageError

# Ratios are taken for the nearest fraction with at most so many steps in a cycle; longer ones are for ratios that are smaller.
USUAL_CYCLE = 64


@settings
class ReplayConfig:
    """The settings of all that learn from replay."""

    num_envs: int = static(1)
    """(static) Environments run side by side."""
    num_steps: int = static(50)
    """(static) Steps of each environment between two lines of metrics."""
    capacity: int = static(1_000_000)
    """(static) Steps that are remembered, of all environments together."""
    batch_size: int = static(256)
    """(static) Samples a gradient step."""
    replay_ratio: float = static(1.0, low=0)
    """(static) Gradient steps per environment step."""
    normalize_observations: bool = static(False)
    """(static) Shift and scale observations by running statistics."""
    warmup: float = number(1000.0, low=0)
    """Frames of random actions before anything is learnt."""
    learning_starts: float = number(0.0, low=0)
    """Frames before anything is learnt, where more than warmup: the policy acts in what lies between, as it explores."""
    learning_rate: float = number(3e-4, low=0)
    """Adam's step size."""
    learning_rate_final_fraction: float = number(1.0, 0, 1)
    """Share of the learning rate left at the end of training, reached linearly."""
    gamma: float = number(0.99, 0, 1)
    """Discount."""
    max_grad_norm: float = number(float("inf"), low=0)
    """Global norm to which gradients are clipped, of each optimizer apart."""
    adam_epsilon: float = number(1e-8, low=0)
    """Adam's epsilon."""
    total_updates: float = number(float("inf"), low=1)
    """Updates until the schedules end. The run sets it from its total steps."""

    @property
    def steps_per_update(self) -> int:
        """Environment frames in one update."""
        return self.num_envs * self.num_steps


def cycle(config: ReplayConfig) -> tuple[int, int]:
    """Steps of every environment, and gradient steps, of one cycle. Raises UsageError when the sizes do not fit together."""
    wanted = Fraction(config.replay_ratio * config.num_envs)
    ratio = wanted.limit_denominator(USUAL_CYCLE)
    if abs(ratio - wanted) > wanted / 100:
        ratio = Fraction(round(wanted * config.num_steps), config.num_steps)
    steps, updates = ratio.denominator, ratio.numerator
    if updates < 1 or abs(ratio - wanted) > wanted / 100:
        below = int(wanted * config.num_steps)
        nearest = [f"{n / config.steps_per_update:.3g}" for n in (below, below + 1) if n > 0]
        fitting = -(-config.num_steps // round(1 / wanted)) * round(1 / wanted) if wanted else None
        raise UsageError(
            f"replay_ratio ({config.replay_ratio}) with num_envs ({config.num_envs}) is no whole number of gradient steps in "
            f"num_steps ({config.num_steps}): try {' or '.join(nearest)}" + (f", or num_steps {fitting}" if fitting else "")
        )
    if config.num_steps % steps:
        raise UsageError(
            f"num_steps ({config.num_steps}) must be a multiple of {steps}, the steps between gradient steps that replay_ratio "
            f"({config.replay_ratio}) and num_envs ({config.num_envs}) ask for: try {-(-config.num_steps // steps) * steps}"
        )
    if config.capacity < config.batch_size:
        raise UsageError(f"capacity ({config.capacity}) must be at least batch_size ({config.batch_size})")
    return steps, updates
