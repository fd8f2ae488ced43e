"""Where ranks can go: one bundle per node, with a rank's resource for each of its ranks.

A rank's resource is a GPU where the nodes have enough of them; without GPUs it is the logical resource that a
local session declares, or a CPU on somebody else's cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magneton_dist.cluster.states import Shape
from magneton_dist.errors import InputError

GPU = "GPU"
LOGICAL = "magneton_rank"
CPU = "CPU"


@dataclass(frozen=True, slots=True)
class Node:
    """A living node of the cluster and all that it has, free or not."""

    node_id: str
    hostname: str
    resources: Mapping[str, float]

    def has(self, resource: str) -> int:
        """How many of `resource`."""
        return int(self.resources.get(resource, 0))


def rank_resource(nodes: Sequence[Node], shape: Shape) -> str:
    """The resource that one rank takes.

    Raises:
        InputError: no choice of nodes has room for all ranks; says what each node has.
    """
    kinds = [kind for kind in (GPU, LOGICAL, CPU) if any(node.has(kind) for node in nodes)]
    for kind in kinds:
        if sum(node.has(kind) >= shape.per_node for node in nodes) >= shape.nodes:
            return kind
    offer = "; ".join(
        f"{node.hostname} has {', '.join(f'{node.has(kind)} {_NAMES[kind]}' for kind in kinds) or 'nothing'}"
        for node in nodes
    )
    raise InputError(
        f"needs {shape.nodes} node(s) with room for {shape.per_node} rank(s) each, but {offer}",
        where="job.torchrun",
        do="lower nproc_per_node or nnodes, or give the --address of a larger cluster",
    )


_NAMES = {GPU: "GPU(s)", LOGICAL: "place(s)", CPU: "CPU(s)"}


def device_order(device: str) -> tuple[bool, int, str]:
    """Sorts Ray's accelerator ids as CUDA_VISIBLE_DEVICES shall list them: numbers by value, then names."""
    return (not device.isdecimal(), int(device) if device.isdecimal() else 0, device)
