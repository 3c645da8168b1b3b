"""Connection to a Ray cluster."""

import contextlib
import os
import warnings
from collections.abc import Iterator

from rollax.errors import UsageError

RAY_ADDRESS_VARIABLE = "RAY_ADDRESS"


def connect_to_ray(remedy: str) -> None:
    """Connect to a Ray cluster.

    The cluster is the one at RAY_ADDRESS. If the variable is not set, it is a cluster that
    `ray start` has started on this machine, or otherwise a new local cluster.

    Args:
        remedy: Sentence at the end of the error message.

    Raises:
        UsageError: If Ray cannot connect or start.
    """
    import ray

    # Otherwise workers of a local cluster run at low priority.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        with _limit_ray_attempts(), warnings.catch_warnings():
            # The processes of Ray do not run JAX, so forking is safe.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(
                address=os.environ.get(RAY_ADDRESS_VARIABLE),
                log_to_driver=False,
                include_dashboard=False,
            )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(
            f"The Ray cluster cannot be reached ({error}). Check RAY_ADDRESS, or run "
            f"`ray start --head`. {remedy}"
        ) from error


@contextlib.contextmanager
def _limit_ray_attempts() -> Iterator[None]:
    """Let Ray make one attempt (up to 40 s) instead of 20 to connect to the cluster."""
    # The variable counts attempts. It must not apply to a cluster that Ray starts itself.
    name = "RAY_gcs_server_port_wait_time_s"
    is_changed = RAY_ADDRESS_VARIABLE in os.environ and name not in os.environ
    if is_changed:
        os.environ[name] = "1"
    try:
        yield
    finally:
        if is_changed:
            del os.environ[name]
