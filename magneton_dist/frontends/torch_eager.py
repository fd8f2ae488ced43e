"""A torch callable, recorded as the tracer records a step of a job: forward, backward and optimizer alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from magneton_dist.tracer.fingerprints import Fingerprints
from magneton_dist.tracer.graph import GraphRecorder
from magneton_dist.tracer.knobs import emit_knobs
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stacks

VERSIONS = {"torch": str(torch.__version__)}


def record(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], spool: Spool) -> None:
    """Call ``function(*args, **kwargs)`` once and write its operators, values and settings into `spool`."""
    recorder = GraphRecorder(spool, Stacks(spool), Fingerprints(spool))
    with optimizer_phase(recorder):
        recorder.start(0)
        try:
            function(*args, **kwargs)
        finally:
            recorder.stop()
    emit_knobs(spool)


@contextmanager
def optimizer_phase(recorder: GraphRecorder) -> Iterator[None]:
    """Tell `recorder` when an optimizer's step begins and ends."""

    def begins(*_: object) -> None:
        recorder.phase = "optimizer"

    def ends(*_: object) -> None:
        recorder.phase = None

    hooks = [register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
