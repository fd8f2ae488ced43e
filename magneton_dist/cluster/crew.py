"""The actors of an audit: placed once, kept for all runs, put back when they die."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from magneton_dist.cluster.analysis import Analysis
from magneton_dist.cluster.events import Actor, Agent, Slot
from magneton_dist.cluster.node_agent import NodeAgent, NodeFacts
from magneton_dist.cluster.placement import CPU, GPU, device_order
from magneton_dist.cluster.rank_actor import RankActor, SlotFacts
from magneton_dist.cluster.states import Shape
from magneton_dist.cluster.vitals import Address


def reserve(shape: Shape, resource: str) -> PlacementGroup:
    """Ask Ray for the places of a job: one bundle per node, which holds the node's ranks together."""
    strategy = "STRICT_SPREAD" if shape.nodes > 1 else "PACK"
    group: PlacementGroup = placement_group([{resource: float(shape.per_node)}] * shape.nodes, strategy=strategy)
    return group


class Crew:
    """One node agent per bundle and one rank actor per rank's resource in it.

    Args:
        audit: name of the audit, for its mark on each machine.
        shape: nodes and ranks.
        resource: what a rank takes; see `placement.rank_resource`.
        group: from `reserve`.
        analysis: handed to the rank actors.
        meter: which meter they open.
        period_s: how often they read it.
    """

    def __init__(
        self,
        audit: str,
        shape: Shape,
        resource: str,
        group: PlacementGroup,
        analysis: Analysis,
        meter: str,
        period_s: float,
    ) -> None:
        self.shape = shape
        self._group = group
        self._audit = audit
        self._resource = resource
        self._work = (analysis, meter, period_s)
        self._handles: dict[Actor, Any] = {}
        self._nodes: dict[int, NodeFacts] = {}
        self._slots: dict[Slot, SlotFacts] = {}

    @property
    def missing(self) -> frozenset[Actor]:
        """Actors that are not there."""
        return (self.shape.agents | self.shape.slots) - self._handles.keys()

    def put(self, actor: Actor) -> Any:
        """Create `actor`; returns the reference that is ready with its description."""
        is_agent = isinstance(actor, Agent)
        options: dict[str, Any] = {
            "num_cpus": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=actor.node
            ),
        }
        if not is_agent:
            options |= _takes(self._resource)
        make: Any = ray.remote(NodeAgent if is_agent else RankActor)
        work = (self._audit, actor.node) if is_agent else self._work
        handle = make.options(**options).remote(*work)
        self._handles[actor] = handle
        return handle.describe.remote()

    def know(self, actor: Actor, description: NodeFacts | SlotFacts) -> None:
        """Keep what `actor` said of itself."""
        if isinstance(actor, Agent) and isinstance(description, NodeFacts):
            self._nodes[actor.node] = description
        elif isinstance(actor, Slot) and isinstance(description, SlotFacts):
            self._slots[actor] = description

    def drop(self, actor: Actor) -> None:
        """Forget a dead actor."""
        self._handles.pop(actor, None)

    def handle(self, actor: Actor) -> Any:
        """Ray's handle of `actor`; None when it is lost."""
        return self._handles.get(actor)

    def on(self, node: int) -> list[Actor]:
        """Actors of one node."""
        return [actor for actor in self.shape.agents | self.shape.slots if actor.node == node]

    def servers(self) -> dict[int, Address]:
        """Where Ray's process of each node of the job listens."""
        known = {node["NodeID"]: node for node in ray.nodes()}  # type: ignore[no-untyped-call]
        found = {number: known[node_id] for number, node_id in self._node_ids().items() if node_id in known}
        return {number: (node["NodeManagerAddress"], node["NodeManagerPort"]) for number, node in found.items()}

    def address(self, node: int) -> str:
        """Where other nodes reach a node."""
        return self.servers()[node][0]

    def facts(self, node: int) -> NodeFacts:
        """What a node's agent said of it."""
        return self._nodes[node]

    def name(self, node: int) -> str:
        """Host name, with the node's number where two nodes share one."""
        names = {number: facts.hostname for number, facts in self._nodes.items()}
        name = names.get(node, f"node-{node}")
        return name if list(names.values()).count(name) <= 1 else f"{name}-{node}"

    def device(self, slot: Slot) -> str | None:
        """The accelerator of a slot, as Ray calls it; None where ranks take no GPU."""
        devices = self._devices(slot.node)
        return devices[slot.index] if slot.index < len(devices) else None

    def visible_devices(self, node: int) -> str | None:
        """CUDA_VISIBLE_DEVICES of a node's job: LOCAL_RANK i gets the i-th; None where ranks take no GPU."""
        return ",".join(self._devices(node)) or None

    def _devices(self, node: int) -> list[str]:
        if self._resource != GPU:
            return []
        found = (device for slot, facts in self._slots.items() if slot.node == node for device in facts.devices)
        return sorted(found, key=device_order)

    def _node_ids(self) -> dict[int, str]:
        bundles: dict[int, str] = placement_group_table(self._group)["bundles_to_node_id"]
        return bundles


def _takes(resource: str) -> dict[str, Any]:
    if resource == GPU:
        return {"num_gpus": 1}
    if resource == CPU:
        return {"num_cpus": 1}
    return {"resources": {resource: 1}}
