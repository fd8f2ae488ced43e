"""Step 3 of the matcher: pair the groups of the two graphs that hold equal values.

A label with one group on each side is a pair. Crowded labels (identical layers, equal-shaped q, k and v,
values that training barely moves) are sorted out by what is known of their surroundings: parameter names,
the role in the graph, and the nearest pairs found so far above and below.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from magneton_dist.matching.graph import Floats, Ints, MatchGraph
from magneton_dist.matching.groups import Groups

CONTEXT = 24  # nearest matched ids kept as the surroundings of a value
ROUNDS = 3
JACCARD = 0.5
JACCARD_PAIRS = 4096
BUNDLE_PARTS = 4
BUNDLE_WINDOW = 16  # unmatched groups looked at on either side of the expected place
BUNDLE_CANDIDATES = 10
BUNDLE_RATIO = 64

Surroundings = tuple[frozenset[int], frozenset[int]]


@dataclass(eq=False)
class Side:
    """One graph while it is being paired. A group's `id` is shared by both graphs, -1 while unmatched."""

    graph: MatchGraph
    groups: Groups
    ids: list[int] = field(init=False)
    leaf: list[bool] = field(init=False)  # the graph was given it
    dead_end: list[bool] = field(init=False)  # no operator with outputs reads it
    position: list[int] = field(init=False)  # operator that makes it, or first reads it
    slot: list[int] = field(init=False)
    anchor: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        graph, groups = self.graph, self.groups
        n = len(groups.members)
        producer, first = graph.producers(), graph.first_uses()
        has_outputs = np.diff(graph.outputs.start) > 0
        of_reader = graph.inputs.rows
        live = np.zeros(graph.n_values, bool)
        live[graph.inputs.flat[has_outputs[of_reader]]] = True

        def over_groups(value: np.ndarray, start: int | bool, ufunc: np.ufunc) -> np.ndarray:
            out = np.full(n, start)
            ufunc.at(out, groups.of_value, value)
            return out

        leaf = over_groups(producer < 0, False, np.logical_or)
        made = over_groups(np.where(producer < 0, graph.n_ops, producer), graph.n_ops, np.minimum)
        read = over_groups(first, graph.n_ops, np.minimum)
        self.leaf = leaf.tolist()
        self.dead_end = (~over_groups(live, False, np.logical_or)).tolist()
        self.position = np.where(leaf, read, made).tolist()
        self.slot = over_groups(graph.slot, -1, np.maximum).tolist()
        self.anchor = over_groups(graph.anchor, False, np.logical_or).tolist()
        self.ids = [-1] * n

    @property
    def id_of_value(self) -> Ints:
        """(values,) the matched id of every value, -1 where unmatched."""
        return np.array(self.ids, np.int64)[self.groups.of_value]


@dataclass(eq=False)
class Pairing:
    """Pairs found so far. `confidence` per id: 3 unique label, 2 name or role, 1 surroundings, 0 similar ones."""

    a: Side
    b: Side
    confidence: list[int] = field(default_factory=list)

    def pair(self, x: int, y: int, confidence: int) -> None:
        """Give group x of a and group y of b one id."""
        self.a.ids[x] = self.b.ids[y] = len(self.confidence)
        self.confidence.append(confidence)


def pair_groups(a: Side, b: Side, label_a: Ints, label_b: Ints, eps: float) -> Pairing:
    """Pair groups of equal labels; see the module's head. `eps` is used for bundles only."""
    pairing = Pairing(a, b)
    crowded: list[tuple[list[int], list[int]]] = []
    groups_b = _by_label(b, label_b)
    for label, xs in _by_label(a, label_a).items():
        ys = groups_b.get(label)
        if not ys:
            continue
        if len(xs) == len(ys) == 1:
            if a.anchor[xs[0]]:
                pairing.pair(xs[0], ys[0], 3)
                continue
        else:
            xs, ys = _pair_by_key(pairing, xs, ys, _slot_key)
            if a.anchor[xs[0]] if xs else False:
                xs, ys = _pair_by_key(pairing, xs, ys, _role_key)
        if xs and ys:
            crowded.append((xs, ys))
    crowded = _pair_by_surroundings(pairing, crowded)
    if _pair_bundles(pairing, eps):
        _pair_by_surroundings(pairing, crowded)
    return pairing


def _by_label(side: Side, label: Ints) -> dict[int, list[int]]:
    """Groups under each label, in execution order."""
    first_member = [vs[0] for vs in side.groups.members]
    out: dict[int, list[int]] = defaultdict(list)
    for group, lab in enumerate(label[first_member].tolist()):
        out[lab].append(group)
    for groups in out.values():
        if len(groups) > 1:
            groups.sort(key=side.position.__getitem__)
    return out


def _slot_key(side: Side, group: int) -> object:
    return (side.slot[group], side.leaf[group]) if side.slot[group] >= 0 else None


def _role_key(side: Side, group: int) -> object:
    return side.leaf[group], side.dead_end[group]


def _pair_by_key(pairing: Pairing, xs: list[int], ys: list[int], key: object) -> tuple[list[int], list[int]]:
    """Pair groups whose key is unique on both sides; return what is left."""
    assert callable(key)
    kx: dict[object, list[int]] = defaultdict(list)
    ky: dict[object, list[int]] = defaultdict(list)
    for x in xs:
        kx[key(pairing.a, x)].append(x)
    for y in ys:
        ky[key(pairing.b, y)].append(y)
    for k, of_key in kx.items():
        if k is not None and len(of_key) == 1 and len(ky.get(k, ())) == 1:
            pairing.pair(of_key[0], ky[k][0], 2)
    return [x for x in xs if pairing.a.ids[x] < 0], [y for y in ys if pairing.b.ids[y] < 0]


def _nearest(side: Side, downwards: bool) -> list[frozenset[int]]:
    """Per value: ids of the nearest matched descendants (`downwards`) or ancestors, at most CONTEXT."""
    graph = side.graph
    inputs, outputs = graph.inputs.lists(), graph.outputs.lists()
    ids = side.id_of_value.tolist()
    empty: frozenset[int] = frozenset()
    near = [empty] * graph.n_values
    order = range(graph.n_ops - 1, -1, -1) if downwards else range(graph.n_ops)
    for op in order:
        for lane_in, lane_out in graph.lanes(op, inputs[op], outputs[op]):
            sources, targets = (lane_out, lane_in) if downwards else (lane_in, lane_out)
            seen: set[int] = set()
            for v in sources:
                if ids[v] >= 0:
                    seen.add(ids[v])
                elif near[v]:
                    seen |= near[v]
            if not seen:
                continue
            if len(seen) > CONTEXT:
                seen = set(sorted(seen)[:CONTEXT])
            frozen = frozenset(seen)
            for v in targets:
                near[v] = (near[v] | frozen) if downwards and near[v] else frozen
    return near


def _pair_by_surroundings(
    pairing: Pairing, crowded: list[tuple[list[int], list[int]]]
) -> list[tuple[list[int], list[int]]]:
    a, b = pairing.a, pairing.b
    for round_ in range(ROUNDS):
        if not crowded:
            break
        before = len(pairing.confidence)
        around_a = _surroundings(a)
        around_b = _surroundings(b)
        rest: list[tuple[list[int], list[int]]] = []
        for xs, ys in crowded:
            sx = {x: around_a(x) for x in xs}
            sy = {y: around_b(y) for y in ys}
            _pair_equal_surroundings(pairing, xs, ys, sx, sy)
            xs = [x for x in xs if a.ids[x] < 0]
            ys = [y for y in ys if b.ids[y] < 0]
            if round_ and xs and ys and len(xs) * len(ys) <= JACCARD_PAIRS:
                _pair_similar_surroundings(pairing, xs, ys, sx, sy)
                xs = [x for x in xs if a.ids[x] < 0]
                ys = [y for y in ys if b.ids[y] < 0]
            if xs and ys:
                rest.append((xs, ys))
        crowded = rest
        if len(pairing.confidence) == before and round_:
            break
    return crowded


class _surroundings:
    """Callable: a group's matched ids above and below."""

    def __init__(self, side: Side) -> None:
        self.members = side.groups.members
        self.above = _nearest(side, downwards=False)
        self.below = _nearest(side, downwards=True)

    def __call__(self, group: int) -> Surroundings:
        members = self.members[group]
        if len(members) == 1:
            return self.above[members[0]], self.below[members[0]]
        return (
            frozenset().union(*(self.above[v] for v in members)),
            frozenset().union(*(self.below[v] for v in members)),
        )


def _pair_equal_surroundings(
    pairing: Pairing, xs: list[int], ys: list[int], sx: dict[int, Surroundings], sy: dict[int, Surroundings]
) -> None:
    kx: dict[Surroundings, list[int]] = defaultdict(list)
    ky: dict[Surroundings, list[int]] = defaultdict(list)
    for x in xs:
        kx[sx[x]].append(x)
    for y in ys:
        ky[sy[y]].append(y)
    for key, of_key in kx.items():
        other = ky.get(key, [])
        if (key[0] or key[1]) and len(of_key) == len(other):
            for x, y in zip(of_key, other, strict=True):  # both in execution order
                pairing.pair(x, y, 1)


def _pair_similar_surroundings(
    pairing: Pairing, xs: list[int], ys: list[int], sx: dict[int, Surroundings], sy: dict[int, Surroundings]
) -> None:
    def similarity(x: int, y: int) -> float:
        total = 0.0
        for p, q in zip(sx[x], sy[y], strict=True):
            union = len(p | q)
            total += len(p & q) / union if union else 0.0
        return total

    ranked = sorted(
        (-similarity(x, y), abs(i / len(xs) - j / len(ys)), i, j) for i, x in enumerate(xs) for j, y in enumerate(ys)
    )
    for score, _, i, j in ranked:
        if -score < JACCARD:
            break
        if pairing.a.ids[xs[i]] < 0 and pairing.b.ids[ys[j]] < 0:
            pairing.pair(xs[i], ys[j], 0)


def _pair_bundles(pairing: Pairing, eps: float) -> int:
    """Pair one group with several of the other side that together hold its numbers.

    Fused q/k/v and gate/up weights, their gradients and optimizer states. The power sums |x|1, |x|2^2,
    |x|4^4 and the sum add up over parts, whatever the split, so no chunk needs a fingerprint of its own.
    Candidates are unmatched groups of the same role and phase near the same place in execution order.
    """
    found = 0
    for whole, part in ((pairing.a, pairing.b), (pairing.b, pairing.a)):
        found += _bundle_side(pairing, whole, part, eps)
    return found


def _power_sums(side: Side) -> Floats:
    """(groups, 5): numel, sum, |x|1, |x|2^2, |x|4^4 of every group."""
    first = np.array([vs[0] for vs in side.groups.members])
    n = side.graph.numel[first].astype(np.float64)
    f = side.graph.features[first]
    l2, root = f[:, 0], np.sqrt(n)
    return np.stack([n, f[:, 3] * l2 * root, f[:, 1] * l2 * root, l2**2, (f[:, 2] * l2) ** 4], axis=1)


def _bundle_side(pairing: Pairing, whole: Side, part: Side, eps: float) -> int:
    sums_whole, sums_part = _power_sums(whole), _power_sums(part)
    open_parts = _unmatched_by_place(part)
    found = 0
    for place, wholes in _unmatched_by_place(whole).items():
        parts = open_parts.get(place, [])
        if len(parts) < 2:
            continue
        stretch = len(parts) / len(wholes)
        for i, x in enumerate(wholes):
            middle = int((i + 0.5) * stretch)
            near = parts[max(0, middle - BUNDLE_WINDOW) : middle + BUNDLE_WINDOW]
            chosen = _parts(sums_whole[x], [y for y in near if part.ids[y] < 0], sums_part, eps)
            if chosen:
                pairing.pair(*((x, chosen[0]) if whole is pairing.a else (chosen[0], x)), 1)
                for y in chosen[1:]:
                    part.ids[y] = whole.ids[x]
                found += 1
    return found


def _unmatched_by_place(side: Side) -> dict[object, list[int]]:
    """Unmatched groups by role and phase, each in execution order."""
    out: dict[object, list[int]] = defaultdict(list)
    phases = side.graph.phases.tolist()
    last = side.graph.n_ops - 1
    for group in sorted(range(len(side.ids)), key=side.position.__getitem__):
        if side.ids[group] < 0 and side.anchor[group]:
            out[_role_key(side, group), phases[min(side.position[group], last)]].append(group)
    return out


def _parts(target: Floats, near: list[int], sums: Floats, eps: float) -> list[int] | None:
    """The 2 to BUNDLE_PARTS of `near` whose power sums add up to `target`, or None."""
    candidates = np.array(near, np.int64)
    if not len(candidates):
        return None
    mine = sums[candidates]
    fits = (mine[:, 0] < target[0]) & (mine[:, 3] <= target[3] * (1 + eps))
    # an equal part's size divides the whole's; unequal parts (grouped-query attention) keep a larger share
    fits &= mine[:, 0] * BUNDLE_RATIO >= target[0]
    candidates, mine = candidates[fits][:BUNDLE_CANDIDATES], mine[fits][:BUNDLE_CANDIDATES]
    if len(candidates) < 2 or mine[:, 0].sum() < target[0]:
        return None
    chosen = _COMBINATIONS[len(candidates)]
    total = np.tensordot(chosen, mine, axes=1)
    # the plain sum may cancel; it is compared on the scale of |x|1
    scale = np.array([target[2], target[2], target[3], target[4]])
    good = (total[:, 0] == target[0]) & (np.abs(total - target)[:, 1:] <= eps * scale).all(axis=1)
    if not good.any():
        return None
    best: list[int] = candidates[chosen[int(np.argmax(good))] > 0].tolist()
    return best


def _combinations(n: int) -> Floats:
    """(combinations, n) 0/1 rows that choose 2 to BUNDLE_PARTS of n, small ones first."""
    rows = []
    for k in range(2, BUNDLE_PARTS + 1):
        for chosen in combinations(range(n), k):
            row = np.zeros(n)
            row[list(chosen)] = 1
            rows.append(row)
    return np.array(rows).reshape(len(rows), n)


_COMBINATIONS = [_combinations(n) for n in range(BUNDLE_CANDIDATES + 1)]
