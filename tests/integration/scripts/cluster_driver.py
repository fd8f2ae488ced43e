"""Runs audits that stand as JSON in its arguments; prints progress and outcomes as JSON lines."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any

import msgspec
import trivial_analysis

from magneton_dist.cluster.driver import audit_runs
from magneton_dist.cluster.outcome import RunOutcome
from magneton_dist.cluster.progress import Progress
from magneton_dist.config import AuditConfig
from magneton_dist.errors import MagnetonError


def say(kind: str, **content: Any) -> None:
    print(json.dumps({"kind": kind, "at": time.monotonic(), **content}, default=str), flush=True)


def told(moment: Progress) -> None:
    say("progress", **dataclasses.asdict(moment))


def as_json(outcome: RunOutcome) -> dict[str, Any]:
    fields = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)}
    fields["manifest"] = msgspec.to_builtins(outcome.manifest)
    fields["sums"] = {rank: dataclasses.asdict(sums) for rank, sums in outcome.sums.items()}
    return fields


def main() -> None:
    for text in sys.argv[1:]:
        wish = json.loads(text)
        analysis = getattr(trivial_analysis, wish.pop("analysis", "TRIVIAL"))
        address = wish.pop("address", None)
        try:
            outcomes = audit_runs(
                AuditConfig(**wish), analysis, lambda found, _: found, address=address, on_progress=told
            )
            for outcome in outcomes:
                say("outcome", **as_json(outcome))
        except MagnetonError as error:
            say("error", type=type(error).__name__, exit_code=error.exit_code, text=str(error))
    say("end")


if __name__ == "__main__":
    main()
