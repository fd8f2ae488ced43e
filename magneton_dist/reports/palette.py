"""Device states as reports show them: one name, one letter, one look for each.

A state has two axes, phase and activity; a reader wants one word. What a finished rank burns inside
collectives is *shadow*, the one thing that must stand out.
"""

from __future__ import annotations

from dataclasses import dataclass

from magneton_dist.timeline.states import derived_name


@dataclass(frozen=True)
class Look:
    """How one shown state looks.

    `code` is its letter in the page's data, `glyph` and `plain` its character in a terminal (Unicode and
    ASCII), `style` its rich style; colours of the page are in its style sheet under ``--NAME``.
    """

    name: str
    code: str
    glyph: str
    plain: str
    style: str
    meaning: str


LOOKS: tuple[Look, ...] = (
    Look("compute", "c", "█", "#", "blue", "kernels, no collective"),
    Look("overlap", "o", "▓", "=", "blue", "kernels and a collective together"),
    Look("transfer", "t", "▒", "-", "cyan", "only a collective, every peer has arrived"),
    Look("wait", "w", "░", "~", "yellow", "only a collective, a peer has not arrived yet"),
    Look("idle", "i", "·", ".", "bright_black", "nothing on the device"),
    Look("unresolved", "u", "▪", "%", "bright_black", "a step without kernel data"),
    Look("shadow", "s", "╳", "X", "bold red", "no work left, yet it runs collectives for its peers"),
    Look("done", "d", "_", "_", "bright_black", "no work left, process parked, its context held"),
    Look("released", "r", "╌", ":", "bright_black", "no work left, process gone, context given back"),
    Look("residual", "x", "?", "?", "magenta", "energy of the device that no state accounts for"),
)
WASTE = ("shadow", "wait")
_NAMES = frozenset(look.name for look in LOOKS)


def shown_state(phase: str, activity: str) -> str:
    """The look's name for a state of two axes; an activity without a look is unresolved."""
    name = derived_name(phase, activity)
    return name if name in _NAMES else "unresolved"


def split_key(key: str) -> str:
    """`shown_state` of a ``phase/activity`` key of audit.json."""
    phase, _, activity = key.partition("/")
    return shown_state(phase, activity)
