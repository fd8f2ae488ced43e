from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.matching.cycles import longest_increasing


def by_search(sequence: list[int]) -> int:
    """Length of the longest increasing subsequence, by trying all."""
    return max(
        (
            len(places)
            for k in range(len(sequence) + 1)
            for places in combinations(range(len(sequence)), k)
            if all(sequence[i] < sequence[j] for i, j in pairwise(places))
        ),
        default=0,
    )


@given(st.lists(st.integers(0, 9), max_size=10))
def test_longest_increasing_is_increasing_and_longest(sequence):
    places = longest_increasing(sequence)
    chosen = [sequence[i] for i in places]
    assert places == sorted(set(places))
    assert all(x < y for x, y in pairwise(chosen))
    assert len(places) == by_search(sequence)
