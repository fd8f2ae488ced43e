"""A Ray cluster of nodes on this machine, each with places for ranks; says its address, ends with its input."""

from __future__ import annotations

import json
import os
import sys

from ray.cluster_utils import Cluster

NODES = int(sys.argv[1])
OFFER = json.loads(sys.argv[2])  # of each node: {"resources": {"magneton_rank": 2}} or {"num_gpus": 2}

os.environ["RAY_AUTH_MODE"] = "disabled"
cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 0, "include_dashboard": False, **OFFER},
)
for _ in range(NODES - 1):
    cluster.add_node(num_cpus=0, **OFFER)
print(json.dumps({"address": cluster.address}), flush=True)
sys.stdin.read()
cluster.shutdown()
