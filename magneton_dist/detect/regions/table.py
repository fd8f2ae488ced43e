"""Groups of regions of two variants as columns: what each costs on either side, in the quantity compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from magneton_dist.config import Compare
from magneton_dist.detect.regions.boundaries import boundary_error
from magneton_dist.detect.regions.classes import ClassPair
from magneton_dist.detect.regions.names import GroupSide, label, shared_line
from magneton_dist.detect.regions.places import Group, Places
from magneton_dist.detect.regions.statistics import Ratios
from magneton_dist.detect.regions.sums import SideSums
from magneton_dist.detect.runs import CONTENDED, VariantRuns, most_contended
from magneton_dist.matching.arrays import Bools, Floats
from magneton_dist.matching.ranks import RankPair
from magneton_dist.records.audit import EnergyKind

Quantity = Literal["joules", "seconds", "memory", "bytes"]
SHARED = 0.5  # of what a region reads, at least, is the same on both sides where the runs were given other things
_WEAKEST: tuple[EnergyKind, ...] = ("unmeasured", "modelled", "apportioned", "replayed", "measured")


@dataclass(frozen=True, eq=False)
class RegionTable:
    """The groups of a comparison; arrays have one column per group.

    Attributes:
        a, b: the variants, repeat i of one pairs with repeat i of the other.
        rules: what counts as a difference.
        ranks: compared, in pairs; rows of the sums by rank.
        pairs, places: the classes of ranks, and their regions in groups.
        sums: of a and b.
    """

    a: VariantRuns
    b: VariantRuns
    rules: Compare
    ranks: list[RankPair]
    pairs: list[ClassPair]
    places: Places
    sums: tuple[SideSums, SideSums]

    @property
    def groups(self) -> list[Group]:
        """The groups, in the order of columns."""
        return self.places.groups

    @cached_property
    def disturbed(self) -> bool:
        """Ranks of either variant waited for a core, and operators' times include that."""
        return most_contended([*self.a.repeats, *self.b.repeats]) > CONTENDED

    @property
    def repeats(self) -> int:
        """Paired repeats."""
        return len(self.a.repeats)

    @cached_property
    def quantity(self) -> Quantity:
        """What is compared: as `compare.by` says, if it is known."""
        if self.rules.by == "memory":
            return "memory"
        if self.rules.by != "time" and self.sums[0].joules is not None:
            return "joules"
        return "seconds" if all(side.seconds.any() for side in self.sums) else "bytes"

    def amounts(self, side: int, quantity: Quantity | None = None) -> Floats:
        """(repeats, groups) of one side, per step, all ranks; memory and bytes are the same in all repeats."""
        sums = self.sums[side]
        quantity = quantity or self.quantity
        if quantity == "joules":
            assert sums.joules is not None
            return sums.joules
        if quantity == "seconds":
            return sums.seconds
        return np.tile(sums.memory if quantity == "memory" else sums.bytes, (self.repeats, 1))

    @cached_property
    def difference(self) -> Floats:
        """(groups,) b - a of the quantity, mean over repeats."""
        return np.asarray((self.amounts(1) - self.amounts(0)).mean(axis=0))

    @cached_property
    def ratios(self) -> Ratios:
        """b over a of the quantity."""
        return Ratios.of(self.amounts(0), self.amounts(1))

    @cached_property
    def matched(self) -> Bools:
        """(groups,) operators on both sides, which make matched values."""
        return np.array([g.matched for g in self.groups]) & ~self.one_sided

    @cached_property
    def one_sided(self) -> Bools:
        """(groups,) operators on one side only, whose work the other side does not do."""
        alone = (self.sums[0].operators == 0) | (self.sums[1].operators == 0)
        return np.asarray(alone & ~np.array([g.split for g in self.groups]))

    @cached_property
    def apart(self) -> Bools:
        """(groups,) of runs that were given other parameters, data or random numbers: not shown to be equal work.

        Results on one side only may be made on the other with other numbers; and parameters hardly move in a step, so
        that equal results of other inputs prove little.
        """
        fed = np.array([group.pair.found.fed_apart for group in self.groups], bool)
        unlike = np.array([group.confidence < SHARED for group in self.groups], bool)
        return np.asarray(fed & (self.one_sided | unlike))

    @cached_property
    def holds(self) -> Bools:
        """(groups,) there are such regions in every traced step."""
        every = set().union(*(group.steps for group in self.groups))
        return np.array([group.steps == every for group in self.groups], bool)

    @cached_property
    def covered(self) -> float:
        """Share of the quantity that lies in matched regions, of the side where it is less."""
        shares = []
        for side in (0, 1):
            amounts = self.amounts(side).mean(axis=0)
            total = float(amounts.sum())
            shares.append(float(amounts[self.matched].sum()) / total if total > 0 else 1.0)
        return min(shares)

    @cached_property
    def energy_kind(self) -> EnergyKind:
        """Of an operator's joules where they are shared out, so never measured."""
        if self.sums[0].joules is None:
            return "unmeasured"
        weakest = min(self.a.energy_kind, self.b.energy_kind, key=_WEAKEST.index)
        return "apportioned" if weakest == "measured" else weakest

    def kind_of(self, groups: Sequence[int]) -> EnergyKind:
        """Of these groups' joules: replayed, where replay measured every operator that computes."""
        if self.sums[0].joules is None or not groups:
            return self.energy_kind
        for side in (side for group in groups for side in self.sides(group)):
            if side.ops and (side.cost.replayed is None or not side.cost.replayed[side.telling].all()):
                return self.energy_kind
        return "replayed"

    def peak_bytes(self, side: int) -> float:
        """Bytes alive at a traced step's peak, all ranks, at least 1."""
        samples = sum(len(pair.samples) for pair in self.pairs)
        peaks = sum(
            (pair.b if side else pair.a).memory.peak_bytes
            * sum(s.ranks.share_b if side else s.ranks.share_a for s in pair.samples)
            for pair in self.pairs
        )
        return max(1.0, peaks / samples * len(self.ranks))

    @property
    def numbers(self) -> list[int]:
        """What to call the pairs of ranks: by the rank in the larger job."""
        return [pair.number for pair in self.ranks]

    def ranks_of(self, side: int) -> list[int]:
        """Ranks of one side that are compared, in order."""
        return sorted({pair.b if side else pair.a for pair in self.ranks})

    def sides(self, group: int) -> tuple[GroupSide, GroupSide]:
        """Both sides of the region that stands for `group`."""
        if group not in self._sides:
            self._sides[group] = (GroupSide(self.groups[group], 0), GroupSide(self.groups[group], 1))
        return self._sides[group]

    @cached_property
    def _sides(self) -> dict[int, tuple[GroupSide, GroupSide]]:
        return {}

    def label(self, group: int) -> str:
        """What it computes."""
        return label(self.sides(group))

    def line(self, group: int) -> str:
        """The innermost frame of source that its operators share, and that both variants run; may be empty."""
        return shared_line(self.sides(group))

    def values_error(self, group: int) -> float | None:
        """Largest relative difference of what both sides make."""
        one, other = self.sides(group)
        return boundary_error(self.groups[group].pair, one.ops, other.ops)
