"""Whatever a file or an override holds: a configuration, or one line that says why not."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magneton_dist.config import AuditConfig, load, plan
from magneton_dist.errors import ConfigError

KEYS = [
    "job", "variants", "script", "args", "args+", "env", "env+", "torchrun", "extra", "seed", "cwd", "command",
    "capture", "max_mb", "energy", "meter", "compare", "total", "name", "baseline", "a", "runs",
    "module", "nproc_per_node", "",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["train.py", "a", "{run_dir}", "{seed}", "modelled:h200", "auto", "-1", "1e3"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5)
FUZZ = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150
)


def loads_or_says_why(folder, *overrides: str) -> None:
    refusal = config = None
    try:
        config = load("f.yaml", overrides)
    except ConfigError as error:
        refusal = error
    if config is None:
        assert refusal is not None
        assert refusal.where
        assert "\n" not in str(refusal)
    else:
        assert isinstance(config, AuditConfig)
        assert config.baseline in config.variants
        assert plan(config).startswith("audit ")


@FUZZ
@given(DOCUMENTS)
def test_documents(folder, document):
    (folder / "f.yaml").write_text(json.dumps({"job": {"script": "train.py"}, **document}), encoding="utf-8")
    loads_or_says_why(folder)


@FUZZ
@given(st.text(max_size=60))
def test_texts(folder, text):
    (folder / "f.yaml").write_text(text, encoding="utf-8", errors="replace")
    loads_or_says_why(folder)


@FUZZ
@given(st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), st.sampled_from(["=", "+=", "[0]="]), VALUES)
def test_overrides(folder, keys, operator, value):
    (folder / "f.yaml").write_text("job: {script: train.py, args: [a]}\nvariants: {a: }\n")
    loads_or_says_why(folder, f"{'.'.join(keys)}{operator}{json.dumps(value)}")
