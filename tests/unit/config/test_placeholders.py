from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magneton_dist.config.placeholders import expand, literal, placeholders

VALUES = {"run_dir": "/r", "variant": "join", "repeat": "2", "seed": "7"}


@pytest.mark.parametrize(
    ("text", "names", "expanded"),
    [
        ("plain", [], "plain"),
        ("{run_dir}/x-{repeat}", ["run_dir", "repeat"], "/r/x-2"),
        ('{{"lr": {seed}}}', ["seed"], '{"lr": 7}'),
        ("{{{variant}}}", ["variant"], "{join}"),
        ("{{run_dir}}", [], "{run_dir}"),
    ],
)
def test_expansion(text, names, expanded):
    assert placeholders(text) == names
    assert expand(text, VALUES) == expanded


@pytest.mark.parametrize("text", ["{", "}", "a}b", "{run_dir", "{a{b}", "{{{"])
def test_lone_braces_are_errors(text):
    with pytest.raises(ValueError, match=r"a single [{}] in"):
        placeholders(text)


def test_values_are_not_expanded_again():
    assert expand("{variant}", {"variant": "{seed}"}) == "{seed}"


@given(st.text())
def test_literal_texts_come_back(text):
    assert placeholders(literal(text)) == []
    assert expand(literal(text), {}) == text
