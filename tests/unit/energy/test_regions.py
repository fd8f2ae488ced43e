from __future__ import annotations

import time

import numpy as np

from magneton_dist.energy.regions import region_sums


def test_sums_of_every_rank_by_region() -> None:
    amounts = np.array([[1, 2, 4, 8], [10, 20, 40, 80]], np.float32)
    sums = region_sums(amounts, np.array([2, 0, 2, 0]), 4)
    assert sums.tolist() == [[10, 0, 5, 0], [100, 0, 50, 0]]


def test_a_thousand_ranks_take_no_loop() -> None:
    amounts = np.ones((1024, 6221), np.float32)
    region = np.arange(6221) // 3
    started = time.perf_counter()
    sums = region_sums(amounts, region, int(region[-1]) + 1)
    assert time.perf_counter() - started < 3  # 0.1 s on a quiet core; a loop over ranks takes far longer
    assert sums.sum() == 1024 * 6221
    assert sums[0, :2].tolist() == [3, 3]
