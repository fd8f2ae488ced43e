from __future__ import annotations

import json
import os

import msgspec
import pytest

from magneton_dist.config import AuditConfig, Job
from magneton_dist.diagnosis.applied import SETTINGS, SITE, not_held, with_fix
from magneton_dist.errors import InputError
from magneton_dist.records.audit import Audit, Cause, Finding, Machine, Place

FLASH = "torch.backends.cuda.flash_sdp_enabled"
CONFIG = AuditConfig(
    name="x", baseline="a",
    variants={
        "a": Job(script="train.py"),
        "b": Job(script="train.py", env={"MKL_CBWR": "COMPATIBLE", "PYTHONPATH": "/p"}),
    },
)  # fmt: skip


def finding(layer: str, name: str, in_a: str, in_b: str, proof: str = "proved") -> Finding:
    """Variant b needs more."""
    cause = Cause(layer, name, {"a": in_a, "b": in_b})
    base = Finding("region", "mm", "b", None, "modelled", None, 1.0, [0], Place(), {}, "In b: x", cause)
    return msgspec.structs.replace(base, proof=proof)


def test_a_setting_is_applied_by_the_start_up_hook_before_what_was_on_the_path():
    fixed = with_fix(CONFIG, finding("setting", FLASH, "True", "False"))
    assert list(fixed.variants) == ["b", "b-fixed"]
    assert (fixed.baseline, fixed.variants["b"], fixed.diagnose.budget) == ("b", CONFIG.variants["b"], 0.0)
    env = fixed.variants["b-fixed"].env
    assert json.loads(env[SETTINGS]) == [[FLASH, "True"]]
    assert env["PYTHONPATH"].split(os.pathsep) == [str(SITE), "/p"]
    assert (SITE / "sitecustomize.py").is_file()


def test_a_variable_is_set_as_the_cheaper_variant_has_it_or_taken_away():
    assert with_fix(CONFIG, finding("environment", "MKL_CBWR", "AUTO", "COMPATIBLE")).variants["b-fixed"].env == {
        "MKL_CBWR": "AUTO", "PYTHONPATH": "/p",
    }  # fmt: skip
    assert with_fix(CONFIG, finding("environment", "MKL_CBWR", "unset", "COMPATIBLE")).variants["b-fixed"].env == {
        "PYTHONPATH": "/p"
    }
    with pytest.raises(InputError, match="comes from your shell"):
        with_fix(CONFIG, finding("environment", "OMP_NUM_THREADS", "unset", "1"))


def test_several_are_applied_together():
    both = finding("setting and environment", f"{FLASH} and MKL_CBWR", "True, AUTO", "False, COMPATIBLE")
    env = with_fix(CONFIG, both).variants["b-fixed"].env
    assert (json.loads(env[SETTINGS]), env["MKL_CBWR"]) == ([[FLASH, "True"]], "AUTO")


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (finding("argument", "layout of input", "contiguous", "transposed"), "an edit of your code"),
        (finding("setting and argument", f"{FLASH} and dtype of x", "True, y", "False, z"), "an edit of your code"),
        (finding("branch", "self.weights", "False", "True", proof="consistent"), "no cause of this finding is proved"),
        (msgspec.structs.replace(finding("setting", FLASH, "1", "0"), cause=None), "no cause of this finding"),
        (msgspec.structs.replace(finding("setting", FLASH, "1", "0"), variant="c"), "has no variant c"),
    ],
)
def test_what_cannot_be_applied_is_refused(of, message):
    with pytest.raises(InputError, match=message):
        with_fix(CONFIG, of)


@pytest.mark.parametrize(("seen", "lost"), [({"b": "False", "b-fixed": "True"}, []), (None, [FLASH])])
def test_a_setting_that_the_record_does_not_show_did_not_hold(seen, lost):
    audit = Audit("x", "", Machine([], [], "", 1, {}), "modelled", "", {}, None, [], [])
    audit = msgspec.structs.replace(audit, settings={} if seen is None else {FLASH: seen})
    assert not_held(audit, finding("setting", FLASH, "True", "False")) == lost
