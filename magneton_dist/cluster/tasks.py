"""Work shared out among processes of this machine, while a session with Ray lasts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from magneton_dist.cluster.calls import as_ours, first_line
from magneton_dist.cluster.processes import die_with_raylet
from magneton_dist.errors import ClusterError

Item = TypeVar("Item")
Result = TypeVar("Result")


class RunAll(Protocol):
    """`run_all`, or something in its place."""

    def __call__(self, function: Callable[[Item], Result], items: Sequence[Item], /) -> Sequence[Result]:
        """See `run_all`."""
        ...


def run_all(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Call `function` with each item, in a process for each core; records lie on this machine, so work stays here.

    Args:
        function: of a module, which the processes import.
        items: small: each is copied to the process that works on it.

    Returns:
        the results in the order of the items.

    Raises:
        MagnetonError: what `function` raised, or that its process died; the others are stopped.
    """
    processes = min(len(os.sched_getaffinity(0)), len(items))
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    make: Any = ray.remote(Worker)
    workers = [make.options(num_cpus=0, scheduling_strategy=here).remote() for _ in range(processes)]
    try:
        parts = ray.get([worker.each.remote(function, items[k::processes]) for k, worker in enumerate(workers)])
    except RayTaskError as error:
        raise as_ours(error.cause, function.__name__) from error
    except RayError as error:
        raise ClusterError(
            f"a process that worked for the analysis died: {first_line(error)}",
            where=function.__name__,
            do="the runs are recorded: give their folder to magneton-dist audit, which needs one process",
        ) from error
    finally:
        for worker in workers:  # actors, since cancelling a task that is about to end can crash Ray (2.60)
            ray.kill(worker)
    return [parts[place % processes][place // processes] for place in range(len(items))]


class Worker:
    """An actor that calls functions."""

    def __init__(self) -> None:
        die_with_raylet()

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Results in the order of the items."""
        return [function(item) for item in items]
