"""The environment that carries the tracer into a job: who writes it, who reads it. Standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

SPOOL = "MAGNETON_DIST_SPOOL"  # folder the tracer writes to
TOKEN = "MAGNETON_DIST_TOKEN"  # must equal the text of the spool's token file, else the tracer stays dark
CAPTURE = "MAGNETON_DIST_CAPTURE"  # JSON: what to record
PID = "MAGNETON_DIST_PID"  # set by a traced rank, so that the processes it starts stay dark

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

# What a launcher or a Ray worker sets for itself must not reach the job's own launcher.
_SCRUBBED = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", PID}
)
_SCRUBBED_PREFIXES = ("MASTER_", "TORCHELASTIC_", "RAY_")


class Capture(NamedTuple):
    """What to record; see `magneton_dist.config.Capture` for what the user writes."""

    warmup_steps: int = 2
    graph_steps: int = 1
    fingerprints: str = "standard"
    stacks: str = "python"
    max_mb: float = 256
    stop_after_steps: int | None = None
    seed: int | None = None
    inputs: dict[str, Any] | None = None  # operators, max_mb: whose inputs are kept, to replay them
    kernels: dict[str, Any] | None = None  # every, steps, by: the first `steps` of `every` measured ones


class Settings(NamedTuple):
    """What a process of the job must know to trace itself."""

    spool: str
    capture: Capture


def launch_environment(
    base: Mapping[str, str], spool: str, token: str, capture: Mapping[str, object]
) -> dict[str, str]:
    """The environment for the job's launcher: `base` without other launchers' variables, plus the tracer's.

    Args:
        base: the environment the user would have run the job in.
        spool: existing folder, node-local, that holds a file ``token``.
        token: text of that file.
        capture: fields of `Capture`, as JSON values; others are ignored by the tracer.
    """
    environment = {
        name: value
        for name, value in base.items()
        if name not in _SCRUBBED and not name.startswith(_SCRUBBED_PREFIXES)
    }
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != SITE]
    environment["PYTHONPATH"] = os.pathsep.join([SITE, *paths])
    environment[SPOOL] = os.path.abspath(spool)
    environment[TOKEN] = token
    environment[CAPTURE] = json.dumps(dict(capture))
    return environment


def read_settings(environ: Mapping[str, str]) -> Settings | None:
    """What this process should record, or None when it must stay dark.

    Dark are: processes without a spool, those whose token is not the spool's (a variable left over in some
    shell arms nothing), and the children of a traced rank.

    Raises:
        ValueError: the capture settings are no JSON object.
    """
    spool = environ.get(SPOOL)
    if not spool or environ.get(PID, str(os.getpid())) != str(os.getpid()):
        return None
    try:
        with open(os.path.join(spool, "token"), encoding="utf-8") as file:
            token = file.read().strip()
    except OSError:
        return None
    if not token or token != environ.get(TOKEN, "").strip():
        return None
    wanted = json.loads(environ.get(CAPTURE, "{}"))
    if not isinstance(wanted, dict):
        raise ValueError(f"{CAPTURE} is no JSON object")
    return Settings(spool, Capture(**{name: wanted[name] for name in Capture._fields if name in wanted}))
