"""What must not enter a record: passwords, tokens, keys, and values that look like them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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
# A word of an option's name: --api-key, --hf_token; not --tokens, which is a number of them.
_OPTION = re.compile(r"--?(?:[\w]+[-_])*(?:token|key|apikey|secret|password|passwd|credentials?)", re.IGNORECASE)
_MIXED = re.compile(r"[\w+=-]{24,}")


def secret_name(name: str) -> bool:
    """Does `name` announce a secret?"""
    upper = name.upper()
    return any(word in upper for word in _NAMES)


def looks_secret(text: str) -> bool:
    """Does `text` hold something that looks like a credential? Rather one setting too many withheld."""
    text = _DEVICES.sub("", text)
    return _VALUES.search(text) is not None or any(_random(run) for run in _MIXED.findall(text))


def withhold(arguments: Iterable[str]) -> Iterator[str]:
    """A command line with what announces or looks like a secret left out."""
    secret_next = False
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if secret_next and not argument.startswith("-"):
            yield WITHHELD
        elif equals and (_OPTION.fullmatch(option) or secret_variable(option) or looks_secret(value)):
            yield f"{option}={WITHHELD}"
        else:
            yield WITHHELD if looks_secret(argument) else argument
        secret_next = not equals and _OPTION.fullmatch(option) is not None


def secret_variable(name: str) -> bool:
    """Is `name` that of an environment variable that holds a secret?"""
    return not name.startswith("-") and name == name.upper() and secret_name(name)


def _random(run: str) -> bool:
    """Do small and capital letters and at least four digits mix in `run`, as they do in a key?"""
    return run != run.lower() and run != run.upper() and sum(map(str.isdigit, run)) >= 4
