from __future__ import annotations

import pytest

from magneton_dist.diagnosis.factors import Factor, environment_of, setting_factors
from magneton_dist.diagnosis.fixes import fix_text, statement
from magneton_dist.tracer.secrecy import WITHHELD


def test_settings_and_variables_can_be_flipped_and_what_cannot_is_named():
    a = {"torch.x": "1", "env.OMP_NUM_THREADS": "1", "version.torch": "2.9", "ddp.static_graph": "True", "torch.y": "1"}
    b = {"torch.x": "2", "version.torch": "2.10", "ddp.static_graph": "False", "env.MKL_CBWR": "AVX2"}
    factors, fixed = setting_factors(a, b)
    assert [(f.kind, f.name, f.values) for f in factors] == [
        ("environment", "MKL_CBWR", ("unset", "AVX2")),
        ("environment", "OMP_NUM_THREADS", ("1", "unset")),
        ("setting", "torch.x", ("1", "2")),
    ]
    assert fixed == ["ddp.static_graph", "version.torch"]


def test_what_happened_to_run_is_no_setting():
    running = "torch.autograd.profiler_enabled"
    assert setting_factors({running: "True", "torch.x": "1"}, {running: "False", "torch.x": "1"}) == ([], [running])


def test_what_was_withheld_or_names_a_file_is_never_set_from_a_record():
    factors, fixed = setting_factors({"env.OMP_X": WITHHELD, "env.OMP_TOOL_LIBRARIES": "/tmp/x.so"}, {})
    assert factors == []
    assert fixed == ["env.OMP_TOOL_LIBRARIES", "env.OMP_X"]
    base = {"PATH": "/bin", "OMP_NUM_THREADS": "8", "MKL_OLD": "1"}
    settings = {"env.OMP_NUM_THREADS": "1", "env.OMP_TOOL_LIBRARIES": "/tmp/x.so", "env.OMP_X": WITHHELD}
    assert environment_of(base, settings, ("OMP_", "MKL_")) == {"PATH": "/bin", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("kind", "name", "value", "line"),
    [
        ("setting", "torch.backends.mkldnn.enabled", "True", "torch.backends.mkldnn.enabled = True"),
        ("setting", "torch.backends.mkldnn.matmul.fp32_precision", "bf16",
         'torch.backends.mkldnn.matmul.fp32_precision = "bf16"'),
        ("setting", "torch.get_num_threads", "2", "torch.set_num_threads(2)"),
        ("setting", "torch.get_float32_matmul_precision", "high", 'torch.set_float32_matmul_precision("high")'),
        ("setting", "torch.get_default_dtype", "torch.bfloat16", "torch.set_default_dtype(torch.bfloat16)"),
        ("setting", "torch.are_deterministic_algorithms_enabled", "True", "torch.use_deterministic_algorithms(True)"),
        ("setting", "torch.backends.cuda.math_sdp_enabled", "False", "torch.backends.cuda.enable_math_sdp(False)"),
        ("setting", "torch._C._get_nnpack_enabled", "False", "torch._C._set_nnpack_enabled(False)"),
        ("environment", "MKL_CBWR", "AVX2", "export MKL_CBWR=AVX2"),
        ("environment", "MKL_CBWR", "unset", "unset MKL_CBWR"),
        ("environment", "OMP_PLACES", "{0},{1}; echo $x", "export OMP_PLACES='{0},{1}; echo $x'"),
        ("setting", "torch.backends.x", 'a "b"', 'torch.backends.x = "a \\"b\\""'),
    ],
)  # fmt: skip
def test_what_to_type(kind: str, name: str, value: str, line: str):
    assert statement(Factor(kind, name, ("other", value)), 1) == line  # type: ignore[arg-type]


def test_arguments_are_handed_over_otherwise():
    layout = Factor("argument", "layout of input", ("transposed", "contiguous"), tensor=0, aspect="layout")
    dtype = Factor("argument", "dtype of weight", ("float32", "bfloat16"), tensor=1, aspect="dtype")
    assert statement(layout, 1) == "input.contiguous()"
    assert statement(layout, 0) == "input: transposed"
    assert statement(dtype, 1) == "weight.to(torch.bfloat16)"
    text = fix_text([layout, dtype], 1, ("slow", "fast"), "train.py:7")
    assert text == (
        "In slow at train.py:7, hand over these arguments as fast does: `input.contiguous()` and "
        "`weight.to(torch.bfloat16)`."
    )
