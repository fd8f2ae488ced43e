"""Traced steps drawn operator by operator: what each reads, makes and costs is said, nothing is run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import prod

import numpy as np
import polars as pl

from magneton_dist.detect.regions.records import StepRecord
from magneton_dist.detect.runs import VariantRuns
from magneton_dist.energy.summary import RankSummary, TracedStep
from magneton_dist.meters import load_profile
from magneton_dist.records.audit import StateShare
from magneton_dist.records.schema import ACTIVITIES, FINGERPRINTS, OPS, STACKS, VALUES
from magneton_dist.timeline.sums import WAITS

PROFILE = load_profile("h200")


@dataclass
class Drawing:
    """One traced step. A value is known by its content, any text: equal contents have equal fingerprints."""

    step: int = 0
    shape: tuple[int, ...] = (64,)
    ops: list[dict[str, object]] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    roles: dict[str, str] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)  # content -> factor on its numbers
    _stacks: dict[tuple[str, ...], int] = field(default_factory=dict)
    _values: dict[str, int] = field(default_factory=dict)

    def op(
        self, name: str, reads: str, makes: str, j: float = 1.0, s: float | None = None, phase: str = "forward",
        stack: Sequence[str] = ("train.py:1 step",),
    ) -> Drawing:
        """Add an operator; contents are separated by blanks."""
        self.ops.append({
            "op_id": len(self.ops), "step": self.step, "name": _full(name), "phase": phase,
            "inputs": [self._value(x) for x in reads.split()], "outputs": [self._value(x) for x in makes.split()],
            "arguments": "[]", "stack_id": self._stacks.setdefault(tuple(stack), len(self._stacks)),
            "start_ns": 0, "end_ns": 1,
        })  # fmt: skip
        self.joules.append(j)
        self.seconds.append(j / 100 if s is None else s)
        return self

    def _value(self, content: str) -> int:
        return self._values.setdefault(content, len(self._values))

    def table(self, name: str) -> pl.DataFrame:
        """As a record has it."""
        if name == "ops":
            return pl.DataFrame(self.ops, schema=OPS.schema)
        if name == "values":
            return pl.DataFrame([self._row(c, v) for c, v in self._values.items()], schema=VALUES.schema)
        if name == "fingerprints":
            rows = [self._fingerprint(c, v) for c, v in self._values.items()]
            return pl.DataFrame(rows, schema=FINGERPRINTS.schema)
        if name == "stacks":
            rows = [{"stack_id": i, "frames": [_frame(f) for f in stack]} for stack, i in self._stacks.items()]
            return pl.DataFrame(rows, schema=STACKS.schema)
        assert name == "activities"
        return ACTIVITIES.empty()

    def _row(self, content: str, value: int) -> dict[str, object]:
        shape = self.shapes.get(content, self.shape)
        stride = [prod(shape[i + 1 :]) for i in range(len(shape))]
        return {
            "value_id": value, "storage": value, "version": 0, "offset": 0, "shape": list(shape), "stride": stride,
            "dtype": "float32", "device": "cpu", "bytes": 4 * prod(shape),
            "role": self.roles.get(content, "activation"), "slot": None,
        }  # fmt: skip

    def _fingerprint(self, content: str, value: int) -> dict[str, object]:
        shape = self.shapes.get(content, self.shape)
        x = np.random.default_rng(list(content.encode())).normal(size=prod(shape)) * self.scale.get(content, 1.0)
        l2 = float(np.linalg.norm(x))
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(x), 4))
        profile = [1.0, float(np.linalg.norm(x**2) / (x**4).sum() ** 0.5), *(x / l2) @ signs, *(x**2) @ signs]
        return {
            "values": [value], "exact": blake2b(x.tobytes(), digest_size=8).hexdigest(), "elements": len(x),
            "sum": float(x.sum()), "l1": float(np.abs(x).sum()), "l2": l2, "l4": float((x**4).sum() ** 0.25),
            "excluded": 0.0, "shape": [n for n in shape if n > 1], "unfoldings": [], "s4": [],
            "modes": [len(x)] if len([n for n in shape if n > 1]) == 1 else [],
            "profiles": profile if len([n for n in shape if n > 1]) == 1 else [], "singular": [],
        }  # fmt: skip


def _full(name: str) -> str:
    return f"{'c10d' if name.startswith('allreduce') else 'aten'}.{name}.default"


def _frame(text: str) -> dict[str, object]:
    place, function = text.split(" ")
    file, line = place.rsplit(":", 1)
    return {"file": file, "line": int(line), "function": function}


@dataclass
class Variant:
    """Runs of one variant: every rank traced the drawings of its class."""

    name: str
    drawings: dict[str, list[Drawing]]  # class -> its traced steps
    ranks: dict[int, str] = field(default_factory=lambda: {0: "one", 1: "one"})
    steps: int = 10
    waiting_s: float = 0.0
    alike: bool = False  # all classes have the same structure
    replayed: bool = False  # all joules of operators

    def runs(self, factors: Sequence[float] = (1.0, 1.0), known: bool = True) -> VariantRuns:
        """One repeat per factor, by which every cost is multiplied."""
        repeats = [{rank: self._summary(rank, factor, known) for rank in self.ranks} for factor in factors]
        return VariantRuns(self.name, repeats, PROFILE)

    def _summary(self, rank: int, factor: float, known: bool) -> RankSummary:
        drawings = self.drawings[self.ranks[rank]]
        traced = tuple(
            TracedStep(
                d.step, json.dumps([op["name"] for op in d.ops] + ([] if self.alike else [self.ranks[rank]])),
                np.array(d.seconds, np.float32) * np.float32(factor),
                np.array(d.joules, np.float32) * np.float32(factor) if known else None,
                np.ones(len(d.ops), bool) if self.replayed else None,
            )
            for d in drawings
        )  # fmt: skip
        joules = float(np.mean([sum(d.joules) for d in drawings])) * factor * self.steps
        seconds = float(np.mean([sum(d.seconds) for d in drawings])) * factor * self.steps
        states = {"working/compute": StateShare(seconds, joules if known else None)}
        if self.waiting_s:
            states["working/wait"] = StateShare(self.waiting_s * factor, 124 * self.waiting_s * factor)
            joules += 124 * self.waiting_s * factor
            seconds += self.waiting_s * factor
        return RankSummary(
            rank=rank, node="a", device="cpu", window_s=seconds, states=states, watt_seconds={"compute": seconds},
            energy_j=joules if known else None, energy_kind="modelled" if known else "unmeasured",
            energy_source="drawn", steps=self.steps, waits=WAITS.empty(), traced=traced,
        )  # fmt: skip

    def load(self, rank: int, step: int) -> StepRecord:
        """A traced step of a rank."""
        return StepRecord.of(next(d for d in self.drawings[self.ranks[rank]] if d.step == step), step)


def loader(*variants: Variant):  # type: ignore[no-untyped-def]
    """What `compare_regions` loads steps with."""
    by_name = {v.name: v for v in variants}
    return lambda variant, repeat, rank, step: by_name[variant].load(rank, step)


def one(name: str, drawing: Drawing, **options: object) -> Variant:
    """Two ranks of one class, with one traced step each."""
    return Variant(name, {"one": [drawing]}, **options)  # type: ignore[arg-type]
