"""How kernels on a GPU are asked for; what the libraries of a CPU print is read in `test_laboratory`."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import profiler

from magneton_dist.diagnosis.signature import signature

HOST, DEVICE = SimpleNamespace(name="CPU"), SimpleNamespace(name="CUDA")


def test_kernels_of_a_gpu_are_those_that_kineto_names_in_order(monkeypatch: pytest.MonkeyPatch):
    """Torch without Kineto would only time operators by CUDA events: it decides in its own constructor."""
    made: list[profiler.profile] = []

    def event(name: str, start: int, device: Any = HOST) -> Any:
        return SimpleNamespace(name=name, time_range=SimpleNamespace(start=start), device_type=device)

    class Profile(profiler.profile):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            made.append(self)

        def __enter__(self) -> Profile:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        function_events = [  # noqa: RUF012
            event("second_kernel", 9, DEVICE), event("aten::mm", 1), event("cudaLaunchKernel", 2),
            event("first_kernel", 5, DEVICE),
        ]  # fmt: skip

    monkeypatch.setattr(profiler, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    activity = profiler.ProfilerActivity
    monkeypatch.setattr(profiler, "_supported_activities", lambda: {activity.CPU, activity.CUDA})
    found = signature(lambda: None, gpu=True)
    assert (found["operators"], found["kernels"]) == (["aten::mm"], ["first_kernel", "second_kernel"])
    assert made[0].profiler_kind == profiler.ProfilerState.KINETO
    assert activity.CUDA in made[0].kineto_activities


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="this torch has no MKL")
def test_mkl_has_what_measures_the_clock():
    """Where it had not, every process would measure it again: `measure_clock` does without."""
    assert ctypes.CDLL(torch._C.__file__).mkl_serv_get_clocks_frequency
