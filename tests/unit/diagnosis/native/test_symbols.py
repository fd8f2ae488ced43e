from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from magneton_dist.diagnosis.native.symbols import Libraries, demangled
from magneton_dist.diagnosis.read_set import NotPossibleError

LIBRARY = "libtorch_cpu.so"
GETTER = "_ZNK2at7Context17userEnabledMkldnnEv"


@pytest.fixture(scope="module")
def address() -> int:
    """Where the loader says that the getter is."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / LIBRARY))
    found = ctypes.cast(getattr(library, GETTER), ctypes.c_void_p).value
    assert found is not None
    return found


def test_a_function_is_found_by_its_address_and_by_its_name(address: int):
    libraries = Libraries()
    by_address = libraries.function_at(address + 1)
    assert by_address is not None
    assert (by_address.library, by_address.symbol) == (LIBRARY, GETTER)
    library = libraries.named(LIBRARY)
    assert library.base + by_address.start == address
    assert library.named([f"{GETTER}\0"]) == [by_address]
    assert library.named([f"{GETTER[:-1]}\0"]) == []
    assert by_address in library.named([GETTER[:-2]])
    assert library.ranges(by_address)[0] == (by_address.start, by_address.start + by_address.size)


def test_code_of_the_file_is_the_code_in_memory(address: int):
    library = Libraries().named(LIBRARY)
    assert library.code(address - library.base, 16) == ctypes.string_at(address, 16)
    assert library.code(1 << 40, 16) == b""


def test_what_is_not_torchs_has_no_function(address: int):
    assert Libraries().function_at(ctypes.addressof(ctypes.c_int())) is None
    with pytest.raises(NotPossibleError, match=r"libnothing\.so is not loaded"):
        Libraries().named("libnothing.so")


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        (GETTER, "at::Context::userEnabledMkldnn() const"),
        ("_ZN2at6nativeL1fEv.cold", "at::native::f()"),
        ("sgemm_", "sgemm_"),
        ("_Znot", "_Znot"),
    ],
)
def test_names_as_a_person_writes_them(symbol: str, name: str):
    assert demangled(symbol) == name
