"""An annotated function in a job that is traced."""

import json
import os
import subprocess
import sys
from pathlib import Path

from magneton_dist.records.assembly import assemble
from magneton_dist.tracer.environment import launch_environment

JOB = """
import torch, magneton_dist

@magneton_dist.annotate("swish", outputs=("y",))
def swish(x):
    return x * torch.sigmoid(x)

model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    swish(model(torch.ones(2, 16))).sum().backward()
    optimizer.step()
"""


def test_it_is_one_operator_of_the_traced_step(tmp_path: Path):
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "token").write_text("t")
    capture = {"warmup_steps": 1, "graph_steps": 1}
    environment = launch_environment(os.environ, str(spool), "t", capture)
    # away from this folder: the job must find the package by the tracer alone
    subprocess.run([sys.executable, "-c", JOB], env=environment, cwd=tmp_path, timeout=150, check=True)
    (segments,) = (folder for folder in spool.iterdir() if folder.is_dir())
    tables = assemble(segments)
    ops = tables["ops"]
    assert tables["faults"].filter(where="graph").is_empty()
    forward = ops.filter(phase="forward")["name"].to_list()
    at = forward.index("annotated.swish")
    assert forward[at - 2 : at] == ["aten.t.default", "aten.addmm.default"]
    assert not any("sigmoid" in name for name in forward)
    assert ops["name"].str.contains("sigmoid_backward").sum() == 1
    (swish,) = ops.filter(name="annotated.swish").iter_rows(named=True)
    given, result = json.loads(swish["arguments"])
    assert (given["name"], result["name"]) == ("x", "y")
    assert given["value"]["v"] in ops.filter(name="aten.addmm.default")["outputs"].explode()
    assert tables["steps"].filter(kind="traced")["step"].to_list() == [swish["step"]] == [1]
