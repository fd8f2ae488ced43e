"""A Ray cluster of nodes on this machine, each with a place for ranks; says its address, ends with its input."""

from __future__ import annotations

import json
import os
import sys

from ray.cluster_utils import Cluster

NODES, PLACES = int(sys.argv[1]), int(sys.argv[2])

os.environ["RAY_AUTH_MODE"] = "disabled"
cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 0, "resources": {"magneton_rank": PLACES}, "include_dashboard": False},
)
for _ in range(NODES - 1):
    cluster.add_node(num_cpus=0, resources={"magneton_rank": PLACES})
print(json.dumps({"address": cluster.address}), flush=True)
sys.stdin.read()
cluster.shutdown()
