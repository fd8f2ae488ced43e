from __future__ import annotations

import pytest

import magneton_dist.meters as room
from magneton_dist.errors import ConfigError, MeterError
from magneton_dist.meters import NvmlMeter, open_meter

GPU = "GPU-bbbb2222-0000"


def unreadable(*_: object) -> None:
    raise MeterError("nothing here", do="buy one")


@pytest.fixture
def gpu(nvml, monkeypatch):
    monkeypatch.setattr(room, "NvmlMeter", lambda device: NvmlMeter(device, nvml))
    return nvml


def test_what_is_asked_for_is_opened():
    meter, reason = open_meter("modelled:h200", "cpu")
    assert (meter.name, meter.provenance, meter.device) == ("modelled:h200", "modelled", "cpu")
    assert reason == "as configured"
    assert open_meter("null", "GPU-1")[0].provenance == "unmeasured"


def test_auto_takes_nvml_for_a_gpu(gpu):
    meter, reason = open_meter("auto", GPU)
    assert (meter.name, meter.device) == ("nvml", GPU)
    assert "NVML" in reason


def test_auto_models_a_gpu_that_tells_nothing_and_says_why(gpu):
    for name in ("GetFieldValues", "GetPowerUsage", "GetTotalEnergyConsumption"):
        gpu.errors[f"nvmlDevice{name}"] = 4
    meter, reason = open_meter("auto", GPU)
    assert (meter.name, meter.provenance) == ("modelled:h200", "modelled")
    assert "Insufficient Permissions" in reason
    assert gpu.opened == 0


@pytest.mark.parametrize(
    ("model", "name", "words"),
    [
        ("NVIDIA A100-SXM4-80GB", "modelled:a100", "modelled as NVIDIA A100-SXM4-80GB, because"),
        ("NVIDIA L4", "modelled:h200", "modelled as h200 in place of NVIDIA L4, because"),
    ],
)
def test_auto_models_a_gpu_as_what_it_is_and_says_what_stands_in(gpu, monkeypatch, model, name, words):
    for silent in ("GetFieldValues", "GetPowerUsage", "GetTotalEnergyConsumption"):
        gpu.errors[f"nvmlDevice{silent}"] = 4
    monkeypatch.setattr(gpu, "nvmlDeviceGetName", lambda handle: model)
    meter, reason = open_meter("auto", GPU)
    assert meter.name == name
    assert words in reason


def test_auto_takes_rapl_only_for_a_cpu_run(monkeypatch):
    monkeypatch.setattr(room, "RaplMeter", lambda: "rapl")
    monkeypatch.setattr(room, "NvmlMeter", unreadable)
    assert open_meter("auto", "cpu")[0] == "rapl"
    assert open_meter("auto", "GPU-1")[0].name == "modelled:h200"


def test_auto_models_where_nothing_is_readable_and_says_why(monkeypatch):
    monkeypatch.setattr(room, "RaplMeter", unreadable)
    meter, reason = open_meter("auto", "cpu")
    assert meter.name == "modelled:h200"
    assert "nothing here" in reason


def test_what_was_asked_for_by_name_is_never_replaced(monkeypatch):
    monkeypatch.setattr(room, "RaplMeter", unreadable)
    with pytest.raises(MeterError, match="nothing here"):
        open_meter("rapl", "cpu")


@pytest.mark.parametrize("spec", ["nvml", "zeus"])
def test_a_meter_of_gpus_says_so_where_the_run_uses_none(spec):
    with pytest.raises(MeterError, match=r"asked for GPUs only \(use .*rapl"):
        open_meter(spec, "cpu")


def test_serial_meters_take_the_port_that_is_named(monkeypatch):
    monkeypatch.setattr(room, "PmdMeter", lambda model, port="": (model.name, port))
    assert open_meter("pmd2", "cpu")[0] == ("pmd2", "")
    assert open_meter("pmd-usb:/dev/ttyUSB0", "cpu")[0] == ("pmd-usb", "/dev/ttyUSB0")


@pytest.mark.parametrize(("spec", "name"), [("hwmon", "HwmonMeter"), ("zeus", "ZeusMeter")])
def test_the_other_meters_go_by_their_names(monkeypatch, spec, name):
    monkeypatch.setattr(room, name, unreadable)
    with pytest.raises(MeterError, match="nothing here"):
        open_meter(spec, "cpu")


@pytest.mark.parametrize("spec", ["nvlm", "nvml:0", "modelled", ""])
def test_an_unknown_meter_is_a_configuration_error(spec):
    with pytest.raises(ConfigError, match="use auto, nvml, rapl"):
        open_meter(spec, "cpu")
