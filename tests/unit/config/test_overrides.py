"""``--set key=value`` on top of a file."""

# ruff: noqa: E501 - messages stand as they are printed
from __future__ import annotations

import pytest

TEXT = """\
job: {script: train.py, args: [--layers, 2], env: {A: a}}
variants:
  plain:
  join: {args+: [--sync, join]}
  other: {args: [x]}
"""


def args(config) -> dict[str, tuple[str, ...]]:
    return {name: job.args for name, job in config.variants.items()}


def test_values_are_yaml(read):
    config = read(TEXT, "repeats=6", "compare.total=0.2", "job.env={B: 010}", "capture={max_mb: 8}", "name=n")
    assert (config.repeats, config.compare.total, config.capture.max_mb, config.name) == (6, 0.2, 8, "n")
    assert config.variants["plain"].env == {"B": "010"}


def test_later_wins(read):
    assert read(TEXT, "repeats=6", "repeats=2").repeats == 2


def test_values_may_hold_equal_signs_and_nothing(read):
    config = read(TEXT, "job.env.B=--x=y", "job.env.C=''")
    assert config.variants["join"].env == {"A": "a", "B": "--x=y", "C": ""}


def test_one_item_of_a_list(read):
    assert args(read(TEXT, "job.args[1]=64"))["join"] == ("--layers", "64", "--sync", "join")
    assert args(read(TEXT, "variants.join.args+[1]=early"))["join"] == ("--layers", "2", "--sync", "early")


def test_plus_extends(read):
    assert args(read(TEXT, "job.args+=[--x, 1]")) == {
        "plain": ("--layers", "2", "--x", "1"),
        "join": ("--layers", "2", "--x", "1", "--sync", "join"),
        "other": ("x",),
    }
    assert read(TEXT, "job.env+={B: b}").variants["plain"].env == {"A": "a", "B": "b"}
    assert read(TEXT, "job.torchrun.extra+=[--x]").variants["plain"].torchrun.extra == ("--x",)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("plain", ("--layers", "2", "--x")),
        ("join", ("--layers", "2", "--sync", "join", "--x")),
        ("other", ("x", "--x")),
    ],
)
def test_plus_in_a_variant_adds_to_what_it_runs_with(read, variant, expected):
    assert args(read(TEXT, f"variants.{variant}.args+=[--x]"))[variant] == expected


def test_null_takes_away_from_a_variant(read):
    assert read(TEXT, "variants.join.env.A=null").variants["join"].env == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("repeats", "--set: 'repeats' must read key=value (such as --set repeats=6)"),
        ("=3", "--set: '=3' must read key=value (such as --set repeats=6)"),
        ("a..b=3", "--set: 'a..b' is no key (such as variants.join.args[1])"),
        ("a.=3", "--set: 'a.' is no key (such as variants.join.args[1])"),
        ("a[x]=3", "--set: 'a[x]' is no key (such as variants.join.args[1])"),
        ("[0]=3", "--set: '[0]' is no key (such as variants.join.args[1])"),
        ("repaets=3", "--set: repaets: unknown key (did you mean 'repeats'? allowed: name, variants, baseline, repeats, "
         "warmup_runs, capture, energy, compare, diagnose, runs, job)"),
        ("repeats=x", "--set: repeats: must be a valid integer, not 'x'"),
        ("job.env={", "--set: job.env: not YAML: expected the node content, but found '<stream end>' "
         "(put a text with { } in quotes)"),
        ("job.env.B={run_dir}x", "--set: job.env.B: not YAML: expected '<document start>', but found '<scalar>' "
         "(put a text with { } in quotes)"),
        ("job.script.x=1", "--set: job.script.x: job.script has no keys (it is 'train.py', at a.yaml:1)"),
        ("job.args[7]=1", "--set: job.args[7]: there is no item 7 (job.args is a list, at a.yaml:1)"),
        ("job.env[0]=1", "--set: job.env[0]: there is no item 0 (job.env is a mapping, at a.yaml:1)"),
        ("variants.jion.seed=1",
         "--set: variants.jion.seed: there is no variant 'jion' (did you mean 'join'? allowed: plain, join, other)"),
        ("repeats+=1", "--set: repeats: cannot extend by 1 (lists take +=[a, b], mappings +={a: b})"),
        ("job.args+={a: b}", "--set: job.args: cannot extend a list by a mapping (it is at a.yaml:1)"),
        ("job.script=gone.py", "--set: job.script: there is no file 'gone.py' (looked in FOLDER)"),
    ],
)  # fmt: skip
def test_message(refused, folder, text, message):
    assert refused(TEXT, text) == message.replace("FOLDER", str(folder))
