"""What is said of differences that cannot be flipped in an operator, and of times that do not tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from magneton_dist.diagnosis import operators
from magneton_dist.diagnosis.calls import Call, Tensor
from magneton_dist.diagnosis.factors import Factor
from magneton_dist.diagnosis.key_variable import KeyVariable
from magneton_dist.diagnosis.laboratory import Laboratory, OutOfTimeError
from magneton_dist.diagnosis.operators import Investigation
from magneton_dist.diagnosis.pairs import Pair
from magneton_dist.diagnosis.prove import Proof, Verdict
from magneton_dist.diagnosis.trial import Signature

CALL = Call("aten.relu.default", ({"v": 0},), (Tensor((4,), (1,), "float32", "cpu"),))
DDP = "ddp.find_unused_parameters"
FULL = "fsdp.reshard_after_forward"


def investigation(
    monkeypatch: pytest.MonkeyPatch, a: dict[str, str], b: dict[str, str], cheap: str | None = "b"
) -> Investigation:
    """Of two sides that make the same call, with these settings."""
    monkeypatch.setattr(operators, "candidates", lambda *_: [Pair(CALL, CALL, 0.1)])
    monkeypatch.setattr(operators, "parting", lambda *_: None)
    one, other = (SimpleNamespace(name=name, settings=settings) for name, settings in (("a", a), ("b", b)))
    sides: Any = (one, other)
    return Investigation(sides, cheap, Laboratory(60.0), {}, ())


def test_arguments_of_wrappers_are_named_with_their_values_and_not_called_a_cause(monkeypatch: pytest.MonkeyPatch):
    found = investigation(monkeypatch, {DDP: "False", FULL: "True"}, {DDP: "True", FULL: "False"}).run()
    assert (found.proof, found.cause, found.fix) == ("none", None, "")
    assert found.lines == [
        f"differ, but cannot be flipped in an operator: {DDP} (False in a, True in b), {FULL} (True in a, False in b)",
        "no cause among settings, environment and arguments: what can be flipped is the same in both variants",
    ]


class Trial:
    """A call that runs the same kernels whatever is flipped; b takes longer."""

    gpu = False

    def __init__(self, *_: object) -> None:
        self.factors = [Factor("setting", f"torch.{name}", ("1", "2")) for name in "xyz"]
        self.refused = {"torch.z"}

    def signature(self, _: object) -> Signature:
        return Signature(("aten::relu",))


class DifferentKernels(Trial):
    """Its kernels are others once torch.x is flipped."""

    def signature(self, flipped: Any) -> Signature:
        return Signature(("aten::relu", "aten::copy_") if 0 in flipped else ("aten::relu",))

    behaves = signature


def test_times_name_only_what_they_prove_and_what_was_not_flipped_is_not_cleared(monkeypatch: pytest.MonkeyPatch):
    settings = {f"torch.{name}": "1" for name in "xyz"}, {f"torch.{name}": "2" for name in "xyz"}
    monkeypatch.setattr(operators, "Trial", Trial)
    monkeypatch.setattr(operators, "together", lambda trial, factors: factors)
    timing = SimpleNamespace(apart=True, seconds=(1.0, 2.0), behaves=None)
    monkeypatch.setattr(operators, "Timing", lambda _: timing)
    for verdict in (Verdict.EITHER, Verdict.TOGETHER, Verdict.ALIKE):
        monkeypatch.setattr(operators, "prove", lambda *_, verdict=verdict: Proof(verdict, (0,)))
        found = investigation(monkeypatch, *settings).run()
        assert (found.proof, found.cause, found.fix) == ("none", None, "")
        assert found.lines[-2:] == [
            "settings that this torch does not take, and that were not flipped: torch.z",
            "no cause: nothing that differs between the variants was shown to make a difference",
        ]
    monkeypatch.setattr(operators, "prove", lambda *_: Proof(Verdict.PROVED, (0,)))
    found = investigation(monkeypatch, *settings).run()
    assert found.proof == "proved"
    assert "not the cause: torch.y" in " ".join(found.lines)
    assert "not the cause: torch.y, torch.z" not in " ".join(found.lines)


@pytest.mark.parametrize(
    ("verdict", "name", "line", "fix"),
    [
        (Verdict.EITHER, "torch.x or torch.y", "any of torch.x, torch.y is enough, none of them was shown to be needed",
         "In a: `torch.x = 2`, as in b."),
        (Verdict.TOGETHER, "torch.x and torch.y",
         "torch.x, torch.y are enough together, not every one of them was shown to be needed",
         "In a: `torch.x = 2` and `torch.y = 2`, as in b."),
    ],
)  # fmt: skip
def test_what_is_not_proved_says_how_far_it_goes(
    verdict: Verdict, name: str, line: str, fix: str, monkeypatch: pytest.MonkeyPatch
):
    made = investigation(monkeypatch, {}, {})
    trial: Any = Trial()
    made._conclude(Proof(verdict, (0, 1)), trial, (2.0, 1.0), [])
    assert made.found.cause is not None
    assert (made.found.proof, made.found.cause.name, made.found.fix) == ("consistent", name, fix)
    assert made.found.lines == [f"consistent, not proved: {line}"]


def test_a_proof_counts_although_no_time_is_left_for_times_and_no_side_is_guessed(monkeypatch: pytest.MonkeyPatch):
    def over(*_: object) -> None:
        raise OutOfTimeError("over")

    layers = SimpleNamespace(lines=[], order=list, agreeing=lambda _: [], judged=lambda *_: None)
    monkeypatch.setattr(operators, "Trial", DifferentKernels)
    monkeypatch.setattr(operators, "together", lambda trial, factors: factors)
    monkeypatch.setattr(operators, "Layers", lambda *_: layers)
    monkeypatch.setattr(operators, "key_variable", lambda _: KeyVariable(error="over", ran=False))
    monkeypatch.setattr(operators, "interleaved_seconds", over)
    settings = {f"torch.{name}": "1" for name in "xyz"}, {f"torch.{name}": "2" for name in "xyz"}
    for cheap, fix in (("b", "In a: `torch.x = 2`, as in b."), (None, "")):
        made = investigation(monkeypatch, *settings, cheap)
        found = made.run()
        assert found.cause is not None
        assert (found.proof, found.cause.name, found.cause.seconds, found.fix) == ("proved", "torch.x", {}, fix)
        assert "key variable: could not run: over" in found.lines
