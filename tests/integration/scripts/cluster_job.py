"""A job whose every step is an all-reduce and a nap: ``STEPS SECONDS [then what]``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

steps, nap_s = int(sys.argv[1]), float(sys.argv[2])
then = sys.argv[3] if len(sys.argv) > 3 else ""

dist.init_process_group("gloo")
rank = dist.get_rank()
if then == "children":  # helpers that the end of the rank does not end
    subprocess.Popen(["sleep", "600"], start_new_session=True)
if then == "tell":
    told = {"cwd": str(Path.cwd()), "argv": sys.argv[4:], "env": dict(os.environ),
            "nice": os.getpriority(os.PRIO_PROCESS, 0)}
    Path(sys.argv[4], f"told-{rank}.json").write_text(json.dumps(told))
parameter = torch.nn.Parameter(torch.zeros(8))
optimizer = torch.optim.SGD([parameter], lr=0.1)
for _ in range(steps):
    gradient = torch.ones(8)
    dist.all_reduce(gradient)
    parameter.grad = gradient
    optimizer.step()
    time.sleep(nap_s)
if then == "fail":
    print(f"rank {rank} gives up", flush=True)
    sys.exit(3)
dist.destroy_process_group()
