"""Which inputs are kept, with what they held before anything wrote into them."""

from __future__ import annotations

import resource
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from magneton_dist.records.inputs import forget_inputs, keep_inputs, kept_inputs
from magneton_dist.tracer.contents import Contents
from magneton_dist.tracer.graph import GraphRecorder
from magneton_dist.tracer.rows import FIELDS
from magneton_dist.tracer.stacks import Stacks


def record(rows: Any, contents: Contents, step: Any) -> list[dict[str, Any]]:
    recorder = GraphRecorder(rows, Stacks(rows), None, contents)
    recorder.start(0)
    step()
    recorder.stop()
    return [dict(zip(FIELDS["op"], row, strict=True)) for row in rows.of("op")]


def held(folder: Path, value: int, dtype: torch.dtype, shape: list[int]) -> torch.Tensor:
    path = folder / f"input-{value}.bin"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=dtype).view(shape)


def test_inputs_hold_what_the_operator_read(rows: Any, tmp_path: Path) -> None:
    weight, tokens, x = torch.randn(10, 3), torch.randint(0, 10, (4, 2)), torch.randn(5, 6).t()
    before = x.clone()

    def step() -> None:
        torch.embedding(weight, tokens)
        x.mul_(2.0)
        x.add_(1.0)
        weight.sum()

    ops = record(rows, Contents(rows, str(tmp_path), ("embedding", "mul_"), 1e6), step)
    named = {op["name"]: op for op in ops}
    embedding, times = named["aten.embedding.default"]["inputs"], named["aten.mul_.Tensor"]["inputs"]
    assert torch.equal(held(tmp_path, embedding[0], torch.float32, [10, 3]), weight)
    assert torch.equal(held(tmp_path, embedding[1], torch.int64, [4, 2]), tokens)
    assert torch.equal(held(tmp_path, times[0], torch.float32, [6, 5]), before)
    assert len(kept_inputs(tmp_path)) == 2 + len(times)
    assert not rows.of("fault")


def test_no_more_than_allowed(rows: Any, tmp_path: Path) -> None:
    small, large = torch.ones(10), torch.ones(1000)
    record(rows, Contents(rows, str(tmp_path), ("exp",), 100), lambda: (large.exp(), small.exp(), small.exp()))
    assert len(kept_inputs(tmp_path)) == 1
    ((where, message),) = rows.of("fault")
    assert where == "inputs"
    assert "beyond capture.inputs.max_mb" in message


def test_a_disk_that_is_full_costs_the_inputs_alone(rows: Any, tmp_path: Path) -> None:
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        contents = Contents(rows, str(tmp_path), ("exp",), 1e6)
        ops = record(rows, contents, lambda: (torch.ones(10).exp(), torch.ones(9999).exp()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [op["name"] for op in ops].count("aten.exp.default") == 2
    assert [path.stat().st_size for path in kept_inputs(tmp_path).values()] == [40]  # no part of the other one
    ((where, message),) = rows.of("fault")
    assert (where, "File too large" in message) == ("inputs", True)


def test_they_move_into_the_record_and_out_of_it(tmp_path: Path) -> None:
    segments, folder = tmp_path / "segments", tmp_path / "rank"
    segments.mkdir()
    folder.mkdir()
    (segments / "input-7.bin").write_bytes(b"data")
    (segments / "input-7.bin.txt").write_bytes(b"no input")
    keep_inputs(segments, folder)
    assert not (segments / "input-7.bin").exists()
    assert kept_inputs(folder) == {7: folder / "input-7.bin"}
    assert stat.S_IMODE((folder / "input-7.bin").stat().st_mode) == 0o600
    forget_inputs(folder)
    assert kept_inputs(folder) == {}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.bool, torch.complex64])
def test_every_type_comes_back(rows: Any, tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.randn(7).to(dtype)
    (op,) = record(rows, Contents(rows, str(tmp_path), ("clone",), 1e6), lambda: x.clone())
    assert torch.equal(held(tmp_path, op["inputs"][0], dtype, [7]), x)
