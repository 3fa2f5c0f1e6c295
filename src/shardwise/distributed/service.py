"""The coordination service that `jax.distributed` starts: its key-value store, and the cluster that JAX would detect.

JAX has no public door to either; this is the one file that goes through a private one.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from dataclasses import dataclass
from typing import Any

PREFIX = "shardwise/"
LONGEST_WAIT_SECONDS = 3600.0
_NAMES = {
    "slurm": "SLURM", "ompi": "Open MPI", "mpi4py": "MPI, by mpi4py", "K8sCluster": "Kubernetes", "GceTpuCluster": "Cloud TPU",
    "GkeTpuCluster": "Cloud TPU on Kubernetes",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Store:
    """The texts that the processes of a run keep for each other; `client` is JAX's."""

    client: Any
    process: int
    processes: int

    def put(self, key: str, text: str, *, overwrite: bool = True) -> bool:
        """Keep a text; False where one is kept already that may not be overwritten."""
        try:
            self.client.key_value_set(PREFIX + key, text, allow_overwrite=overwrite)
        except Exception as error:  # JAX's own error, whose class differs between its versions
            if "ALREADY_EXISTS" not in str(error):
                raise
            return False
        return True

    def wait(self, key: str, seconds: float) -> str | None:
        """The text of a key, as soon as it is kept; None where it is not within so many seconds."""
        try:
            return self.client.blocking_key_value_get(PREFIX + key, max(1, int(1000 * min(seconds, LONGEST_WAIT_SECONDS))))
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None

    def look(self, key: str) -> str | None:
        """The text of a key, if one is kept now."""
        try:
            return self.client.key_value_try_get(PREFIX + key)
        except Exception as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None

    def listed(self, key: str) -> dict[int, str]:
        """The texts kept below a key, by the numbers of the processes that they are of."""
        found = self.client.key_value_dir_get(f"{PREFIX}{key}/")
        return {int(name.rpartition("/")[2]): text for name, text in found}

    def drop(self, key: str) -> None:
        """Forget a key, and all below it."""
        with contextlib.suppress(Exception):  # the service may have gone by then
            self.client.key_value_delete(PREFIX + key)


def store() -> Store | None:
    """The store of this run; None where `jax.distributed` has not started, or JAX shows it no more."""
    try:
        from jax._src.distributed import global_state
    except ImportError:
        return None
    client = getattr(global_state, "client", None)
    if client is None or not hasattr(client, "blocking_key_value_get"):
        return None
    return Store(client, global_state.process_id, global_state.num_processes)


def detected() -> str | None:
    """The name of the cluster that `jax.distributed.initialize()` detects by itself; None where it detects none."""
    try:
        from jax._src.clusters import ClusterEnv

        kinds = [kind for kind in ClusterEnv._cluster_types if not kind.opt_in_only_method]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a package for Kubernetes is missing
            kind = next((kind for kind in kinds if kind.is_env_present()), None)
        return None if kind is None else _NAMES.get(kind.name or kind.__name__, kind.__name__)
    except (ImportError, AttributeError):
        if "SLURM_PROCID" in os.environ and "SLURM_STEP_NODELIST" in os.environ:
            return _NAMES["slurm"]
        return _NAMES["ompi"] if "OMPI_COMM_WORLD_RANK" in os.environ else None


def resolved(start_seconds: float) -> tuple[str, int, int, list[int] | None]:
    """Coordinator, number of processes, this process, and its local devices, as the detected cluster tells them.

    Raises:
        RuntimeError: the cluster does not tell all of it.
    """
    from jax._src.clusters import ClusterEnv

    address, processes, process, local = ClusterEnv.auto_detect_unset_distributed_params(
        os.environ.get("JAX_COORDINATOR_ADDRESS"), None, None, None, None, int(start_seconds)
    )
    if address is None or processes is None or process is None:
        raise RuntimeError("it does not tell the coordinator, the number of processes and this process's own number")
    return address, processes, process, None if local is None else list(local)
