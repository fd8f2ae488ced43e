"""A function of torch's, followed instruction by instruction in two worlds: how far they go together in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

Function = tuple[str, int, str]  # library, offset, name


@dataclass(frozen=True)
class Level:
    """A function that was followed, one time that it was entered, in both worlds.

    Attributes:
        function: which.
        sides: fields of `steps.Entered`, in world A and in B.
        place: of the call to it among the steps of the function above; arguments: of that call, in A and in B.
    """

    function: Function
    sides: tuple[Mapping[str, Any], Mapping[str, Any]]
    place: int = 0
    arguments: tuple[Sequence[int], Sequence[int]] = ((), ())

    @property
    def common(self) -> int:
        """Steps that both do alike, calling the same functions."""
        a, b = (side["steps"] for side in self.sides)
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
        for one, other in zip(*(side["calls"] for side in self.sides), strict=False):
            if one[0] >= alike or other[0] >= alike:
                break
            if one[1:3] != other[1:3]:
                return int(one[0]) + 1  # an indirect call
        return alike

    @property
    def parts(self) -> bool:
        """Do the worlds go different ways in it?"""
        (a, b), common = (side["steps"] for side in self.sides), self.common
        return common < max(len(a), len(b)) or any(x[1:3] != y[1:3] for x, y in self._calls())

    def _calls(self) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
        """Calls that both do in their common steps."""
        common = self.common
        pairs = zip(*(side["calls"] for side in self.sides), strict=False)
        return ((one, other) for one, other in pairs if one[0] == other[0] < common)

    def returned(self) -> dict[str, tuple[int | None, int | None]]:
        """Place of a call among the steps -> what it returned in either world."""
        return {str(one[0]): (one[5], other[5]) for one, other in self._calls() if one[1:3] == other[1:3]}

    def number_at(self, place: int) -> int:
        """Number of the call at this place among the steps."""
        return next(number for number, call in enumerate(self.sides[0]["calls"]) if call[0] == place)

    def differs(self, argument: int, mask: int) -> bool:
        """Are these bits of an argument others in A than in B?"""
        pairs = list(zip(*self.arguments, strict=True))[argument : argument + 1]
        return any((one ^ other) & mask for one, other in pairs)

    def calls_to(self, functions: Sequence[Function]) -> list[int]:
        """Numbers of those of its common calls that are of these functions."""
        wanted = [(library, start) for library, start, _ in functions]
        return [number for number, (one, _) in enumerate(self._calls()) if tuple(one[1:3]) in wanted]
