"""Step 3 of the matcher: pair the groups of the two graphs that hold equal values.

A label with one group on each side is a pair. Crowded labels (identical layers, equal-shaped q, k and v,
values that training barely moves) are sorted out by more than features: the bits, parameter names, what
unfoldings veto, the role in the graph, the order of the elements, and the nearest pairs found so far above
and below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable

from magneton_dist.matching.arrays import Ints
from magneton_dist.matching.bundles import pair_bundles
from magneton_dist.matching.crowds import Crowd, Look
from magneton_dist.matching.sides import NAMED, UNIQUE, Pairing, Side
from magneton_dist.matching.surroundings import Around, pair_crowds, unmatched

ROUNDS = 5  # each knows the pairs of the one before as surroundings

Key = Callable[[Side, int], Hashable]


def pair_groups(a: Side, b: Side, label_a: Ints, label_b: Ints, eps: float) -> Pairing:
    """Pair groups of equal labels, see the module's head, and wholes with their parts.

    Args:
        a, b: both graphs, unmatched.
        label_a, label_b: label of every value.
        eps: relative tolerance of fingerprints.
    """
    pairing = Pairing(a, b)
    look = Look(a.graph, b.graph, a.groups.members, b.groups.members, eps)
    crowds: list[Crowd] = []
    groups_b = _by_label(b, label_b)
    for label, xs in _by_label(a, label_a).items():
        ys = groups_b.get(label)
        if not ys:
            continue
        if len(xs) == len(ys) == 1 and a.anchor[xs[0]]:
            if _bits(a, xs[0]) == _bits(b, ys[0]) or look.may_be_equal(xs[0], ys[0]):
                pairing.pair(xs[0], ys[0], UNIQUE)
        else:
            crowds += _thin_out(pairing, look, (xs, ys))
    bundles = 0  # that the last round has looked around
    for round_ in range(ROUNDS):
        before = len(pairing.confidence)
        around_a, around_b = Around(a), Around(b)
        crowds = pair_crowds(pairing, crowds, around_a, around_b, similar=round_ > 0)
        first, bundles = bundles, len(pairing.bundles)
        pair_bundles(pairing, around_a, around_b, eps, first)
        if len(pairing.confidence) == before and round_:
            break
    return pairing


def _by_label(side: Side, label: Ints) -> dict[int, list[int]]:
    """Groups under each label, in execution order."""
    out: dict[int, list[int]] = defaultdict(list)
    for group, of_group in enumerate(label[side.first_member].tolist()):
        out[of_group].append(group)
    for groups in out.values():
        if len(groups) > 1:
            groups.sort(key=side.position.__getitem__)
    return out


def _thin_out(pairing: Pairing, look: Look, crowd: Crowd) -> list[Crowd]:
    """Pair what can be told apart without its surroundings; returns what is left, in some crowds.

    Constants and the like (no anchors) are told apart by names only: they equal too much else.
    """
    if not pairing.a.anchor[crowd[0][0]]:
        left = _named(pairing, crowd)
        return [left] if left[0] and left[1] else []
    crowd = _pair_by_key(pairing, crowd, _bits, UNIQUE)
    return [left for part in _by_bits(pairing, crowd) for left in _look_closely(pairing, look, part)]


def _by_bits(pairing: Pairing, crowd: Crowd) -> list[Crowd]:
    """A crowd for all bits that both sides have, and one for the rest.

    A weight that is gathered twice has its twin in the other graph's weight before the step, and neither in the one
    after it, which small learning rates leave within the tolerance.
    """
    of_x, of_y = _by_key(pairing.a, crowd[0], _bits), _by_key(pairing.b, crowd[1], _bits)
    common = [bits for bits in of_x if bits in of_y]
    rest = [x for bits, xs in of_x.items() if bits not in of_y for x in xs]
    others = [y for bits, ys in of_y.items() if bits not in of_x for y in ys]
    parts = [(of_x[bits], of_y[bits]) for bits in common]
    return [*parts, (rest, others)] if rest and others else parts


def _named(pairing: Pairing, crowd: Crowd) -> Crowd:
    for key in (_name_and_role, _name):
        crowd = _pair_by_key(pairing, crowd, key, NAMED)
    return crowd


def _look_closely(pairing: Pairing, look: Look, crowd: Crowd) -> list[Crowd]:
    """Pair by names, by what unfoldings veto, by role, and by the order of elements; returns what is left."""
    crowd = _named(pairing, crowd)
    if not crowd[0] or not crowd[1]:
        return []
    left: list[Crowd] = []
    for part in look.split(crowd):
        if len(part[0]) == len(part[1]) == 1:
            pairing.pair(part[0][0], part[1][0], UNIQUE)
            continue
        part = _pair_by_key(pairing, part, _role, NAMED)
        for x, y in look.in_order(part):
            pairing.pair(x, y, NAMED)
        part = unmatched(pairing, part)
        if part[0] and part[1]:
            left.append(part)
    return left


def _bits(side: Side, group: int) -> Hashable:
    return int(side.graph.checksum[side.first_member[group]])


def _name_and_role(side: Side, group: int) -> Hashable:
    slot = side.slot[group]
    return (slot, side.leaf[group], side.dead_end[group]) if slot >= 0 else None


def _name(side: Side, group: int) -> Hashable:
    return (side.slot[group], side.leaf[group]) if side.slot[group] >= 0 else None


def _role(side: Side, group: int) -> Hashable:
    return side.leaf[group], side.dead_end[group]


def _pair_by_key(pairing: Pairing, crowd: Crowd, key: Key, confidence: int) -> Crowd:
    """Pair groups whose key is unique on both sides; returns what is left. None is no key."""
    of_x, of_y = _by_key(pairing.a, crowd[0], key), _by_key(pairing.b, crowd[1], key)
    for k, xs in of_x.items():
        ys = of_y.get(k, ())
        if k is not None and len(xs) == len(ys) == 1:
            pairing.pair(xs[0], ys[0], confidence)
    return unmatched(pairing, crowd)


def _by_key(side: Side, groups: list[int], key: Key) -> dict[Hashable, list[int]]:
    out: dict[Hashable, list[int]] = defaultdict(list)
    for group in groups:
        out[key(side, group)].append(group)
    return out
