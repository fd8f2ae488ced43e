"""What must not enter a record: passwords, tokens, keys, and values that look like them."""

from __future__ import annotations

import re

WITHHELD = "(withheld)"

_NAMES = ("TOKEN", "KEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_DEVICES = re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F-]+")
_VALUES = re.compile(
    r"""
    ://[^/\s@]*@                                # a URL with user and password
  | \b(?:bearer|basic)\s+\S{8}                  # an HTTP authorization
  | \b(?:token|key|secret|passw(?:or)?d|credential)s?["']?\s*[=:]\s*\S  # NAME=... in it
  | -----BEGIN                                  # PEM
  | \beyJ[\w-]{8,}\.                            # JSON web token
  | \b(?:sk|pk|hf|gh[opsu]|glpat|xox[abp]|npm|pypi)[-_][\w-]{12,}
  | \b(?:AKIA|ASIA)[0-9A-Z]{12,}
  | \bAIza[\w-]{20,}
  | (?<![0-9a-fA-F])[0-9a-fA-F]{32,}(?![0-9a-fA-F])
    """,
    re.VERBOSE | re.IGNORECASE,
)
_MIXED = re.compile(r"[\w+=-]{24,}")


def secret_name(name: str) -> bool:
    """Does `name` announce a secret?"""
    upper = name.upper()
    return any(word in upper for word in _NAMES)


def looks_secret(text: str) -> bool:
    """Does `text` hold something that looks like a credential? Rather one setting too many withheld."""
    text = _DEVICES.sub("", text)
    return _VALUES.search(text) is not None or any(_random(run) for run in _MIXED.findall(text))


def _random(run: str) -> bool:
    """Do small and capital letters and at least four digits mix in `run`, as they do in a key?"""
    return run != run.lower() and run != run.upper() and sum(map(str.isdigit, run)) >= 4
