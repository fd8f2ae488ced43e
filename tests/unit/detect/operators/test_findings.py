"""From wasted operators to findings: what is told, where, and how much it costs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from .recorded import STEPS, findings, line_of


class Wasteful:
    """Every kind of waste once, each on a line of its own."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer, self.out, self.x = nn.Linear(256, 256), nn.Linear(256, 256), torch.randn(512, 256)
        self.optimizer = torch.optim.SGD([*self.layer.parameters(), *self.out.parameters()], lr=1e-3)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()

    def loss(self) -> torch.Tensor:
        with torch.no_grad():
            one = torch.softmax(self.x.exp(), -1)  # first
            two = torch.softmax(self.x.exp(), -1)  # redundant
        y = self.layer(one)
        torch.softmax(self.layer(two), -1)  # dead
        return self.out(y.clone() + two).square().mean()  # copy


def test_each_kind_is_told_at_its_line_with_its_cost():
    found = {f.kind: f for f in findings(Wasteful())}
    assert found.keys() == {"redundant-op", "dead-op", "useless-copy"}
    for kind, text in (("redundant-op", "redundant"), ("dead-op", "dead"), ("useless-copy", "copy")):
        finding = found[kind]
        assert finding.where.stack[0] == f"{__file__}:{line_of(text, __file__)} loss"
        assert finding.ranks == [0, 1]
        assert finding.energy_kind == "modelled"
        assert finding.joules is not None
        assert finding.share == pytest.approx(finding.joules.mean / (2 * 2.0 * STEPS))
        assert 0.005 < finding.share < 0.9
        assert finding.seconds > 0
    assert found["redundant-op"].evidence["operators"] == ["exp", "_softmax"]
    assert found["redundant-op"].evidence["computed_before_at"] == [f"{__file__}:{line_of('first', __file__)} loss"]
    # the product that is not read is the one that was computed before: it is told once
    assert found["dead-op"].evidence["operators"] == ["addmm", "_softmax"]
    assert found["useless-copy"].evidence["bytes_per_step"] == 2 * 512 * 256 * 4


def test_where_joules_are_unknown_the_seconds_are_told():
    for finding in findings(Wasteful(), joules_per_step=None):
        assert (finding.joules, finding.share, finding.energy_kind) == (None, None, "unmeasured")
        assert finding.seconds > 0


def test_waste_must_be_waste_in_every_traced_step():
    job = Wasteful()
    count = [0]

    def step() -> None:
        count[0] += 1
        if count[0] == 3:  # the second traced one: recorded inputs differ, operators do not
            job.x = torch.randn(512, 256)
        job()

    assert {f.kind for f in findings(step, steps=2)} == {"redundant-op", "dead-op", "useless-copy"}


def test_steps_of_another_structure_are_not_billed():
    job = Wasteful()
    count = [0]

    def step() -> None:
        count[0] += 1
        job.optimizer.zero_grad()
        job.loss().backward()
        if count[0] % 2 == 0:  # every second step only accumulates
            job.optimizer.step()

    alternating = {f.kind: f for f in findings(step, steps=2)}
    assert alternating.keys() == {"redundant-op", "dead-op", "useless-copy"}
    always = {f.kind: f for f in findings(Wasteful())}
    for kind, finding in alternating.items():
        # the same bytes a step, at 1 ns each, in one step of two
        assert finding.seconds == pytest.approx(always[kind].seconds / 2, rel=1e-6)


class Recast:
    """A layer in two regions of autocast: its weight is cast in each."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(256, 256, bias=False)
        self.one, self.other = torch.randn(8, 256), torch.randn(8, 256)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=1e-3)

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            one = self.layer(self.one)
        with torch.autocast("cpu", torch.bfloat16):
            other = self.layer(self.other)  # again
        (one + other).float().square().mean().backward()
        self.optimizer.step()


def test_a_cast_done_twice_is_advised_as_a_cast():
    (finding,) = findings(Recast())
    assert (finding.kind, finding.evidence["operators"]) == ("redundant-op", ["_to_copy"])
    assert finding.where.stack[0] == f"{__file__}:{line_of('again', __file__)} __call__"
    assert finding.title.startswith("each step casts what ")
    assert "torch.autocast keeps what it has cast of parameters until its region ends" in finding.fix
