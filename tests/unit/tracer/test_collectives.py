"""To which group a call belongs, however the group was made; when the clocks are read."""

from __future__ import annotations

import subprocess
import sys

# One rank with collectives that are written into a list.
ALONE = """
import datetime
from types import SimpleNamespace
import torch
import torch.distributed as dist
from magneton_dist.tracer.collectives import Collectives
from magneton_dist.tracer.stacks import Stacks
from magneton_dist.tracer.stamps import Stamps

class Spool:
    live = True
    def __init__(self): self.rows, self.before_flush = [], []
    def put(self, *row): self.append(row)
    def append(self, row): self.rows.append(row)
    def fault(self, *what): print("fault", *what)

store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
spool = Spool()
collectives = Collectives(spool, Stamps(spool), Stacks(spool), SimpleNamespace(step=0))
collectives.add_group(dist.group.WORLD)
collectives.install()
"""

# A group as `split_group` makes it: natively, then entered in c10d's tables.
SPLIT = ALONE + """
dist.all_reduce(torch.ones(3))
apart = dist.PrefixStore("split", store)
split = dist.ProcessGroup(apart, 0, 1)
backend = dist.ProcessGroupGloo(apart, 0, 1, datetime.timedelta(seconds=30))
split._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
split._set_group_name("split")
world = dist.distributed_c10d._world
world.pg_map[split], world.pg_names[split], world.pg_group_ranks[split] = ("gloo", apart), "split", {0: 0}
dist.all_reduce(torch.ones(3), group=split)
dist.all_reduce(torch.ones(3))
print([(row[2], row[5]) for row in spool.rows if row[0] == "collective"], dist.group.WORLD.group_name)
"""


def test_a_group_that_was_split_off_is_not_taken_for_the_only_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SPLIT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said = done.stdout.splitlines()[-1]
    name = said.split()[-1]
    assert said.startswith(str([(name, 1), ("split", 1), (name, 2)])), done.stdout


# Asking for the main thread's CPU time may cost it its core, and its peers wait for what it has not issued yet.
ORDER = ALONE + """
happened = []
def noting(name, function):
    def noted(*args):
        happened.append(name)
        return function(*args)
    return noted
for name in ("_issued", "_returned"):
    setattr(collectives, name, noting(name, getattr(collectives, name)))
collectives._stamps.stamp = noting("stamp", collectives._stamps.stamp)
collectives._library._destroy()
collectives.install()
dist.all_reduce(torch.ones(3))
collectives.quiesce()
(call,) = [row for row in spool.rows if row[0] == "collective"]
times = [row[1] for row in spool.rows if row[0] == "stamp"]
print(happened, sorted(times) == [call[13], call[15]])
happened.clear()
try:
    dist.all_gather([torch.ones(3), torch.ones(3)], torch.ones(3))
except RuntimeError:
    stamp, call = spool.rows[-2:]
    print(happened, (stamp[0], call[0], call[15]) == ("stamp", "collective", None) and stamp[1] == call[13])
    print(len(collectives._in_flight))
"""


def test_clocks_are_read_after_the_issue_with_the_time_of_the_issue() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORDER], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    happened = ["_issued", "_returned", "stamp", "stamp"]
    refused = ["_issued", "stamp"]  # by gloo; the job goes on
    said = done.stdout.splitlines()
    assert said[0] == f"{happened} True"
    assert said[1].startswith("fault collectives allgather_ ProcessGroupGloo::allgather: invalid output tensor list")
    assert said[2:] == [f"{refused} True", "0"]  # a call without an end, of which nothing is kept
