from __future__ import annotations

import pytest

from magneton_dist.meters.visible import visible_devices

A, B, C = "GPU-aaaa1111-0000", "GPU-bbbb2222-0000", "GPU-bbbb3333-0000"
GPUS = (A, B, C)
MIGS = {"MIG-dddd1111-0000": C, "MIG-dddd2222-0000": C}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, (A, B, C)),
        ("", ()),
        ("  ", ()),
        ("-1", ()),
        ("0,1,2", (A, B, C)),
        ("2,0", (C, A)),  # Ray's list can be unordered: CUDA's order is the list's
        (" 1 , 2 ", (B, C)),
        (B, (B,)),
        ("GPU-aaaa", (A,)),
        ("aaaa1111-0000", (A,)),  # as torch writes it
        ("GPU-bbbb2,0", (B, A)),
        ("0,-1,1", (A,)),
        ("MIG-dddd1111-0000", (C,)),
        ("MIG-dddd1,MIG-dddd2", (C, C)),
        (f"MIG-{B}/3/0", (B,)),
    ],
)
def test_values_that_cuda_understands(value, expected):
    visible = visible_devices(value, GPUS, MIGS)
    assert visible.uuids == expected
    assert visible.notes == ()


@pytest.mark.parametrize(
    ("value", "expected", "culprit"),
    [
        ("0,7,1", (A,), "7"),
        ("GPU-bbbb", (), "GPU-bbbb"),  # two GPUs begin so
        ("GPU-", (), "GPU-"),
        ("1,GPU-ffff", (B,), "GPU-ffff"),
        ("MIG-dddd", (C,), None),  # both slices are of one GPU: the GPU is known
        ("nonsense", (), "nonsense"),
        ("0,1.5", (A,), "1.5"),
    ],
)
def test_what_names_no_device_ends_the_list_and_is_said(value, expected, culprit):
    visible = visible_devices(value, GPUS, MIGS)
    assert visible.uuids == expected
    assert [culprit in note for note in visible.notes] == ([] if culprit is None else [True])


def test_a_slice_marks_its_gpu_as_shared():
    assert visible_devices("0,MIG-dddd1", GPUS, MIGS).shared == {C}
    assert visible_devices("0", GPUS, MIGS).shared == frozenset()
