from __future__ import annotations

import itertools

import pytest
import yaml

from magneton_dist.errors import ConfigError
from magneton_dist.meters import ModelledMeter, load_profile

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
        ({"colour": "blue"}, "colour"),
        ({"caution": None}, "caution"),
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
