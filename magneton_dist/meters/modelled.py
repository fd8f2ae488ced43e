"""The meter of a machine without one: watts are modelled from device states, after the run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from magneton_dist.meters.meter import Conditions, Reading

if TYPE_CHECKING:
    from magneton_dist.meters.profile import Profile
    from magneton_dist.records.audit import EnergyKind


class ModelledMeter:
    """Has nothing to poll: `energy.model` makes the power table from states and `profile`."""

    provenance: EnergyKind = "modelled"
    sensor = "modelled"
    counter = ""
    period_s = 0.0
    window_ns = 0

    def __init__(self, profile: Profile, device: str) -> None:
        self.profile = profile
        self.name = f"modelled:{profile.name}"
        self.device = device
        self.source = profile.source

    def read(self) -> Reading:
        """A reading without figures: states are known only after the run."""
        return Reading(time.monotonic_ns(), None, None, reason="modelled from states after the run")

    def conditions(self) -> Conditions:
        """A model has no temperature."""
        return Conditions()

    def close(self) -> None:
        """Nothing to release."""
