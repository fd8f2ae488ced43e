"""A proved fix, applied to the variant that needs more: as a variant of its own, to be launched beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from magneton_dist.config import AuditConfig, Diagnose, Job
from magneton_dist.diagnosis.snapshot import UNSET
from magneton_dist.errors import InputError
from magneton_dist.records.audit import Audit, Finding

SETTINGS = "MAGNETON_DIST_SETTINGS"  # JSON: [name, text] of torch's settings, read by `settings_site`
SITE = Path(__file__).parent / "settings_site"
FIXED = "fixed"


def with_fix(config: AuditConfig, finding: Finding) -> AuditConfig:
    """An audit of the finding's variant against itself with the fix applied.

    Args:
        config: that the finding is of.
        finding: with a proved cause.

    Raises:
        InputError: nothing is proved, the fix is an edit of the user's code, or the configuration is another one.
    """
    hungry = finding.variant
    job = config.variants.get(hungry)
    others = [] if finding.cause is None else [name for name in finding.cause.values if name != hungry]
    if job is None or not all(name in config.variants for name in others):
        raise InputError(f"has no variant {hungry}", where="--config", do="give the file that the audit was made of")
    if finding.cause is None or finding.proof != "proved" or len(others) != 1:
        raise InputError(
            "nothing can be applied: no cause of this finding is proved", where=finding.title, do=finding.fix or None
        )
    if not set(finding.cause.layer.split(" and ")) <= {"setting", "environment"}:
        raise InputError(
            "its fix is an edit of your code, which is not made for you", where=finding.title, do=finding.fix
        )
    fixed = _fixed(job, _wanted(finding), finding)
    return config.model_copy(
        update={
            "name": f"{config.name[:50]}-{FIXED}", "variants": {hungry: job, f"{hungry[:50]}-{FIXED}": fixed},
            "baseline": hungry, "diagnose": Diagnose(budget=0.0),
            "capture": config.capture.model_copy(update={"warmup_steps": max(1, config.capture.warmup_steps)}),
        }
    )  # fmt: skip


def not_held(audit: Audit, finding: Finding) -> list[str]:
    """Settings of the fix that the variant with the fix did not have once it was warm, as its record says."""
    values = [(name, value, audit.settings.get(name, {})) for name, value in _wanted(finding).items() if "." in name]
    return [
        name for name, value, seen in values
        if value not in [of for variant, of in seen.items() if variant.endswith(f"-{FIXED}")]
    ]  # fmt: skip


def _wanted(finding: Finding) -> dict[str, str]:
    """The values of the variant that needs less."""
    assert finding.cause is not None
    (other,) = [name for name in finding.cause.values if name != finding.variant]
    names, values = finding.cause.name.split(" and "), finding.cause.values[other].split(", ")
    if len(names) != len(values):
        raise InputError("its values cannot be told apart", where=finding.title, do=finding.fix)
    return dict(zip(names, values, strict=True))


def _fixed(job: Job, wanted: dict[str, str], finding: Finding) -> Job:
    """`job` with these variables and settings of torch; a variable has no dot in its name."""
    environment = dict(job.env)
    settings = [(name, value) for name, value in wanted.items() if "." in name]
    for name, value in wanted.items():
        if "." in name:
            continue
        if value != UNSET:
            environment[name] = value
        elif environment.pop(name, None) is None:
            raise InputError(
                f"{name} is not set by the configuration: it comes from your shell", where=finding.title,
                do=finding.fix,
            )  # fmt: skip
    if settings:
        environment[SETTINGS] = json.dumps(settings)
        known = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join([str(SITE), *filter(None, [known])])
    return job.model_copy(update={"env": environment})
