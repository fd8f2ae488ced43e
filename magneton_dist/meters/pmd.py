"""ElmorLabs power measurement devices, wired between power supply and machine, read over a serial port.

PMD2 answers 0x04 with 122 bytes, PMD-USB answers 0x03 with 16: voltage and current of every connector. What they
measure is whatever is plugged through them; no SXM module can be. Ranks of one host may share a device: every
question and its answer hold a lock on the port.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magneton_dist.errors import MeterError
from magneton_dist.meters.meter import Conditions, Reading

if TYPE_CHECKING:
    from magneton_dist.records.audit import EnergyKind

_BAUD = 115_200
_TIMEOUT_S = 0.2  # 122 bytes take 11 ms on the wire
_LATE = 10  # times that the rest of a torn answer is waited for
_TRIES = 3  # to read a first value: a single answer may be torn
_VENDOR = 0x01
_MAKER = 0xEE
_LIMIT_W = 5_000.0
_PMD2 = struct.Struct("<Hh" + 10 * "hii" + "4H10B")  # Vdd, chip temperature, rails in mV, mA, mW, sums, alarms
_PMD_USB = struct.Struct("<8H")  # four connectors in 0.01 V and 0.1 A


def _pmd2_watts(frame: bytes) -> float:
    """Sum of the ten rails; `ValueError` where volts and amperes do not make the watts beside them."""
    rails = _PMD2.unpack(frame)[2:32]
    for index, (mv, ma, mw) in enumerate(zip(rails[::3], rails[1::3], rails[2::3], strict=True)):
        if abs(mv * ma / 1e3 - mw) > 1000 + 0.1 * abs(mw):
            raise ValueError(f"rail {index}: {mv} mV and {ma} mA are not {mw} mW")
    return float(sum(rails[2::3])) / 1e3


def _pmd_usb_watts(frame: bytes) -> float:
    """Sum of the four connectors."""
    values = _PMD_USB.unpack(frame)
    products = (volts * amperes for volts, amperes in zip(values[::2], values[1::2], strict=True))
    return float(sum(products)) / 1e3  # 0.01 V x 0.1 A is 1 mW


@dataclass(frozen=True)
class Model:
    """How one of the devices speaks.

    Attributes:
        name: as in the configuration.
        product: second byte of the vendor data.
        usb: vendor and product of its USB chip.
        command: asks for values.
        size: of the answer, bytes.
        watts: of an answer.
    """

    name: str
    product: int
    usb: tuple[int, int]
    command: int
    size: int
    watts: Callable[[bytes], float]


PMD2 = Model("pmd2", 0x15, (0x0483, 0x5740), 0x04, _PMD2.size, _pmd2_watts)
PMD_USB = Model("pmd-usb", 0x0A, (0x1A86, 0x7523), 0x03, _PMD_USB.size, _pmd_usb_watts)


class PmdMeter:
    """All that is plugged through one device.

    Args:
        model: which of the two.
        port: serial port; empty: the one whose USB chip is the model's.

    Raises:
        MeterError: pyserial is not installed, there is no such port, another device answers, or one whose answers
            make no sense.
    """

    provenance: EnergyKind = "measured"
    counter = ""
    period_s = 0.02
    window_ns = 0  # one conversion; it stands for the time since the reading before

    def __init__(self, model: Model, port: str = "") -> None:
        self._model, self._where = model, f"meter {model.name}"
        serial = _pyserial(self._where)
        port = port or _find(model, self._where)
        self.name = self.sensor = model.name
        self._where += f", {port}"
        try:
            # opening raises DTR, without which the PMD2 is silent
            self._port = serial.Serial(port, _BAUD, timeout=_TIMEOUT_S, write_timeout=_TIMEOUT_S)
        except (serial.SerialException, termios.error, ValueError) as error:
            do = "plug it in, and let this user open the port (group dialout)"
            raise MeterError(str(error), where=self._where, do=do) from error
        try:
            firmware = self._identify()
            self._try(firmware)
        except (MeterError, OSError) as error:
            self._port.close()
            if isinstance(error, MeterError):
                raise
            raise MeterError(str(error), where=self._where, do="is it a serial port?") from error
        self.device = f"{socket.gethostname()}/{model.name}:{port}"
        self.source = f"ElmorLabs {model.name.upper()}, firmware {firmware}, on {port}: all that is plugged through it"

    def read(self) -> Reading:
        """Watts now; an answer that is torn or makes no sense is a gap."""
        try:
            frame = self._ask(self._model.command, self._model.size)
            t_ns, watts = time.monotonic_ns(), self._model.watts(frame)
        except (OSError, ValueError) as error:
            return Reading(time.monotonic_ns(), None, None, reason=str(error))
        if not 0 <= watts < _LIMIT_W:
            return Reading(t_ns, None, None, reason=f"impossible reading of {watts:.0f} W")
        return Reading(t_ns, watts, None)

    def conditions(self) -> Conditions:
        """It does not know whose power it measures."""
        return Conditions(shared=f"everything plugged through {self.device}")

    def close(self) -> None:
        """Give the port back."""
        self._port.close()

    def _identify(self) -> int:
        """Version of the firmware; `MeterError` when this is not the model."""
        try:
            maker, product, firmware = self._ask(_VENDOR, 3)
        except ValueError as error:
            raise MeterError(str(error), where=self._where, do=f"is a {self._model.name} on that port?") from error
        if (maker, product) != (_MAKER, self._model.product):
            what = f"a device {maker:#04x}:{product:#04x} answers, not {_MAKER:#04x}:{self._model.product:#04x}"
            raise MeterError(what, where=self._where, do="name its port: pmd2:PORT or pmd-usb:PORT")
        return firmware

    def _try(self, firmware: int) -> None:
        """Read values; `MeterError` when none comes: another firmware may answer in another layout."""
        for _ in range(_TRIES):
            reading = self.read()
            if reading.watts is not None:
                return
        what = f"firmware {firmware} gives no values: {reading.reason}"
        raise MeterError(what, where=self._where, do="does its own program show watts?")

    def _ask(self, command: int, size: int) -> bytes:
        """The answer, whole; `ValueError` when it is torn, `OSError` when the port is gone."""
        with _locked(self._port):
            try:
                self._port.reset_input_buffer()  # what is left of a torn answer
            except termios.error as error:  # no OSError, and pyserial passes it on
                raise OSError(*error.args) from error
            self._port.write(bytes([command]))
            answer = bytes(self._port.read(size))
            if len(answer) == size:
                return answer
            for _ in range(_LATE):  # its rest must not be the head of the next
                if not self._port.read(size):
                    break
        raise ValueError(f"{len(answer)} of {size} bytes came")


@contextmanager
def _locked(port: Any) -> Iterator[None]:
    fcntl.flock(port.fileno(), fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(port.fileno(), fcntl.LOCK_UN)


def _pyserial(where: str) -> Any:
    try:
        import serial
    except ImportError as error:
        do = "pip install 'magneton-dist[meters]'"
        raise MeterError("pyserial is not installed", where=where, do=do) from error
    return serial


def _find(model: Model, where: str) -> str:
    from serial.tools.list_ports import comports

    ports = [port.device for port in comports() if (port.vid, port.pid) == model.usb]
    if len(ports) == 1:
        return str(ports[0])
    usb = f"{model.usb[0]:04x}:{model.usb[1]:04x}"
    found = f"{len(ports)} serial ports have its USB chip {usb}" if ports else f"no serial port has its USB chip {usb}"
    raise MeterError(found, where=where, do=f"plug it in, or name its port: {model.name}:PORT")
