from __future__ import annotations

from magneton_dist.diagnosis.snapshot import differences


def test_only_what_differs_is_kept_and_what_one_side_lacks_is_unset():
    found = differences({"on": {"torch.x": "1", "env.OMP_NUM_THREADS": "2"}, "off": {"torch.x": "1"}})
    assert found == {"env.OMP_NUM_THREADS": {"on": "2", "off": "unset"}}


def test_an_internal_name_of_a_public_setting_is_not_told_twice():
    def snapshot(enabled: str, other: str) -> dict[str, str]:
        return {
            "torch._C._get_mkldnn_enabled": enabled,
            "torch.backends.mkldnn.enabled": enabled,
            "torch._C._get_nnpack_enabled": other,
            "torch.are_deterministic_algorithms_enabled": other,
            "torch._C._get_deterministic_algorithms": other,
        }

    found = differences({"a": snapshot("True", "x"), "b": snapshot("False", "y")})
    assert list(found) == [
        "torch.are_deterministic_algorithms_enabled",
        "torch.backends.mkldnn.enabled",
        "torch._C._get_nnpack_enabled",
    ]


def test_where_a_run_went_is_no_difference():
    assert differences({"a": {"env.CUDA_VISIBLE_DEVICES": "0"}, "b": {"env.CUDA_VISIBLE_DEVICES": "1"}}) == {}
