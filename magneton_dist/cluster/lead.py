"""The driver's line to its coordinator: hires it, keeps it ticking, and notices when it or Ray is gone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from magneton_dist.cluster.analysis import Analysis
from magneton_dist.cluster.calls import as_ours, first_line
from magneton_dist.cluster.coordinator import Coordinator
from magneton_dist.cluster.crew import Crew, reserve
from magneton_dist.cluster.interrupts import Interrupts
from magneton_dist.cluster.ledger import Assignment
from magneton_dist.cluster.outcome import Report
from magneton_dist.cluster.placement import rank_resource
from magneton_dist.cluster.session import HERE, Session
from magneton_dist.cluster.states import Shape
from magneton_dist.config import Energy

_FINISH_S = 9.0  # after Ctrl-C; what the actors have not done by then is done from their spools
_WATCH_S = 0.5


class CoordinatorLost(Exception):
    """The coordinator, or all of Ray, does not answer any more: the run must be finished without it.

    Attributes:
        late: there is no time left for that.
    """

    def __init__(self, why: str, late: bool = False) -> None:
        super().__init__(why)
        self.late = late


class Lead:
    """Has one coordinator at a time, for one shape of job.

    Args:
        audit: name of the audit.
        analysis: handed to the actors.
        energy: which meter, how often read.
        session: Ray.
        interrupts: Ctrl-C and its like.

    Attributes:
        session_lost: why no further run can be made, empty while one can.
    """

    def __init__(
        self, audit: str, analysis: Analysis, energy: Energy, session: Session, interrupts: Interrupts
    ) -> None:
        self.session_lost = ""
        self._audit = audit
        self._analysis = analysis
        self._energy = energy
        self._session = session
        self._interrupts = interrupts
        self._coordinator: Any = None
        self._group: PlacementGroup | None = None
        self._shape: Shape | None = None
        self._end_s = math.inf

    def make(self, assignment: Assignment, tell: Callable[[Report], None]) -> Report:
        """Have a run made; its last report, with an outcome. `tell` gets every report before.

        Raises:
            MagnetonError: the run could not be made.
            CoordinatorLost: it was begun, and nobody is left to finish it.
        """
        self._end_s = math.inf
        torchrun = assignment.job.torchrun
        self._hire(Shape(torchrun.nnodes, torchrun.nproc_per_node))
        self._ask("begin", assignment)
        while True:
            report: Report = self._ask("tick")
            if report.error is not None:
                raise report.error
            if report.outcome is not None:
                return report
            why = self._interrupts.why or self.session_lost
            if why and self._end_s == math.inf:
                self._end_s = time.monotonic() + _FINISH_S
                self._ask("stop", why)
            tell(report)

    def stored(self, report: Report) -> None:
        """The tables that came with `report` are stored here."""
        if report.files:
            self._ask("stored", set(report.files))

    def _hire(self, shape: Shape) -> None:
        if self._coordinator is not None and shape == self._shape:
            return
        self._dismiss()
        resource = rank_resource(self._session.nodes(), shape)
        self._group = reserve(shape, resource)
        here = ray.get_runtime_context().get_node_id()
        options = {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}
        meter, period_s = self._energy.meter, self._energy.period_ms / 1e3
        crew = Crew(self._audit, shape, resource, self._group, self._analysis, meter, period_s)
        make: Any = ray.remote(Coordinator)
        self._coordinator = make.options(**options).remote(crew, self._analysis.join)
        self._shape = shape

    def _dismiss(self) -> None:
        """Let the coordinator go, and the places of its actors: they die, and their jobs with them."""
        if self._coordinator is not None:
            ray.kill(self._coordinator)
            self._coordinator = None
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def _ask(self, method: str, *args: Any) -> Any:
        reference = getattr(self._coordinator, method).remote(*args)
        answered = False
        while not answered:
            answered = bool(ray.wait([reference], timeout=_WATCH_S)[0])
            self._look_after_ray()
            if time.monotonic() > self._end_s:
                self._dismiss()
                why = self._interrupts.why or self.session_lost
                raise CoordinatorLost(f"{why}: not finished in time", late=True)
        try:
            return ray.get(reference)
        except RayTaskError as error:
            raise as_ours(error.cause, f"coordinator.{method}") from error
        except RayError as error:
            self._dismiss()
            raise CoordinatorLost(f"the coordinator died: {first_line(error)}") from error

    def _look_after_ray(self) -> None:
        for server in self._session.vitals.lost():
            self.session_lost = f"Ray's process of {server} died"
            self._session.give_up()
            if server == HERE:
                self._session.abandon()
                raise CoordinatorLost(self.session_lost)
