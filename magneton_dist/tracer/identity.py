"""Which rank this process is, and how it says so: a file renamed into the spool."""

from __future__ import annotations

import json
import os
import time
from typing import NamedTuple

from magneton_dist.tracer.rows import FORMAT_VERSION

# Set by torchrun (and what builds on it), Slurm, Open MPI, MPICH. mp.spawn on one machine sets none.
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


class Identity(NamedTuple):
    """A rank of a run, in one of its restarts."""

    spool: str
    rank: int
    local_rank: int
    world_size: int
    distributed: bool
    restart: int
    segments: str

    @property
    def folder(self) -> str:
        """Where the segments go."""
        return os.path.join(self.spool, self.segments)

    def announce(self, device: str | None) -> None:
        """Put the rank's file into the spool, or replace it.

        Args:
            device: UUID of the GPU, "cpu", or None as long as asking would create a CUDA context.
        """
        with open("/proc/self/stat", encoding="utf-8") as file:
            start_ticks = int(file.read().rpartition(")")[2].split()[19])
        path = os.path.join(self.spool, f"rank-{self.local_rank}-{self.restart}.json")
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(
                {
                    "format": FORMAT_VERSION,
                    "rank": self.rank,
                    "local_rank": self.local_rank,
                    "world_size": self.world_size,
                    "pid": os.getpid(),
                    "start_ticks": start_ticks,
                    "node": os.uname().nodename,
                    "restart": self.restart,
                    "device": device,
                    "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
                    "distributed": self.distributed,
                    "monotonic_ns": time.monotonic_ns(),
                    "wall_ns": time.time_ns(),
                    "segments": self.segments,
                },
                file,
            )
        os.rename(path + ".tmp", path)


def claim(spool: str, rank: int, world_size: int, distributed: bool) -> Identity:
    """Take the first free restart of this rank, from the launcher's own count on.

    Args:
        spool: the run's folder on this node.
        rank, world_size: of the process group; the environment's, if it says so, for a job without one.
        distributed: there is a process group.
    """
    local_rank = next((int(os.environ[name]) for name in _LOCAL_RANK if os.environ.get(name)), rank)
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    while True:
        identity = Identity(
            spool, rank, local_rank, world_size, distributed, restart, f"l{local_rank}-{restart}"
        )
        try:
            os.mkdir(identity.folder)
        except FileExistsError:
            restart += 1
        else:
            return identity
