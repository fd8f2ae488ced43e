"""What an audit will do: the order of its runs, their command lines and environments, and that in words."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from magneton_dist.config.models import AuditConfig, Job
from magneton_dist.config.placeholders import expand
from magneton_dist.tracer.secrecy import WITHHELD, looks_secret, secret_name, withhold

# What an audit and a run cost besides the job's own time, measured on two cores (mostly imports).
SESSION_S = 5
RUN_S = 4


@dataclass(frozen=True)
class Run:
    """One launch of one variant; `repeat` counts from 0, discarded runs by themselves."""

    variant: str
    repeat: int
    discarded: bool = False

    @property
    def label(self) -> str:
        """The run's folder below its variant, and the value of ``{repeat}``."""
        return f"warmup{self.repeat}" if self.discarded else str(self.repeat)


def schedule(config: AuditConfig) -> list[Run]:
    """All runs in order: discarded ones first, then repeats interleaved A B, B A, B A, A B, ...

    So drifts of the machine (clocks, temperature) fall on all variants alike.
    """
    names = list(config.variants)
    warmups = (divmod(number, len(names)) for number in range(config.warmup_runs))
    runs = [Run(names[index], repeat, discarded=True) for repeat, index in warmups]
    for repeat in range(config.repeats):
        order = names if repeat % 4 in (0, 3) else names[::-1]
        runs += [Run(name, repeat) for name in order]
    return runs


def command_line(job: Job, values: Mapping[str, str], rendezvous: Sequence[str] = ()) -> list[str]:
    """What to execute, placeholders filled in from `values`.

    `rendezvous` are torchrun's options for meeting other nodes; without it the job meets on its own node.
    """
    args = [expand(text, values) for text in job.args]
    if job.command is not None:
        return [expand(text, values) for text in job.command] + args
    options = job.torchrun
    if not rendezvous:
        port = options.master_port
        rendezvous = ["--standalone"] if port is None else ["--master-port", str(port)]
    what = ["--module", job.module] if job.module is not None else [str(job.script)]
    return [
        job.python or sys.executable, "-m", "torch.distributed.run",
        "--nnodes", str(options.nnodes), "--nproc-per-node", str(options.nproc_per_node),
        "--max-restarts", str(options.max_restarts), *rendezvous, *options.extra, *what, *args,
    ]  # fmt: skip


def environment(job: Job, values: Mapping[str, str]) -> dict[str, str]:
    """The job's own variables, placeholders filled in from `values`."""
    return {name: expand(text, values) for name, text in job.env.items()}


def plan(config: AuditConfig) -> str:
    """The audit in words, for ``--dry-run``."""
    return "\n".join(f"{head:<11}{text}".rstrip() for head, text in _lines(config))


def _lines(config: AuditConfig) -> Iterator[tuple[str, str]]:
    runs = schedule(config)
    discarded = sum(run.discarded for run in runs)
    yield "audit", f"{config.name}: {len(config.variants)} variant(s), {config.repeats} repeat(s) each"
    first = f", the first {discarded} discarded" if discarded else ""
    yield "runs", f"{len(runs)} one after the other{first}"
    yield "order", " ".join(f"({run.variant})" if run.discarded else run.variant for run in runs)
    for name, job in config.variants.items():
        values = {"run_dir": "{run_dir}", "variant": name, "repeat": "{repeat}", "seed": str(job.seed)}
        options = job.torchrun
        yield "", ""
        yield "variant", f"{name}{' (baseline)' if name == config.baseline else ''}"
        yield "  ranks", f"{options.world_size}: {options.nproc_per_node} on each of {options.nnodes} node(s)"
        meet = ["--rdzv-endpoint", "HOST:PORT"] if options.nnodes > 1 else []
        yield "  command", shlex.join(withhold(command_line(job, values, meet)))
        yield "  folder", expand(job.cwd or ".", values)
        yield "  env", " ".join(f"{k}={v}" for k, v in _shown(environment(job, values)).items()) or "as it is"
        if name != config.baseline:
            yield "  differs", "; ".join(_differences(config.variants[config.baseline], job)) or "in nothing"
        if job.seed is not None:
            yield "  seed", str(job.seed)
        if job.stop_after_steps is not None:
            yield "  stop", f"after {job.stop_after_steps} steps"
        if job.timeout_s is not None:
            yield "  limit", f"{job.timeout_s:g} s"
    yield "", ""
    yield "meter", f"{config.energy.meter}, every {config.energy.period_ms:g} ms"
    yield "records", f"{config.runs}/{config.name}-<UTC>/<variant>/<repeat>/"
    around_s = SESSION_S + RUN_S * len(runs)
    yield "time", f"{len(runs)} times the job's own, and about {around_s} s to start and stop"


def _shown(env: Mapping[str, str]) -> dict[str, str]:
    return {
        name: WITHHELD if secret_name(name) or looks_secret(text) else shlex.quote(text) for name, text in env.items()
    }


def _differences(old: Job, new: Job) -> Iterator[str]:
    """What `new` has other than `old`, key by key."""
    before, after = old.model_dump(), new.model_dump()
    before |= {f"env.{name}": text for name, text in _shown(before.pop("env")).items()}
    after |= {f"env.{name}": text for name, text in _shown(after.pop("env")).items()}
    for key in [*after, *sorted(before.keys() - after.keys())]:
        one, other = before.get(key), after.get(key)
        if isinstance(one, tuple) and isinstance(other, tuple) and one != other:
            yield f"{key}: {' '.join(_edits(list(withhold(one)), list(withhold(other))))}"
        elif one != other:
            yield f"{key}: {'unset' if one is None else one} -> {'unset' if other is None else other}"


def _edits(old: Sequence[str], new: Sequence[str]) -> Iterator[str]:
    """What was taken from and what was added to a list: ``-[--sync join] +[--sync early-exit]``."""
    for tag, i, j, k, m in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal" and i < j:
            yield f"-[{shlex.join(old[i:j])}]"
        if tag != "equal" and k < m:
            yield f"+[{shlex.join(new[k:m])}]"
