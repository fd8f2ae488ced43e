"""Real processes that repeat operators, and ranks that repeat a collective together."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.benchmark import Timer

from magneton_dist.energy.replay.bench import Bench, OneArm
from magneton_dist.errors import InputError, MeterError


def square(storage: int, n: int) -> dict[str, Any]:
    return {"storage": storage, "offset": 0, "shape": [n, n], "stride": [n, 1], "dtype": "float32", "device": "cpu"}


def test_an_operator_is_repeated_in_a_process_of_its_own() -> None:
    with Bench(["cpu"], {"OMP_NUM_THREADS": "1"}) as bench:
        assert bench.ask("settings", values={"torch.get_num_threads": "1", "torch.backends.cuda.nonsense": "True"}) == {
            "refused": []
        }
        values = {"1": square(1, 256), "2": square(2, 256)}
        how = bench.ask("operator", name="aten.mm.default", arguments=[{"v": 1}, {"v": 2}], values=values, seed=0)
        assert how == {"how": "loop", "restores": False}
        before_ns = time.monotonic_ns()
        span = OneArm(bench).run(0.5)
        assert before_ns <= span.start_ns < span.end_ns <= time.monotonic_ns()
        assert 0.5 <= span.seconds < 1.0
        x, y = torch.randn(2, 256, 256)
        timer = Timer("torch.mm(x, y)", globals={"x": x, "y": y, "torch": torch}, num_threads=1)
        assert span.seconds / span.rounds == pytest.approx(timer.blocked_autorange().median, rel=0.8)

        how = bench.ask("operator", name="aten.add_.Tensor", arguments=[{"v": 1}, {"v": 2}], values=values, seed=0)
        assert how["restores"]
        whole, bare = OneArm(bench).run(0.1), OneArm(bench, bare=True).run(0.1)
        assert bare.seconds / bare.rounds < whole.seconds / whole.rounds
        with pytest.raises(InputError, match="no operator of aten"):
            bench.ask("operator", name="os.system.default", arguments=["true"], values={}, seed=0)
        with pytest.raises(InputError, match="RuntimeError"):  # it says why, and goes on
            bench.ask("operator", name="aten.mm.default", arguments=[{"v": 1}, {"v": 2}],
                      values=values | {"2": square(2, 255)}, seed=0)  # fmt: skip
        bench.ask("operator", name="aten.arange.default", arguments=[10], values={}, seed=0)
        assert bench.run(0.05).rounds > 10
        pids = [process.pid for process in bench.processes]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_of_different_speed_repeat_a_collective_equally_often(ranks: int) -> None:
    with Bench(["cpu"] * ranks, {"OMP_NUM_THREADS": "1"}, backend="gloo") as bench:
        over = threading.Event()
        slow = bench.processes[-1].pid

        def hold_up() -> None:
            while not over.wait(0.02):
                os.kill(slow, signal.SIGSTOP)
                time.sleep(0.03)
                os.kill(slow, signal.SIGCONT)

        holding = threading.Thread(target=hold_up)
        holding.start()
        try:
            for op in ("allreduce_", "_allgather_base_", "broadcast_")[: 4 - ranks]:
                bench.ask("collective", op=op, payload_bytes=1 << 16, dtype="float32")
                span = bench.run(0.5)  # raises where ranks did different numbers
                assert span.rounds >= 2
                assert 0.4 < span.seconds < 30
        finally:
            over.set()
            holding.join()
        with pytest.raises(InputError, match="is not replayed"):
            bench.ask("collective", op="barrier", payload_bytes=4, dtype="float32")


def test_a_process_that_dies_is_an_error_in_words() -> None:
    with Bench(["cpu"]) as bench:
        bench.processes[0].kill()
        with pytest.raises(MeterError, match="process 0 ended: exit code -9"):
            bench.run(0.1)
