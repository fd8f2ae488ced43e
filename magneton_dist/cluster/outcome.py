"""What a run comes to, as the driver hands it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magneton_dist.cluster.spool import Sums
from magneton_dist.errors import MagnetonError
from magneton_dist.records.manifest import Manifest


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """One run of one variant.

    Attributes:
        variant: what ran.
        repeat: which repeat, from 0.
        discarded: a warm-up run; it is among the outcomes only when it failed.
        folder: its record.
        manifest: as written into the folder.
        summaries: what `Analysis.summarise` said of each rank that has one.
        sums: what each rank had done when last heard of.
        exit_code: of the job, as a shell would give it; None when it was lost with its node.
        missing: what did not arrive, in words; also in the manifest.
        output: the end of what the job printed.
        stopped: why the run was ended before its time, empty when it was not.
        seconds: it took, placing and analysis included.
    """

    variant: str
    repeat: int
    discarded: bool
    folder: Path
    manifest: Manifest
    summaries: Mapping[int, Any] = field(default_factory=dict)
    sums: Mapping[int, Sums] = field(default_factory=dict)
    exit_code: int | None = None
    missing: tuple[str, ...] = ()
    output: str = ""
    stopped: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """How the run stands after a tick.

    Attributes:
        state: name of the state.
        steps: of the rank that is furthest; ranks may have unequal numbers of them.
        ranks: that have announced themselves.
        missing: so far, in words.
        outcome: when the run is over.
        error: why it could not be made.
        files: tables of ranks whose nodes do not share the driver's file system, by rank and file name.
    """

    state: str
    steps: int
    ranks: int
    missing: tuple[str, ...] = ()
    outcome: RunOutcome | None = None
    error: MagnetonError | None = None
    files: Mapping[int, Mapping[str, bytes]] = field(default_factory=dict)
