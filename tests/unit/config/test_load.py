"""What a configuration file means."""

from __future__ import annotations

from pathlib import Path

import pytest

from magneton_dist.config import Torchrun, load

TWO = """\
name: two
job:
  torchrun: {nproc_per_node: 2, max_restarts: 1}
  script: train.py
  args: [--layers, 2]
  env: {OMP_NUM_THREADS: "1", SEED: 7}
  seed: 3
variants:
  join: {args+: [--sync, join]}
  early:
    args: [--sync, early]
    env: {SEED: null, EXTRA: x}
    torchrun: {nproc_per_node: 4}
    seed: null
"""


def test_every_key_but_what_to_run_has_a_default(read, folder):
    config = read("job: {script: train.py}")
    assert config.name == "a"
    assert list(config.variants) == ["job"]
    assert config.baseline == "job"
    assert (config.repeats, config.warmup_runs) == (4, 1)
    assert config.runs == folder / "runs"
    assert config.energy.meter == "auto"
    assert config.compare.total == "auto"
    job = config.variants["job"]
    assert job.torchrun == Torchrun(nproc_per_node=1, nnodes=1, max_restarts=0)
    assert (job.script, job.args, job.env, job.cwd) == ("train.py", (), {}, str(folder))


def test_a_variant_extends_the_job(read):
    join = read(TWO).variants["join"]
    assert join.args == ("--layers", "2", "--sync", "join")
    assert join.env == {"OMP_NUM_THREADS": "1", "SEED": "7"}
    assert (join.torchrun.nproc_per_node, join.torchrun.max_restarts, join.seed) == (2, 1, 3)


def test_a_variant_overrides_the_job_and_takes_away_with_null(read):
    early = read(TWO).variants["early"]
    assert early.args == ("--sync", "early")
    assert early.env == {"OMP_NUM_THREADS": "1", "EXTRA": "x"}
    assert (early.torchrun.nproc_per_node, early.torchrun.max_restarts, early.seed) == (4, 1, None)


def test_env_merges_with_and_without_plus(read):
    config = read(
        "job: {script: train.py, env: {A: a, B: b}}\nvariants:\n  x: {env: {B: x}}\n  y: {env+: {B: x}}\n"
    )
    assert config.variants["x"].env == config.variants["y"].env == {"A": "a", "B": "x"}


def test_a_variant_replaces_what_runs_whichever_way_it_says_so(read):
    config = read("job: {script: train.py}\nvariants: {a: , b: {module: m}, c: {command: [srun, x]}}\n")
    ran = {name: (job.script, job.module, job.command) for name, job in config.variants.items()}
    assert ran == {"a": ("train.py", None, None), "b": (None, "m", None), "c": (None, None, ("srun", "x"))}


def test_lists_inside_torchrun_extend_too(read):
    config = read(
        "job: {script: train.py, torchrun: {extra: [--a, 1]}}\n"
        "variants:\n  x: {torchrun: {extra+: [--b]}}\n  y: {torchrun: {extra: [--b]}}\n"
    )
    assert config.variants["x"].torchrun.extra == ("--a", "1", "--b")
    assert config.variants["y"].torchrun.extra == ("--b",)


def test_the_first_variant_is_the_baseline_unless_named(read):
    assert read(TWO).baseline == "join"
    assert read("baseline: early\n" + TWO).baseline == "early"


@pytest.mark.parametrize("written", ["010", "0.10", "1e5", "1_000", "yes", "12:30:00", "2024-01-01", "0x1F"])
def test_texts_reach_the_job_as_they_were_written(read, written):
    job = read(f"job: {{script: train.py, args: [{written}], env: {{A: {written}}}}}").variants["job"]
    assert (job.args, job.env) == ((written,), {"A": written})


def test_empty_sections_are_their_defaults(read):
    config = read("job:\n  script: train.py\n  args:\n  env:\n  torchrun:\ncapture:\nvariants:\n")
    assert config == read("job: {script: train.py}")


def test_anchors_and_merge_keys(read):
    config = read(
        "job: &base {script: train.py, args: [&layers '2', *layers]}\n"
        "variants:\n  a: {<<: *base, seed: 1}\n  b: {<<: [{seed: 5}, *base], args: [x]}\n"
    )
    assert (config.variants["a"].args, config.variants["a"].seed) == (("2", "2"), 1)
    assert (config.variants["b"].args, config.variants["b"].seed) == (("x",), 5)


def test_the_null_meter_may_be_written_bare(read):
    assert read("job: {script: train.py}\nenergy: {meter: null}").energy.meter == "null"


def test_modelled_meters_are_a_known_profile_or_a_file(read, folder):
    (folder / "mine.yaml").write_text("x: 1\n")
    for meter in ("modelled:h200", "modelled:mine.yaml", "nvml", "rapl", "pmd2:/dev/ttyACM0", "auto"):
        assert read(f"job: {{script: train.py}}\nenergy: {{meter: '{meter}'}}").energy.meter == meter


def test_a_meter_that_measures_may_have_a_profile(read, folder):
    (folder / "mine.yaml").write_text("x: 1\n")
    assert read("job: {script: train.py}\nenergy: {meter: nvml, profile: mine.yaml}").energy.profile == "mine.yaml"


def test_scripts_are_looked_for_in_the_jobs_folder(read, folder):
    (folder / "src").mkdir()
    (folder / "src" / "t.py").touch()
    job = read("job: {script: t.py, cwd: src}").variants["job"]
    assert (job.script, job.cwd) == ("t.py", str(folder / "src"))


def test_in_a_folder_per_run_the_script_is_found_where_the_audit_started(read, folder):
    job = read("job: {script: train.py, cwd: '{run_dir}/w'}").variants["job"]
    assert (job.script, job.cwd) == (str(folder / "train.py"), "{run_dir}/w")
    job = read("job: {script: train.py, cwd: 'w-{variant}'}").variants["job"]
    assert (job.script, job.cwd) == (str(folder / "train.py"), f"{folder}/w-{{variant}}")


def test_braces_in_the_path_to_the_folder_stay_literal(read, folder, monkeypatch):
    odd = folder / "{x}"
    odd.mkdir()
    (odd / "train.py").touch()
    (odd / "b.yaml").write_text("job: {script: train.py}")
    monkeypatch.chdir(odd)
    assert load(Path("b.yaml")).variants["job"].cwd == f"{folder}/{{{{x}}}}"


def test_records_go_where_they_are_told(read, folder):
    assert read("job: {script: train.py}\nruns: out/2026").runs == folder / "out" / "2026"
    assert read("job: {script: train.py}", "runs=/elsewhere").runs == Path("/elsewhere")


def test_a_byte_order_mark_is_no_part_of_the_first_key(folder):
    (folder / "b.yaml").write_bytes(b"\xef\xbb\xbfjob: {script: train.py}\n")
    assert load("b.yaml").name == "b"
