"""Small traces written by hand, and where the real ones are."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Event = dict[str, Any]


def host(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: Any = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": tid, "ts": ts, "dur": dur, "args": args}


def launch(correlation: int, ts: float, tid: Any = 1) -> Event:
    return host("cudaLaunchKernel", ts, 1, "cuda_runtime", tid, correlation=correlation)


def kernel(
    name: str, ts: float, dur: float, correlation: int = 0, cat: str = "kernel", stream: int = 7, **args: Any
) -> Event:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur,
        "args": {"device": 0, "stream": stream, "correlation": correlation, **args},
    }  # fmt: skip


def step(number: int, ts: float, dur: float) -> Event:
    return host(f"ProfilerStep#{number}", ts, dur, "user_annotation")


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a trace: events, file name, and what stands beside the events (before and after them)."""

    def written(events: list[Event], name: str = "rank-0.json", after: Any = None, **before: Any) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**before, "traceEvents": events, **(after or {})}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
        return path

    return written


@pytest.fixture
def make() -> Any:
    """The makers of events."""

    class Make:
        host, launch, kernel, step = staticmethod(host), staticmethod(launch), staticmethod(kernel), staticmethod(step)

    return Make


@pytest.fixture(scope="session")
def traces() -> Path:
    """Real traces by others; skipped where they are not."""
    beside = Path(__file__).resolve().parents[4] / "shared" / "traces"
    folder = Path(os.environ.get("MAGNETON_DIST_TRACES", beside))
    if not folder.is_dir():
        pytest.skip("the shared traces are not here (MAGNETON_DIST_TRACES)")
    return folder
