"""An optimizer's step as a call that can be made again: its class and arguments, and the parameters it steps."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.diagnosis.calls import Call, tensor_of
from magneton_dist.diagnosis.factors import OPTIMIZER

GROUP = "optimizer.group0."
_NOT_SET = ("initial_lr", "params", "param_names")  # what schedulers and torch itself put there


def optimizer_call(settings: Mapping[str, str], record: StepRecord) -> Call | None:
    """The step of the only optimizer of a traced step; None where there are several, or none.

    Args:
        settings: of the rank.
        record: its traced step.
    """
    kind = settings.get("optimizer.class", "")
    if not kind.isidentifier() or "optimizer1.class" in settings or "optimizer.group1.lr" in settings:
        return None
    values = record.step.values
    parameters = values.filter(pl.col("role") == "parameter").unique("slot", keep="first", maintain_order=True)
    tensors = tuple(tensor_of(row) for row in parameters.iter_rows(named=True))
    names = sorted(name.removeprefix(GROUP) for name in settings if name.startswith(GROUP))
    options = [
        {"name": name, "value": {"literal": settings[GROUP + name]}} for name in names if name not in _NOT_SET
    ]
    if not tensors:
        return None
    return Call(f"{OPTIMIZER}{kind}", ([{"v": number} for number in range(len(tensors))], *options), tensors)
