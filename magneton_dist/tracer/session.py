"""The tracer of a process that is known to be a rank: makes the parts, announces the rank, ends them."""

from __future__ import annotations

import atexit
import functools
import json
import multiprocessing.process
import multiprocessing.util
import os
import random
import sys
from typing import Any

import torch
import torch.distributed as dist

from magneton_dist.tracer import loaders, uncompiled
from magneton_dist.tracer.environment import PID, Settings
from magneton_dist.tracer.identity import Identity, claim
from magneton_dist.tracer.kernels import KernelCapture
from magneton_dist.tracer.spool import Spool
from magneton_dist.tracer.stacks import Stacks
from magneton_dist.tracer.stamps import Stamps
from magneton_dist.tracer.steps import Graph, Steps


class Session:
    """Everything the tracer holds in a rank. One per process, until it ends or forks.

    Args:
        settings: where to write and what.
        python_start_ns: when this interpreter started.
        group: the first process group, None for a job that has none.
    """

    def __init__(self, settings: Settings, python_start_ns: int, group: Any) -> None:
        capture = settings.capture
        self._identity = _identify(settings.spool, group)
        os.environ[PID] = str(os.getpid())  # what this rank starts stays dark
        self.spool = Spool(self._identity.folder, capture.max_mb * 1e6)
        self.spool.put("mark", "python_start", python_start_ns, None)
        self._pid = os.getpid()
        self._stacks = Stacks(self.spool, record=capture.stacks != "none")
        self._stamps = Stamps(self.spool)
        self._fingerprints = capture.fingerprints
        self._inputs = capture.inputs
        self._collectives: Any = None
        self._digested = False
        self._device_known = False
        self._knobs_written = False
        if capture.seed is not None:
            _seed(capture.seed + self._identity.rank)
        self._announce(last_try=False)
        self.steps = Steps(
            self.spool,
            self._stamps,
            capture,
            start_ns=None if group is not None else python_start_ns,
            open_graph=self._open_graph,
            warmed_up=self._warmed_up,
            stop=self._stop,
            kernels=None if capture.kernels is None else self._open_kernels(capture.kernels),
        )
        uncompiled.ends_here(self.spool.guard)
        self._follow_backwards()
        self._follow_scalers()
        loaders.follow(self.spool, self._stacks, self._mark)
        self._follow_exit()

    def group_created(self, group: Any, global_ranks: list[int]) -> None:
        """A process group exists; with the first one, collectives are followed."""
        if self._collectives is None:
            from magneton_dist.tracer import joins
            from magneton_dist.tracer.collectives import Collectives

            self._collectives = Collectives(self.spool, self._stamps, self._stacks, self.steps)
            self._collectives.install()
            joins.follow(self.spool, self._stacks)
            if not self._identity.distributed:
                self._identity = self._identity._replace(
                    rank=group.rank(), world_size=group.size(), distributed=True
                )
                self._device_known = False
                self._announce(last_try=False)
        detail = {
            "group": self._collectives.add_group(group),
            "backend": group.name(),
            "rank": group.rank(),
            "size": group.size(),
            "ranks": global_ranks or list(range(group.size())),
        }
        self._mark("process_group", detail)

    def before_groups_die(self, all_of_them: bool) -> None:
        """The job is about to destroy process groups."""
        if all_of_them:
            self._digest_parameters()
        if self._collectives is not None:
            self._collectives.quiesce()

    def close(self) -> None:
        """The process ends in an orderly way: write what is left."""
        if not self.spool.live:
            return
        try:
            self.steps.finish()
            if self.steps.last_end_ns is not None:
                self.spool.put("mark", "last_step", self.steps.last_end_ns, None)
            error = getattr(sys, "last_type", None)
            self._warmed_up()
            if self._collectives is not None:
                self._collectives.quiesce()
            if error is None:
                self._digest_parameters()
            self._mark("exit", None if error is None else {"exception": error.__name__})
        except Exception as error:
            self.spool.fault("exit", error)
        self.spool.close()

    def darken(self) -> None:
        """This is a forked child now: it writes nothing, whatever it calls."""
        self.spool.darken()

    # --- edges of the run ---

    def _mark(self, name: str, detail: dict[str, Any] | None = None) -> None:
        """Mark this moment, with the clocks: what the thread did until then is known."""
        self.spool.put("mark", name, self._stamps.stamp(), None if detail is None else json.dumps(detail))

    def _announce(self, last_try: bool) -> None:
        """Say who we are, again when the device has become known."""
        device = None
        if torch.version.cuda is None:
            device = "cpu"
        elif torch.cuda.is_initialized():
            properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
            device = f"GPU-{getattr(properties, 'uuid', 'unknown')}"
        elif last_try:
            device = "cpu"
        if not self._device_known:
            self._device_known = device is not None
            self._identity.announce(device)

    def _warmed_up(self) -> None:
        """The last warm-up step ends (or the job, before that): it has set what it sets."""
        if self._knobs_written:
            return
        self._knobs_written = True
        try:
            self._announce(last_try=True)
            from magneton_dist.tracer.knobs import emit_knobs

            emit_knobs(self.spool)
        except Exception as error:
            self.spool.fault("knobs", error)

    def _open_graph(self) -> Graph | None:
        from magneton_dist.tracer.contents import Contents
        from magneton_dist.tracer.fingerprints import Fingerprints
        from magneton_dist.tracer.graph import GraphRecorder

        fingerprints = None
        if self._fingerprints != "none":
            fingerprints = Fingerprints(self.spool, spectra=self._fingerprints == "spectra")
        contents = None
        if self._inputs is not None:
            operators, max_bytes = tuple(self._inputs["operators"]), float(self._inputs["max_mb"]) * 1e6
            contents = Contents(self.spool, self._identity.folder, operators, max_bytes)
        recorder: Graph = GraphRecorder(self.spool, self._stacks, fingerprints, contents)
        return recorder

    def _open_kernels(self, wanted: dict[str, Any]) -> KernelCapture:
        every, steps, by = int(wanted["every"]), int(wanted["steps"]), str(wanted.get("by", "kineto"))
        return KernelCapture(self.spool, self._identity.folder, every, steps, by)

    def _digest_parameters(self) -> None:
        """Once, when training is over: at the end of the process groups or of the process."""
        if self._digested:
            return
        self._digested = True
        try:
            from magneton_dist.tracer.parameters import emit_parameters

            optimizers = self.steps.living_optimizers()
            if self.steps.step and not optimizers:
                self.spool.fault("parameters", "the optimizers were gone before the process ended")
            emit_parameters(self.spool, optimizers)
        except Exception as error:
            self.spool.fault("parameters", error)

    def _stop(self) -> None:
        """`stop_after_steps`: leave as if the script had come to its end."""
        self._mark("stopped", {"step": self.steps.step})
        self._digest_parameters()
        if self._collectives is not None:
            self._collectives.quiesce()
        self.spool.flush()
        raise SystemExit(0)

    # --- what is followed ---

    def _follow_backwards(self) -> None:
        """Every backward pass goes through one function, which autograd looks up when called."""
        run = getattr(torch.autograd, "_engine_run_backward", None)
        if run is None:
            self.spool.fault("steps", "this torch has no single entry to backward passes")
            return
        steps, spool, guard = self.steps, self.spool, self.spool.guard

        @functools.wraps(run)
        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            if not spool.live or torch._C._current_graph_task_id() != -1:  # within another one: checkpointing
                return run(*args, **kwargs)
            guard("steps", functools.partial(steps.backward_begins, args[0]))
            result = run(*args, **kwargs)
            guard("steps", steps.backward_ends)
            return result

        uncompiled.passes_through(_engine_run_backward)
        torch.autograd._engine_run_backward = _engine_run_backward  # type: ignore[attr-defined]

    def _follow_scalers(self) -> None:
        """A gradient scaler that meets an infinity leaves the optimizer out; it is a step all the same."""
        scaler = torch.amp.grad_scaler.GradScaler
        step = scaler.step
        steps, spool = self.steps, self.spool

        @functools.wraps(step)
        def step_or_skip(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = steps.firings
            result = step(self, optimizer, *args, **kwargs)
            if spool.live and steps.firings == before:
                spool.guard("steps", functools.partial(steps.optimizer_ends, optimizer))
            return result

        uncompiled.passes_through(step_or_skip)
        scaler.step = step_or_skip  # type: ignore[method-assign]

    def _follow_exit(self) -> None:
        atexit.register(self.close)
        if multiprocessing.process.parent_process() is not None:
            # A forked process of multiprocessing ends without atexit.
            multiprocessing.util.Finalize(None, self.close, exitpriority=0)
        leave = os._exit

        @functools.wraps(leave)
        def _exit(status: int) -> Any:
            if self.spool.live and os.getpid() == self._pid:
                self._mark("exit", {"status": status})
                self.spool.flush(timeout_s=1.0)
            leave(status)

        os._exit = _exit


def _identify(spool: str, group: Any) -> Identity:
    if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
        return claim(spool, group.rank(), group.size(), distributed=True)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    return claim(spool, rank, world_size, distributed=False)


def _seed(seed: int) -> None:
    """Seed every generator that is there. Ranks differ, as they do in a job that seeds nothing."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
