from __future__ import annotations

import itertools
import re

import pytest
import yaml

from magneton_dist.errors import ConfigError
from magneton_dist.meters import ModelledMeter, load_profile
from magneton_dist.meters.profile import PROFILES, profile_of

PUBLISHED = {"bare_idle": 74, "context_idle": 122, "wait": 124, "transfer": 126, "compute": 138}


def test_the_h200_has_the_published_watts_each_with_a_source():
    profile = load_profile("h200")
    assert {key: watts.nominal for key, watts in profile.watts.items()} == PUBLISHED
    assert (profile.watts["context_idle"].low, profile.watts["context_idle"].high) == (74, 124)
    assert all(len(watts.source) > 20 for watts in [*profile.watts.values(), *profile.operators.values()])
    assert set(profile.operators) == {
        "layer_norm", "tiny_copy", "memory_bound", "attention", "matmul", "matmul_tf32",
    }  # fmt: skip
    assert (profile.operators["matmul"].low, profile.operators["matmul"].high) == (597, 703)


@pytest.mark.parametrize(
    ("name", "limit_w", "bare_w", "context_w"),
    [
        ("v100", 300, 41, 49),  # W: the module's power limit as sold, and what idle devices were seen to draw
        ("a100", 400, 54, 80),
        ("h100", 700, 72, 122),
        ("b200", 1000, 137, 199),
        ("mi300x", 750, 142, 191),
    ],
)
def test_other_devices_stay_between_their_idle_and_their_power_limit(name, limit_w, bare_w, context_w):
    profile = load_profile(name)
    watts = profile.watts
    assert profile.name == name
    assert watts["compute"].high == limit_w
    assert (watts["bare_idle"].nominal, watts["context_idle"].nominal) == (bare_w, context_w)
    rising = [watts[key].nominal for key in ("bare_idle", "context_idle", "wait", "transfer", "compute")]
    assert rising == sorted(rising)
    # a seventh of the way from waiting to computing, as 126 W is from 124 to 138 W
    assert watts["transfer"].nominal == round(rising[2] + (rising[4] - rising[2]) / 7)
    # what a job computes with is not known: the range is as wide as what is published
    assert watts["compute"].low <= context_w <= watts["compute"].high / 2


def test_classes_of_operators_without_figures_may_draw_what_computing_may():
    a100 = load_profile("a100")
    assert {(w.low, w.nominal, w.high) for w in a100.operators.values()} == {(80, 304, 400)}
    assert a100.operators.keys() == load_profile("h200").operators.keys()


def test_every_figure_names_where_it_is_from_or_what_it_is_derived_from():
    profiles = {path.stem: load_profile(path.stem) for path in PROFILES.glob("*.yaml")}
    assert set(profiles) == {"a100", "b200", "h100", "h200", "mi300x", "v100"}
    for profile in profiles.values():
        for watts in [*profile.watts.values(), *profile.operators.values()]:
            assert re.search(r"arXiv|#\d+|artifact|Zeus|data sheet|MLPerf|published", watts.source), watts.source


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100"),
        ("Tesla V100S-PCIE-32GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-PG509-200", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives_it(device, name):
    profile = profile_of(device)
    assert profile is not None
    assert profile.name == name


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H20", "NVIDIA A10",
        "NVIDIA A800-SXM4-80GB", "AMD Instinct MI300A", "AMD Radeon Graphics", "NVIDIA GeForce RTX 4090", "",
    ],
)  # fmt: skip
def test_parts_other_forms_and_other_devices_are_not_taken_for_one(device):
    assert profile_of(device) is None


def test_a_reader_is_told_that_large_matmuls_draw_more():
    source = ModelledMeter(load_profile("h200"), "cpu").source
    assert "modelled" in source
    assert "large matrix multiplications draws 600 to 700 W" in source


def test_time_that_is_not_resolved_may_be_idle_or_compute():
    unresolved = load_profile("h200").states()["unresolved"]
    assert (unresolved.low, unresolved.nominal, unresolved.high) == (74, 130, 152)


def test_corners_are_all_combinations_of_the_ends(tmp_path):
    flat = {"nominal": 100, "low": 100, "high": 100, "source": "by hand"}
    watts = dict.fromkeys(PUBLISHED, flat)
    watts["wait"] = {"nominal": 120, "low": 110, "high": 130, "source": "by hand"}
    watts["bare_idle"] = {"nominal": 70, "low": 60, "high": 80, "source": "by hand"}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"name": "mine", "device": "d", "caution": "c", "watts": watts}))
    corners = load_profile(str(path)).corners()
    assert {(c["bare_idle"], c["wait"]) for c in corners} == set(itertools.product((60, 80), (110, 130)))
    assert len(corners) == 4
    assert all(c["compute"] == c["unresolved"] == 100 for c in corners)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"watts": {"wait": None}}, "watts: wait"),
        ({"watts": {"wait": {"nominal": 1, "low": 2, "high": 3, "source": "s"}}}, "low 2"),
        ({"watts": {"wait": {"nominal": 0, "low": 0, "high": 3, "source": "s"}}}, "greater than 0"),
        ({"watts": {"wiat": {"nominal": 1, "low": 1, "high": 1, "source": "s"}}}, "wiat"),
        ({"watts": {"wait": {"nominal": 1, "low": 1, "high": float("inf"), "source": "s"}}}, "finite number"),
        ({"sensor": {"period_s": float("inf"), "window_s": 0.1}}, "finite number"),
        ({"colour": "blue"}, "colour"),
        ({"caution": None}, "caution"),
        ({"names": "A(100"}, "no regular expression"),
    ],
)
def test_a_wrong_profile_is_refused_with_file_and_key(tmp_path, change, words):
    good = {"nominal": 1, "low": 1, "high": 1, "source": "s"}
    content = {"name": "n", "device": "d", "caution": "c", "watts": dict.fromkeys(PUBLISHED, good)}
    content["watts"] |= change.pop("watts", {})
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(content | change))
    with pytest.raises(ConfigError, match=words) as refused:
        load_profile(str(path))
    assert str(path) in str(refused.value)


def test_a_profile_that_is_incomplete_names_what_is_missing(tmp_path):
    path = tmp_path / "short.yaml"
    watts = {"wait": {"nominal": 1, "low": 1, "high": 1, "source": "s"}}
    path.write_text(yaml.safe_dump({"name": "n", "device": "d", "caution": "c", "watts": watts}))
    with pytest.raises(ConfigError, match="bare_idle, context_idle, transfer, compute missing"):
        load_profile(str(path))


@pytest.mark.parametrize("spec", ["h201", "no/such/file.yaml"])
def test_an_unknown_profile_names_the_known_ones(spec):
    with pytest.raises(ConfigError, match="h200"):
        load_profile(spec)


def test_yaml_that_would_run_code_is_refused(tmp_path):
    path = tmp_path / "evil.yaml"
    path.write_text("name: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="could not determine a constructor"):
        load_profile(str(path))
