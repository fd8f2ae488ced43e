"""`magneton-dist calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")] = Path("measured.yaml"),
    meter: Annotated[str, typer.Option("--meter", help="As in a configuration.")] = "auto",
    device: Annotated[str, typer.Option("--device", help="GPU UUID or cpu; default: the first GPU.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Measure this machine: sensor period and lag, bare idle, context idle, a spinning kernel.

    Takes about two minutes, in which nothing else may run on the device. Runs refer to the profile it
    writes by energy: {meter: nvml, profile: FILE}, or model their watts by energy: {meter: modelled:FILE}.
    """
    import os
    import signal

    from magneton_dist.errors import InputError
    from magneton_dist.machine import open_for_calibration
    from magneton_dist.meters.calibration import Durations
    from magneton_dist.meters.calibration import calibrate as measure
    from magneton_dist.meters.load import TorchLoad
    from magneton_dist.meters.profile import save_profile

    if output.exists() and not force:
        raise InputError("exists already", where=str(output), do="give --force, or another --output")
    if output.is_dir() or not output.parent.is_dir() or not os.access(output.parent, os.W_OK):  # not two minutes later
        raise InputError("cannot be written", where=str(output), do="give another --output")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the load goes, too
    opened, uuid = open_for_calibration(meter, device)
    try:
        profile = measure(opened, TorchLoad(uuid), Durations(), lambda name: typer.echo(f"Measuring {name}"))
    finally:
        opened.close()
    for key, watts in profile.watts.items():
        typer.echo(f"{key:14}{watts.nominal:8.1f} W   {watts.source}")
    sensor = profile.sensor
    if sensor is None:
        typer.echo("sensor readings are means since the one before: nothing to tell apart")
    else:
        typer.echo(
            f"sensor updates every {1e3 * sensor.period_s:.0f} ms, averages over {1e3 * sensor.window_s:.0f} ms, "
            f"lags {1e3 * sensor.lag_s:.0f} ms"
        )
    save_profile(profile, output)
    typer.echo(f"Wrote {output}")
