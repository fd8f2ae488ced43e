"""The order of runs, their command lines, and the plan in words."""

from __future__ import annotations

import sys

import pytest

from magneton_dist.config import AuditConfig, Job, Torchrun, command_line, environment, plan, schedule

VALUES = {"run_dir": "/r", "variant": "a", "repeat": "0", "seed": "7"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def config(variants: str, repeats: int, warmup_runs: int = 0) -> AuditConfig:
    return AuditConfig(
        name="x", variants={v: Job(script="t.py") for v in variants}, baseline=variants[0],
        repeats=repeats, warmup_runs=warmup_runs,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("variants", "repeats", "order"),
    [("AB", 4, "ABBABAAB"), ("AB", 5, "ABBABAABAB"), ("A", 3, "AAA"), ("ABC", 4, "ABCCBACBAABC")],
)
def test_repeats_are_interleaved(variants, repeats, order):
    runs = schedule(config(variants, repeats))
    assert "".join(run.variant for run in runs) == order
    assert {(run.variant, run.repeat) for run in runs} == {(v, r) for v in variants for r in range(repeats)}


def test_each_variant_stands_before_the_other_as_often_over_four_repeats():
    first = [run.variant for run in schedule(config("AB", 8))[::2]]
    assert first.count("A") == first.count("B") == 4


def test_discarded_runs_come_first_and_have_their_own_folders():
    runs = schedule(config("AB", 1, warmup_runs=3))
    assert [(run.variant, run.label, run.discarded) for run in runs] == [
        ("A", "warmup0", True), ("B", "warmup0", True), ("A", "warmup1", True), ("A", "0", False), ("B", "0", False),
    ]  # fmt: skip


def test_a_script_on_one_node():
    options = Torchrun(nproc_per_node=2, extra=("--tee", "3"))
    job = Job(script="t.py", args=("--out", "{run_dir}"), torchrun=options)
    assert command_line(job, VALUES) == [
        *TORCHRUN, "--nnodes", "1", "--nproc-per-node", "2", "--max-restarts", "0", "--standalone",
        "--tee", "3", "t.py", "--out", "/r",
    ]  # fmt: skip


def test_a_module_with_a_port_and_another_python():
    job = Job(module="pkg.train", python="/env/bin/python", torchrun=Torchrun(master_port=29501))
    assert command_line(job, VALUES) == [
        "/env/bin/python", "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "1",
        "--max-restarts", "0", "--master-port", "29501", "--module", "pkg.train",
    ]  # fmt: skip


def test_several_nodes_meet_where_they_are_told():
    job = Job(script="t.py", torchrun=Torchrun(nnodes=2))
    line = command_line(job, VALUES, ["--rdzv-endpoint", "h:1"])
    assert line[3:] == [
        "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "0", "--rdzv-endpoint", "h:1", "t.py",
    ]  # fmt: skip


def test_a_command_is_run_as_it_is_with_the_arguments_behind():
    job = Job(command=("srun", "-n", "2", "{variant}"), args=("--x",))
    assert command_line(job, VALUES) == ["srun", "-n", "2", "a", "--x"]


def test_environment_values_are_filled_in():
    assert environment(Job(env={"A": "{run_dir}/{seed}", "B": "{{}}"}), VALUES) == {"A": "/r/7", "B": "{}"}


def test_the_plan_in_words(read, folder):
    text = plan(
        read(
            "name: demo\n"
            "job: {script: train.py, torchrun: {nproc_per_node: 2}, args: [--n, 3], seed: 5, timeout_s: 90,"
            " env: {WANDB_API_KEY: hunter2, A: a b}}\n"
            "variants:\n  join: {args+: [--sync, join]}\n  early: {args+: [--sync, early], env: {A: c}}\n"
            "repeats: 2\nenergy: {meter: 'modelled:h200', period_ms: 20}\n"
        )
    )
    torchrun = " ".join([*TORCHRUN, "--nnodes 1 --nproc-per-node 2 --max-restarts 0 --standalone"])
    assert text == f"""\
audit      demo: 2 variant(s), 2 repeat(s) each
runs       5 one after the other, the first 1 discarded
order      (join) join early early join

variant    join (baseline)
  ranks    2: 2 on each of 1 node(s)
  command  {torchrun} train.py --n 3 --sync join
  folder   {folder}
  env      WANDB_API_KEY=(withheld) A='a b'
  seed     5
  limit    90 s

variant    early
  ranks    2: 2 on each of 1 node(s)
  command  {torchrun} train.py --n 3 --sync early
  folder   {folder}
  env      WANDB_API_KEY=(withheld) A=c
  differs  args: -[join] +[early]; env.A: 'a b' -> c
  seed     5
  limit    90 s

meter      modelled:h200, every 20 ms
records    {folder}/runs/demo-<UTC>/<variant>/<repeat>/
time       5 times the job's own, and about 25 s to start and stop"""


def test_variants_that_differ_in_nothing_are_said_to(read):
    assert "  differs  in nothing\n" in plan(read("job: {script: train.py}\nvariants: {a: , b: }\n"))
