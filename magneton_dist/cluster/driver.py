"""Makes all runs of an audit: the part of `launch` that talks to the user's terminal and to the coordinator."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from magneton_dist.cluster import policy
from magneton_dist.cluster.analysis import Analysis
from magneton_dist.cluster.interrupts import Interrupts
from magneton_dist.cluster.launching import Launch
from magneton_dist.cluster.lead import CoordinatorLost, Lead
from magneton_dist.cluster.ledger import Assignment
from magneton_dist.cluster.manifests import store, versions
from magneton_dist.cluster.origin import ORIGIN, mark
from magneton_dist.cluster.outcome import Report, RunOutcome
from magneton_dist.cluster.progress import Forecast, Progress
from magneton_dist.cluster.recovery import recover
from magneton_dist.cluster.session import Session
from magneton_dist.cluster.tasks import Result, RunAll, run_all
from magneton_dist.config import AuditConfig, Run, command_line, schedule
from magneton_dist.errors import InputError, MagnetonError
from magneton_dist.records.manifest import Manifest
from magneton_dist.records.store import write_manifest
from magneton_dist.tracer.secrecy import withhold

OnProgress = Callable[[Progress], None]


def audit_runs(
    config: AuditConfig,
    analysis: Analysis,
    conclude: Callable[[list[RunOutcome], RunAll | None], Result],
    *,
    address: str | None = None,
    on_progress: OnProgress = lambda _: None,
    prepare: Callable[[Path], None] = lambda _: None,
) -> Result:
    """Run every variant as often as the configuration says, analyse each run, and conclude.

    Discarded runs are among the outcomes only when they failed. Ctrl-C and SIGTERM end the audit: what was
    recorded is finished within 10 s, and the last outcome says that it was `stopped`.

    Args:
        config: of the audit.
        analysis: what the actors do with the records.
        conclude: called with the outcomes, and with what shares out work among processes, as long as there are any;
            Ctrl-C is an exception there again.
        address: of a Ray cluster; None: this machine, with a Ray of its own.
        on_progress: called about four times a second.
        prepare: called with the audit's folder before the first run.

    Raises:
        KeyboardInterrupt: interrupted before any run had something to keep.
        InputError: the configuration cannot be run here: a missing script, more ranks than places, ...
        ClusterError: Ray does not start, or actors cannot be placed.
    """
    ranks = max(job.torchrun.nproc_per_node for job in config.variants.values())
    folder = _audit_folder(config)
    try:
        if address is None:  # on a cluster the nodes know better
            _check(config, folder)
        prepare(folder)
        with Interrupts() as interrupts, Session(address, ranks) as session:
            interrupts.arm()
            lead = Lead(f"{os.getpid()}-{folder.name}", analysis, config.energy, session, interrupts)
            outcomes = _Audit(config, analysis, folder, session.temporary, lead).run(interrupts, on_progress)
            with interrupts.let_through():
                return conclude(outcomes, None if lead.session_lost else run_all)
    finally:
        if not any(folder.glob("*/*/manifest.json")):  # nothing was run
            shutil.rmtree(folder, ignore_errors=True)


class _Audit:
    """The runs of one audit, one after the other."""

    def __init__(
        self, config: AuditConfig, analysis: Analysis, folder: Path, temporary: Path | None, lead: Lead
    ) -> None:
        self._config = config
        self._analysis = analysis
        self._folder = folder
        self._temporary = temporary
        self._lead = lead
        self._environment = dict(os.environ)
        self._cwd = Path.cwd()

    def run(self, interrupts: Interrupts, on_progress: OnProgress) -> list[RunOutcome]:
        """All runs that the failure policy allows."""
        outcomes: list[RunOutcome] = []
        runs = schedule(self._config)
        forecast = Forecast([run.variant for run in runs])
        for number, run in enumerate(runs):
            if self._lead.session_lost or interrupts.why:
                break
            if run.variant in policy.given_up(outcomes):
                continue
            assignment = self._assign(run)
            try:
                tell = Teller(self._config, run, number, len(runs), forecast, on_progress)
                outcome = self._make(assignment, tell)
            except MagnetonError as error:
                if isinstance(error, InputError) or not outcomes:
                    shutil.rmtree(assignment.folder, ignore_errors=True)
                    raise
                outcomes.append(_not_made(assignment, error))
                break
            steps = max((sums.steps for sums in outcome.sums.values()), default=0)
            forecast.finished(run.variant, outcome.seconds, steps)
            if run.discarded and outcome.exit_code == 0 and not outcome.stopped:
                shutil.rmtree(outcome.folder, ignore_errors=True)
            else:
                write_manifest(outcome.folder, outcome.manifest)
                outcomes.append(outcome)
        if interrupts.why and not outcomes:
            raise KeyboardInterrupt(interrupts.why)
        return outcomes

    def _make(self, assignment: Assignment, tell: Callable[[Report], None]) -> RunOutcome:
        origin = assignment.folder / ORIGIN
        try:
            report = self._lead.make(assignment, tell)
        except CoordinatorLost as lost:
            found = recover(assignment.folder, assignment.draft, self._analysis, str(lost), finish=not lost.late)
            return replace(found, discarded=assignment.discarded)
        finally:
            origin.unlink(missing_ok=True)
        assert report.outcome is not None
        for rank, files in report.files.items():
            store(assignment.folder / "ranks" / f"{rank:05d}", files)
        with suppress(CoordinatorLost):  # then the nodes keep their copies
            self._lead.stored(report)
        return report.outcome

    def _assign(self, run: Run) -> Assignment:
        job = self._config.variants[run.variant]
        folder, values = _place(self._config, self._folder, run)
        draft = Manifest(
            audit=self._config.name,
            variant=run.variant,
            repeat=run.repeat,
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
            world_size=1 if job.command else job.torchrun.world_size,
            command=list(withhold(command_line(job, values))),
            exit_code=None,
            ranks=[],
            clocks={},
            versions=versions(),
            seed=job.seed,
            missing=["everything: the audit ended before this run did"],
            finished=False,
        )
        write_manifest(folder, draft)
        origin = mark()
        (folder / ORIGIN).write_text(origin)
        capture = self._config.capture.model_dump(mode="json")
        capture |= {"stop_after_steps": job.stop_after_steps, "seed": job.seed}
        return Assignment(
            draft, run.discarded, job, folder, values, self._environment, self._cwd, capture,
            token=secrets.token_hex(16), origin=origin, temporary=self._temporary,
        )  # fmt: skip


def _check(config: AuditConfig, audit: Path) -> None:
    """Raise `InputError` for what can be known to be wrong with any variant before the first one runs."""
    for run in {run.variant: run for run in schedule(config)}.values():
        folder, values = _place(config, audit, run)
        Launch(config.variants[run.variant], folder, values, os.environ, Path.cwd(), {}, "", "").check()


def _place(config: AuditConfig, audit: Path, run: Run) -> tuple[Path, dict[str, str]]:
    """Folder of a run, and the values of its placeholders."""
    folder = audit / run.variant / run.label
    seed = str(config.variants[run.variant].seed)
    return folder, {"run_dir": str(folder), "variant": run.variant, "repeat": run.label, "seed": seed}


def _not_made(assignment: Assignment, error: MagnetonError) -> RunOutcome:
    """The outcome of a run that could not begin after others had been made."""
    draft = assignment.draft
    manifest = msgspec.structs.replace(draft, missing=[f"the whole run: {error}"], finished=True)
    write_manifest(assignment.folder, manifest)
    return RunOutcome(
        draft.variant, draft.repeat, assignment.discarded, assignment.folder, manifest,
        missing=tuple(manifest.missing), stopped=str(error),
    )  # fmt: skip


class Teller:
    """Turns the coordinator's reports on one run into `Progress`."""

    def __init__(
        self, config: AuditConfig, run: Run, number: int, runs: int, forecast: Forecast, listen: OnProgress
    ) -> None:
        self._job = config.variants[run.variant]
        self._run = run
        self._number = number
        self._runs = runs
        self._forecast = forecast
        self._listen = listen
        self._began_s = time.monotonic()
        self._first: tuple[float, int] | None = None  # seconds and steps when steps were first seen
        self._seen = 0

    def __call__(self, report: Report) -> None:
        """Tell how the run stands."""
        steps = self._job.stop_after_steps or self._forecast.steps(self._run.variant)
        elapsed_s = time.monotonic() - self._began_s
        self._listen(
            Progress(
                state=report.state,
                variant=self._run.variant,
                repeat=None if self._run.discarded else self._run.repeat,
                run=self._number + 1,
                runs=self._runs,
                step=report.steps,
                steps=steps,
                ranks=report.ranks,
                world_size=self._job.torchrun.world_size,
                left_s=self._forecast.left_s(self._number, elapsed_s, self._extrapolated_s(report, steps, elapsed_s)),
                note="; ".join(report.missing[self._seen :]),
            )
        )
        self._seen = len(report.missing)

    def _extrapolated_s(self, report: Report, steps: int | None, elapsed_s: float) -> float | None:
        """Seconds that the run will take if its steps go on as they do; starting up is no step."""
        if report.steps and self._first is None:
            self._first = elapsed_s, report.steps
        if steps is None or self._first is None or report.steps <= self._first[1]:
            return None
        first_s, first = self._first
        return first_s + (elapsed_s - first_s) * (steps - first) / (report.steps - first)


def _audit_folder(config: AuditConfig) -> Path:
    """A new folder ``<name>-<UTC>``; `InputError` where none can be made."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    runs = Path.cwd() / config.runs
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for attempt in range(100):
            folder = runs / (f"{config.name}-{stamp}" + (f"-{attempt}" if attempt else ""))
            with suppress(FileExistsError):
                folder.mkdir()
                return folder
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", where=f"runs: {runs}", do="set runs to another folder"
        ) from error
    raise InputError("holds too many audits of this second", where=f"runs: {runs}", do="try again")
