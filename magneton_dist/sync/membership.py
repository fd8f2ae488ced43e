"""Who still trains: the vote, the groups of those who do, and the store on which a finished rank sleeps.

At the start of every synchronised step each rank that still trains joins one small all-reduce on a CPU
control group. A rank that has finished joins that same all-reduce once, says that it leaves, and is gone: so
who takes part in step k is agreed before any collective of step k, and there is no race. The all-reduce is
asynchronous; `settle` waits for it when the answer is first needed.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import PrefixStore

from magneton_dist.errors import SyncError
from magneton_dist.tracer.origin import label

# What a rank's entry in the vote says; the rank next to it is how many forward passes it has made.
GONE, TRAINS, PARKS, RELEASED = range(4)

_entered: Counter[str] = Counter()  # per process group; equal on all its ranks, so names agree


class Membership:
    """The ranks of one process group that still train, during one `EarlyExit` block.

    Ranks are ranks within `full`. Creating it is collective: every rank of `full` must do so.

    Attributes:
        full: the model's process group.
        live: ranks that train; at the end, the ranks that are left.
        group: the process group of `live`; None while it is `full`.
        released: ranks whose process has ended.
        over: no rank trains any more.
        leads: this rank made as many steps as any other, so its model is the final one.
    """

    def __init__(self, full: dist.ProcessGroup, timeout: timedelta) -> None:
        name = full.group_name
        _entered[name] += 1
        self.full = full
        self.rank = dist.get_rank(full)
        self.live = list(range(full.size()))
        self.group: dist.ProcessGroup | None = None
        self.released: list[int] = []
        self.over = False
        self.leads = False
        self._parked: list[int] = []
        self._before = self.live  # `live` before the last ranks left
        self._timeout = timeout
        self._name = f"early_exit/{name}/{_entered[name]}"
        self._store: Any = PrefixStore(self._name, distributed_c10d._get_default_store())
        self._made: list[dist.ProcessGroup] = []
        self._round = 0
        self._any_root = False
        self._pending: tuple[dist.Work, torch.Tensor] | None = None
        self._last_beat = time.monotonic()
        self._control = self._make("control", self.live, "gloo")

    def vote(self, says: int = TRAINS, forwards: int = 0) -> None:
        """Issue this rank's vote for the next step; does not wait.

        Raises:
            SyncError: the previous vote was still open and failed.
        """
        self.settle()
        votes = torch.zeros(self.full.size(), 2, dtype=torch.int64)
        votes[self.rank, 0], votes[self.rank, 1] = says, forwards
        self._pending = (self._sum(votes), votes)
        self._beat()

    def count(self, trains: bool) -> dist.Work:
        """All-reduce the number of ranks that train, as one float; does not wait."""
        return self._sum(torch.tensor([float(trains)]))

    def settle(self) -> None:
        """Wait for the open vote, if any, and let the group shrink to those who stay.

        Raises:
            SyncError: a peer died, or did not vote in time.
        """
        if self._pending is None:
            return
        work, votes = self._pending
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost("a rank died or did not vote") from error
        self._pending = None
        said, forwards = votes.T.tolist()
        stay = [rank for rank in self.live if said[rank] == TRAINS]
        if stay == self.live:
            return
        if not stay:
            self.over = True
            self.leads = forwards[self.rank] == max(forwards)
            return
        self._round += 1
        self._parked += [rank for rank in self.live if said[rank] == PARKS]
        released = [rank for rank in self.live if said[rank] == RELEASED]
        if released:
            self.released += released
            self._store.set(f"heard/{self._round}/{self.rank}", "")
        self._before, self.live = self.live, stay
        if self.rank in stay:
            self._control = self._make(f"control.{self._round}", stay, "gloo")
            self.group = self._make(f"data.{self._round}", stay, dist.get_backend(self.full))

    def route(self) -> dist.ProcessGroup | None:
        """The group that collectives on `full` must use now; None when it is `full` itself.

        Raises:
            SyncError: a peer died, or did not vote in time.
        """
        self.settle()
        return self.group

    def index(self, rank: int) -> int:
        """Rank within `group` of a rank of `full`.

        Raises:
            SyncError: that rank has left.
        """
        if rank not in self.live:
            if self._any_root:
                return 0
            raise SyncError(
                f"a collective whose root is rank {rank}, which has finished",
                where=f"rank {self.rank}, left: {self.live}",
                do="choose a root that still trains",
            )
        return self.live.index(rank)

    @contextmanager
    def any_root(self) -> Iterator[None]:
        """Inside, a root that has left is replaced by the first rank that trains."""
        self._any_root = True
        try:
            yield
        finally:
            self._any_root = False

    def await_release(self) -> None:
        """Wait until all peers have heard that this rank leaves: only then may its connections close.

        Raises:
            SyncError: a peer did not answer in time.
        """
        peers = [f"heard/{self._round}/{rank}" for rank in self._before if rank != self.rank]
        try:
            self._store.wait(peers, self._timeout)
        except RuntimeError as error:
            raise self._lost("a peer did not let this rank go") from error

    def park(self) -> None:
        """Sleep until the last rank has finished.

        Raises:
            SyncError: a rank failed, or none has made a step for `timeout`.
        """
        store = self._store.clone()  # waiting holds the connection, which other threads may need
        beats = store.add("beats", 0)
        while True:
            try:
                store.wait(["over"], self._timeout)
                break
            except RuntimeError as error:
                try:
                    last, beats = beats, store.add("beats", 0)
                except RuntimeError:
                    raise self._lost("the rendezvous store is gone") from error
                if beats == last:
                    raise self._lost("no rank has made a step") from error
        over = json.loads(store.get("over"))
        if "failed" in over:
            raise self._lost(f"rank {over['failed']} left the block with an error")
        self.live, self.released = over["present"], over["released"]

    def reunite(self) -> None:
        """At the end, gather the ranks that trained last and those that parked into one group."""
        if self.rank in self._parked:
            self.group = None
        else:
            trained_last, self.live = self.live, sorted(self.live + self._parked)
            self._store.set("over", json.dumps({"present": self.live, "released": self.released}))
            if self.live == trained_last:
                return
        if len(self.live) == self.full.size():
            self.group = None
        else:
            self.group = self._make("final", self.live, dist.get_backend(self.full))

    def abandon(self) -> None:
        """Wake the parked ranks: this one failed. Peers that train notice by themselves."""
        with suppress(RuntimeError):  # the store may be what failed
            self._store.set("over", json.dumps({"failed": self.rank}))

    def close(self) -> None:
        """Destroy the groups made on the way, except the one that replaces `full` for good."""
        for group in self._made:
            if group is not self.group:
                dist.destroy_process_group(group)
        self._made.clear()

    def _sum(self, tensor: torch.Tensor) -> dist.Work:
        with label("sync_control"):
            work: dist.Work = dist.all_reduce(tensor, group=self._control, async_op=True)
        return work

    def _beat(self) -> None:
        """Tell the parked ranks, now and then, that somebody is alive."""
        now = time.monotonic()
        if self.rank == self.live[0] and now - self._last_beat > self._timeout.total_seconds() / 4:
            self._last_beat = now
            self._store.add("beats", 1)

    def _make(self, name: str, ranks: list[int], backend: str) -> dist.ProcessGroup:
        """A process group of some ranks of `full`, made by those ranks only.

        Not `new_group(use_local_synchronization=True)`: it derives the name from the ranks and the number of
        groups this process holds, which differs between ranks and repeats over epochs.
        """
        everyone = dist.get_process_group_ranks(self.full)
        members = [everyone[rank] for rank in ranks]
        group: dist.ProcessGroup
        group, _ = distributed_c10d._new_process_group_helper(
            len(ranks),
            ranks.index(self.rank),
            members,
            distributed_c10d.Backend(backend),
            self._store,
            group_name=cast(Any, f"{self._name}/{name}"),
            timeout=self._timeout,
        )
        distributed_c10d._world.pg_group_ranks[group] = {rank: at for at, rank in enumerate(members)}
        self._made.append(group)
        return group

    def _lost(self, what: str) -> SyncError:
        return SyncError(
            f"{what} (time-out {self._timeout.total_seconds():g} s)",
            where=f"rank {self.rank}, training: {self.live}",
            do="see the first error among the ranks' outputs",
        )
