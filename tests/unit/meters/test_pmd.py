"""The power measurement devices on a pseudo-terminal, byte by byte."""

from __future__ import annotations

import os
import pty
import struct
import sys
import threading
import time
import tty

import pytest

from magneton_dist.errors import MeterError
from magneton_dist.meters.pmd import PMD2, PMD_USB, PmdMeter

serial = pytest.importorskip("serial")

VENDOR_PMD2, VENDOR_USB = b"\xee\x15\x00", b"\xee\x0a\x06"


def frame(rails: list[tuple[int, int, int]]) -> bytes:
    """122 bytes of a PMD2: supply, chip temperature, ten rails, four sums, ten alarms."""
    rails = rails + [(0, 0, 0)] * (10 - len(rails))
    body = b"".join(struct.pack("<hii", *rail) for rail in rails)
    return struct.pack("<Hh", 3300, 41) + body + struct.pack("<4H", 1, 2, 3, 4) + bytes(10)


class Device:
    """Answers each command with its next prepared answer, the last one again and again."""

    def __init__(self, answers: dict[int, list[bytes]]) -> None:
        self.answers = answers
        self.asked: list[int] = []
        self.pause_s = 0.0  # between any two bytes
        self.stall_s = 0.0  # once, after the seventh
        self.closed = False
        self._ours, theirs = pty.openpty()
        tty.setraw(theirs)
        self.port, self._theirs = os.ttyname(theirs), theirs
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                command = os.read(self._ours, 1)
            except OSError:
                return
            if command == b"\xff":
                return
            self.asked.append(command[0])
            prepared = self.answers[command[0]]
            self._say(prepared.pop(0) if len(prepared) > 1 else prepared[0])

    def _say(self, answer: bytes) -> None:
        if self.pause_s:
            for byte in answer:
                os.write(self._ours, bytes([byte]))
                time.sleep(self.pause_s)
            return
        os.write(self._ours, answer[:7])
        time.sleep(self.stall_s)
        self.stall_s = 0.0
        os.write(self._ours, answer[7:])

    def close(self) -> None:
        self.closed = True
        os.write(self._theirs, b"\xff")
        self._thread.join(2)
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def plug():
    devices = []

    def device(answers: dict[int, list[bytes]]) -> Device:
        devices.append(Device(answers))
        return devices[-1]

    yield device
    for one in devices:
        if not one.closed:
            one.close()


def test_pmd2_sums_its_rails(plug):
    # 12.1 V x 20 A = 242 W, 11.9 V x 5.5 A = 65.45 W, and a rail fed back 0.1 A
    device = plug({1: [VENDOR_PMD2], 4: [frame([(12100, 20000, 242000), (11900, 5500, 65450), (5000, -100, -500)])]})
    meter = PmdMeter(PMD2, device.port)
    reading = meter.read()
    assert reading.watts == pytest.approx(242 + 65.45 - 0.5)
    assert (reading.joules, reading.reason) == (None, "")
    assert device.asked == [1, 4, 4]  # once to see that it can be read
    assert meter.device.endswith(f"pmd2:{device.port}")
    assert "firmware 0" in meter.source
    meter.close()


def test_pmd_usb_multiplies_hundredths_of_volts_and_tenths_of_amperes(plug):
    device = plug({1: [VENDOR_USB], 3: [struct.pack("<8H", 1210, 150, 1200, 100, 0, 0, 1190, 5)]})
    meter = PmdMeter(PMD_USB, device.port)
    assert meter.read().watts == pytest.approx(12.10 * 15 + 12 * 10 + 11.9 * 0.5)
    assert device.asked == [1, 3, 3]
    meter.close()


def test_a_torn_frame_is_a_gap_and_the_next_one_is_read_whole(plug):
    whole = frame([(12000, 10000, 120000)])
    device = plug({1: [VENDOR_PMD2], 4: [whole, whole[:57], whole + b"leftover", whole]})
    meter = PmdMeter(PMD2, device.port)
    torn = meter.read()
    assert (torn.watts, torn.reason) == (None, "57 of 122 bytes came")
    assert [meter.read().watts for _ in range(2)] == [120.0, 120.0]
    meter.close()


def test_a_frame_of_another_layout_is_a_gap(plug):
    whole = frame([(12000, 10000, 120000)])
    device = plug({1: [VENDOR_PMD2], 4: [whole, whole[1:] + b"\0"]})
    meter = PmdMeter(PMD2, device.port)
    reading = meter.read()
    assert reading.watts is None
    assert "are not" in reading.reason
    meter.close()


def test_a_firmware_whose_answers_make_no_sense_is_refused(plug):
    shifted = frame([(12000, 10000, 120000)])[1:] + b"\0"
    device = plug({1: [b"\xee\x15\x09"], 4: [shifted]})
    with pytest.raises(MeterError, match=r"firmware 9 gives no values: rail 0: .* are not"):
        PmdMeter(PMD2, device.port)


def test_an_answer_that_comes_byte_by_byte_is_whole(plug):
    device = plug({1: [VENDOR_USB], 3: [struct.pack("<8H", 1210, 150, 1200, 100, 0, 0, 1190, 5)]})
    device.pause_s = 0.002
    meter = PmdMeter(PMD_USB, device.port)
    assert meter.read().watts == pytest.approx(12.10 * 15 + 12 * 10 + 11.9 * 0.5)
    meter.close()


def test_the_late_rest_of_a_torn_answer_is_no_head_of_the_next(plug):
    """Of a device without checksums: 16 bytes of any two answers would make watts."""
    device = plug({1: [VENDOR_USB], 3: [struct.pack("<8H", *[1200, 100] * 4)]})
    meter = PmdMeter(PMD_USB, device.port)
    device.stall_s = 0.3  # amid the next answer: longer than anybody waits
    assert meter.read().reason == "7 of 16 bytes came"
    assert [meter.read().watts for _ in range(2)] == [480.0, 480.0]
    meter.close()


def test_another_device_on_the_port_is_refused_by_its_number(plug):
    device = plug({1: [VENDOR_USB]})
    with pytest.raises(MeterError, match="0xee:0x0a answers, not 0xee:0x15"):
        PmdMeter(PMD2, device.port)


def test_a_port_on_which_nothing_answers_is_refused(plug):
    device = plug({1: [b""]})
    with pytest.raises(MeterError, match="0 of 3 bytes"):
        PmdMeter(PMD2, device.port)


def test_a_port_that_is_not_there_is_refused():
    with pytest.raises(MeterError, match="no-such-port"):
        PmdMeter(PMD2, "/dev/no-such-port")


def test_a_port_that_goes_away_is_a_gap(plug):
    device = plug({1: [VENDOR_PMD2], 4: [frame([])]})
    meter = PmdMeter(PMD2, device.port)
    meter._port.close()
    reading = meter.read()
    assert reading.watts is None
    assert reading.reason


def test_a_device_that_is_pulled_out_is_a_gap_and_its_port_closes(plug):
    device = plug({1: [VENDOR_PMD2], 4: [frame([(12000, 10000, 120000)])]})
    meter = PmdMeter(PMD2, device.port)
    assert meter.read().watts == 120.0
    device.close()
    reading = meter.read()
    assert (reading.watts, reading.joules) == (None, None)
    assert "Input/output error" in reading.reason
    meter.close()


def test_without_a_port_the_usb_chip_decides(plug, monkeypatch):
    from serial.tools import list_ports

    class Port:
        def __init__(self, device: str, vid: int, pid: int) -> None:
            self.device, self.vid, self.pid = device, vid, pid

    device = plug({1: [VENDOR_PMD2], 4: [frame([])]})
    ports = [Port("/dev/ttyS0", None, None), Port(device.port, 0x0483, 0x5740)]
    monkeypatch.setattr(list_ports, "comports", lambda: ports)
    PmdMeter(PMD2).close()
    with pytest.raises(MeterError, match="no serial port has its USB chip 1a86:7523"):
        PmdMeter(PMD_USB)


def test_without_pyserial_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "serial", None)
    with pytest.raises(MeterError, match=r"magneton-dist\[meters\]"):
        PmdMeter(PMD2, "/dev/ttyACM0")
