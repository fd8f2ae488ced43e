"""Record one step of a torch callable the way the tracer does in a job."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from magneton_dist.matching.recorded import StepGraph, step_graph
from magneton_dist.records.assembly import assemble
from magneton_dist.tracer.fingerprints import Fingerprints
from magneton_dist.tracer.graph import GraphRecorder
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stacks


class Tables(dict[str, pl.DataFrame]):
    """Tables of a recording, in the form of a record."""

    def table(self, name: str) -> pl.DataFrame:
        return self[name]


@contextmanager
def recorder(
    folder: str, fingerprints: Callable[[Spool], Fingerprints] | None = Fingerprints
) -> Iterator[GraphRecorder]:
    """A recorder that writes into `folder` and knows when an optimizer steps."""
    spool = Spool(folder, 1e10)
    made = GraphRecorder(spool, Stacks(spool), None if fingerprints is None else fingerprints(spool))

    def begins(*_: object) -> None:
        made.phase = "optimizer"

    def ends(*_: object) -> None:
        made.phase = None

    hooks = [register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)]
    try:
        yield made
    finally:
        for hook in hooks:
            hook.remove()
        spool.close()


def record(
    step: Callable[[], object], steps: int = 1, fingerprints: Callable[[Spool], Fingerprints] = Fingerprints
) -> Tables:
    """The tables of `steps` calls of `step`.

    Models and optimizers of earlier recordings must be gone: names are looked for in the whole process.
    """
    gc.collect()
    with TemporaryDirectory() as folder:
        with recorder(folder, fingerprints) as recording:
            for number in range(steps):
                recording.start(number)
                step()
                recording.stop()
        return Tables(assemble(Path(folder)))


def graph_of(tables: dict[str, pl.DataFrame], step: int | None = None) -> StepGraph:
    """The graph of a recorded step."""
    return step_graph(tables["ops"], tables["values"], tables["fingerprints"], step)
