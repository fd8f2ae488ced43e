"""Every error of a configuration is one line: file, line, key, what, and what to do."""

from __future__ import annotations

import pytest

from magneton_dist.config import load
from magneton_dist.errors import ConfigError

JOB = "job: {script: train.py}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # keys
        ("repeat: 3\n" + JOB, "a.yaml:1: repeat: unknown key (did you mean 'repeats'? allowed: name, variants, "
         "baseline, repeats, warmup_runs, capture, energy, compare, diagnose, runs, job)"),
        ("job:\n  script: train.py\n  torchrunn: {}\n", "a.yaml:3: job.torchrunn: unknown key (did you mean "
         "'torchrun'? allowed: torchrun, script, module, command, args, env, cwd, python, seed, stop_after_steps, "
         "timeout_s)"),
        (JOB + "variants:\n  a:\n    arg+: [x]\n", "a.yaml:4: variants.a.arg+: unknown key (did you mean 'args'? "
         "allowed: torchrun, script, module, command, args, env, cwd, python, seed, stop_after_steps, timeout_s)"),
        (JOB + "job: {}\n", "a.yaml:2: job: given twice, first at a.yaml:1"),
        (JOB + "variants:\n  a:\n    torchrun:\n      nnodes: 1\n      nnodes: 2\n",
         "a.yaml:6: variants.a.torchrun.nnodes: given twice, first at a.yaml:5"),
        ("job: {script: train.py, args+: [x]}\n", "a.yaml:1: job.args+: unknown key (did you mean 'args'? allowed: "
         "torchrun, script, module, command, args, env, cwd, python, seed, stop_after_steps, timeout_s)"),
        (JOB + "variants: {a: {seed+: 1}}\n",
         "a.yaml:2: variants.a.seed+: nothing to extend: it holds one value (write seed: ...)"),
        ("? [a]\n: 1\n", "a.yaml:1: a key must be a word"),
        # types and ranges
        (JOB + "repeats: 0\n", "a.yaml:2: repeats: must be greater than or equal to 1, not 0"),
        (JOB + "repeats: many\n", "a.yaml:2: repeats: must be a valid integer, not 'many'"),
        (JOB + "repeats: yes\n", "a.yaml:2: repeats: must be a valid integer, not yes"),
        (JOB + "repeats: 4.0\n", "a.yaml:2: repeats: must be a valid integer, not 4.0"),
        (JOB + "repeats:\n", "a.yaml:2: repeats: must be a valid integer, not nothing"),
        (JOB + "compare: {total: some}\n", "a.yaml:2: compare.total: must be a valid number or 'auto', not 'some'"),
        (JOB + "compare: {region: .nan}\n", "a.yaml:2: compare.region: must be a finite number, not .nan"),
        (JOB + "compare: {by: power}\n",
         "a.yaml:2: compare.by: must be 'energy', 'time', 'memory' or 'values', not 'power'"),
        (JOB + "capture: 3\n", "a.yaml:2: capture: must be a mapping of keys to values, not 3"),
        ("job: [train.py]\n", "a.yaml:1: job: must be a mapping of keys to values, not a list"),
        ("job:\n  script: train.py\n  args: --sync join\n",
         "a.yaml:3: job.args: must be a list, not '--sync join' (write [a, b])"),
        (JOB + "variants: [a, b]\n", "a.yaml:2: variants: must be a mapping of keys to values, not a list"),
        (JOB + "variants: {}\n", "a.yaml:2: variants: no variants (name at least one, or leave the key out)"),
        ("job:\n  script: train.py\n  env: {A: }\n", "a.yaml:3: job.env.A: must be a valid string, not nothing"),
        ("job:\n  script: train.py\n  env: {A: [1]}\n",
         "a.yaml:3: job.env.A: must be text, not a list"),
        ("job:\n  script: train.py\n  torchrun: {nproc_per_node: 0}\n",
         "a.yaml:3: job.torchrun.nproc_per_node: must be greater than or equal to 1, not 0"),
        (JOB + "runs:\n", "a.yaml:2: runs: must be a folder, not ''"),
        (JOB + "runs: [a]\n", "a.yaml:2: runs: must be text, not a list"),
        ("job: {script: train.py, torchrun: {master_port: 70000}}\n",
         "a.yaml:1: job.torchrun.master_port: must be less than or equal to 65535, not 70000"),
        ("repeats: 0\nwarmup_runs: -1\n" + JOB,
         "a.yaml:1: repeats: must be greater than or equal to 1, not 0; 1 more wrong"),
        # the line of a job's key, whichever variant trips over it
        ("job:\n  script: train.py\n  seed: x\nvariants: {a: , b: }\n",
         "a.yaml:3: job.seed: must be a valid integer, not 'x'"),
        # what runs
        ("name: x\n", "a.yaml:1: job: nothing to run (give script, module or command)"),
        ("job: {script: gone.py}\n", "a.yaml:1: job.script: there is no file 'gone.py' (looked in FOLDER)"),
        ("job: {script: .}\n", "a.yaml:1: job.script: there is no file '.' (looked in FOLDER)"),
        ("job: {script: ''}\n", "a.yaml:1: job.script: empty"),
        ("job: {script: train.py, cwd: nowhere}\n", "a.yaml:1: job.cwd: there is no folder 'nowhere'"),
        ("job:\n  script: train.py\n  module: m\n",
         "a.yaml:3: job.module: cannot stand beside script, at a.yaml:2 (give one of them)"),
        ("job: {command: [x], python: p}\n",
         "a.yaml:1: job.python: has no effect on a command (write it into the command itself)"),
        ("job: {command: [x], torchrun: {nproc_per_node: 2, max_restarts: 1}}\n",
         "a.yaml:1: job.torchrun.max_restarts: has no effect on a command (write it into the command itself)"),
        # names
        (JOB + "name: ../up\n", "a.yaml:2: name: '../up' cannot name a folder (letters, digits, - and _, at most 64)"),
        (JOB + "variants: {'a/b': }\n",
         "a.yaml:2: variants.a/b: 'a/b' cannot name a folder (letters, digits, - and _, at most 64)"),
        (JOB + "variants: {join: , early: }\nbaseline: jion\n",
         "a.yaml:3: baseline: there is no variant 'jion' (did you mean 'join'? allowed: join, early)"),
        (JOB + "energy: {meter: nvlm}\n", "a.yaml:2: energy.meter: there is no meter 'nvlm' "
         "(did you mean 'nvml'? allowed: auto, nvml, rapl, hwmon, pmd2, pmd-usb, zeus, null, modelled:PROFILE)"),
        (JOB + "energy:\n  meter: modelled:h20\n", "a.yaml:3: energy.meter: there is no profile 'h20' "
         "(a file, or did you mean 'h200'? allowed: a100, b200, h100, h200, mi300x, v100)"),
        (JOB + "energy:\n  meter: nvml\n  profile: h20\n", "a.yaml:4: energy.profile: there is no profile 'h20' "
         "(a file, or did you mean 'h200'? allowed: a100, b200, h100, h200, mi300x, v100)"),
        (JOB + "energy: {meter: modelled:h200, profile: h200}\n",
         "a.yaml:2: energy.meter: two profiles: the meter's and energy.profile (leave one out)"),
        ("job: {script: train.py, env: {'A=B': c}}\n",
         "a.yaml:1: job.env.A=B: cannot name an environment variable (letters, digits and _)"),
        ("job: {script: train.py, env: {MAGNETON_DIST_SPOOL: c}}\n",
         "a.yaml:1: job.env.MAGNETON_DIST_SPOOL: is set by the audit itself (leave it out)"),
        # placeholders
        ("job:\n  script: train.py\n  args:\n  - '{run_dri}'\n",
         "a.yaml:4: job.args[0]: there is no placeholder {run_dri} (did you mean 'run_dir'? "
         "allowed: run_dir, variant, repeat, seed; {{ is a literal brace)"),
        ("job: {script: train.py, args: ['{\"a\"']}\n",
         "a.yaml:1: job.args[0]: a single { in '{\"a\"' (double a literal brace: {{ }})"),
        ("job: {script: train.py, env: {A: '{seed}'}}\n",
         "a.yaml:1: job.env.A: {seed} without a seed (give seed: in the job or the variant)"),
        ('job: {script: train.py, args: ["a\\0b"]}\n', "a.yaml:1: job.args[0]: holds a NUL character"),
        ("job:\n  script: train.py\n  args: [{run_dir}]\n",
         "a.yaml:3: job.args[0]: must be text, not a mapping (put a text with { } in quotes)"),
        # YAML itself
        ("", "a.yaml: empty (give at least job: {script: train.py})"),
        ("# nothing\n", "a.yaml: empty (give at least job: {script: train.py})"),
        ("- a\n", "a.yaml:1: must be a mapping of keys to values, not a list"),
        ("just words\n", "a.yaml:1: must be a mapping of keys to values, not 'just words'"),
        ("job:\n\tscript: train.py\n", "a.yaml:2: not YAML: found character '\\t' that cannot start any token "
         "(indent with spaces, not tabs)"),
        ("job: {script: {run_dir}x}\n", "a.yaml:1: not YAML: expected ',' or '}', but got '<scalar>' "
         "(put a text with { } in quotes)"),
        (JOB + "---\n" + JOB, "a.yaml:2: not YAML: but found another document"),
        ("job: {script: !!python/name:os.system x}\n",
         "a.yaml:1: job.script: tag 'tag:yaml.org,2002:python/name:os.system' is not allowed (plain values only)"),
        ("job: !!set {a}\n", "a.yaml:1: job: tag 'tag:yaml.org,2002:set' is not allowed (plain values only)"),
        ("job: {seed: !!int x}\n", "a.yaml:1: job.seed: cannot read 'x' (put it in quotes)"),
        ("job: {<<: 3}\n", "a.yaml:1: << needs a mapping"),
        ("job: *gone\n", "a.yaml:1: not YAML: found undefined alias 'gone'"),
        ("name: \"a\\x07\"\n" + JOB,
         "a.yaml:1: name: 'a\\x07' cannot name a folder (letters, digits, - and _, at most 64)"),
    ],
)  # fmt: skip
def test_message(refused, folder, text, message):
    assert refused(text) == message.replace("FOLDER", str(folder))


def test_aliases_that_expand_without_end_are_refused_at_once(refused):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    assert "expands beyond all measure (write it without aliases)" in refused(bomb)


def test_merge_keys_that_expand_without_end_are_refused_at_once(refused):
    bomb = "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 12)
    )
    assert "expands beyond all measure (write it without aliases)" in refused(bomb)


def test_an_alias_to_itself_is_refused(refused):
    assert "expands beyond all measure" in refused("job: &a {env: *a}\n")
    assert "expands beyond all measure" in refused("job: &a {<<: *a}\n")


def test_nesting_beyond_the_parser_is_refused(refused):
    assert refused("job: " + "[" * 5000) == "a.yaml: nested too deeply"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"name: \xff\n", "b.yaml: not UTF-8 text at byte 6"),
        (b"name: a\0b\n", "b.yaml: not YAML: unacceptable character #x0000: special characters are not allowed"),
        (b"#" * (1 << 20) + b"\n", "b.yaml: larger than 1048576 bytes (is it a configuration?)"),
    ],
)
def test_files_that_are_no_text(folder, raw, message):
    (folder / "b.yaml").write_bytes(raw)
    with pytest.raises(ConfigError) as caught:
        load("b.yaml")
    assert str(caught.value) == message


def test_files_that_cannot_be_read(folder):
    for name, message in [("gone.yaml", "No such file or directory"), (".", "Is a directory")]:
        with pytest.raises(ConfigError) as caught:
            load(name)
        assert str(caught.value) == f"{name}: cannot be read: {message}"
