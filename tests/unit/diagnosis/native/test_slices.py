"""Slices through a few instructions that are assembled by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("capstone", reason="slices need the extra explain")

from magneton_dist.diagnosis.native.slices import BRANCH, RETURN, _Slice

CALL = bytes.fromhex("e800000000")
WHOLE = (1 << 64) - 1


def source(code: list[bytes], at: int, want: str | int, calls: dict[str, Any], mask: int = WHOLE) -> dict[str, Any]:
    steps = [sum(map(len, code[:place])) for place in range(len(code))]
    text = b"".join(code)
    library: Any = SimpleNamespace(name="x", code=lambda offset, size: text[offset : offset + size])
    return _Slice(library, steps, calls).source(at, want, mask)


def test_a_branch_on_what_a_call_returned():
    # call f; mov ebx, eax; call g; test bl, bl; je
    code = [CALL, b"\x89\xc3", CALL, b"\x84\xdb", b"\x74\x00"]
    found = source(code, 4, BRANCH, {"0": [0x101, 0x100], "2": [1, 0]})
    assert (found["place"], found["mask"]) == (0, 0xFF)
    assert found["lines"][-1].split()[1] == "call"


def test_bits_that_are_not_looked_at_do_not_count():
    code = [CALL, b"\x89\xc3", b"\x84\xdb", b"\x74\x00"]
    assert source(code, 3, BRANCH, {"0": [0x501, 0x701]})["place"] is None


def test_a_value_that_is_kept_on_the_stack():
    # call f; mov [rbp-8], eax; xor eax, eax; mov ecx, [rbp-8]; cmp ecx, 3; sete al
    code = [CALL, b"\x89\x45\xf8", b"\x31\xc0", b"\x8b\x4d\xf8", b"\x83\xf9\x03", b"\x0f\x94\xc0"]
    found = source(code, 6, RETURN, {"0": [1, 3]}, mask=0xFF)
    assert (found["place"], found["mask"]) == (0, 0xFFFFFFFF)


def test_a_value_that_is_pushed_for_a_call():
    # call f; push rax; push 0; call g: its second argument on the stack
    code = [CALL, b"\x50", b"\x6a\x00", CALL]
    assert source(code, 3, 7, {"0": [1, 3]})["place"] == 0
    first = source(code, 3, 6, {"0": [1, 3]})
    assert (first["place"], first["arguments"], first["memory"], first["lines"]) == (None, {}, False, ["0x6 push 0"])


def test_an_argument_in_a_register_and_one_on_the_stack():
    # cmp esi, 2; je
    assert source([b"\x83\xfe\x02", b"\x74\x00"], 1, BRANCH, {})["arguments"] == {1: 0xFFFFFFFF}
    # push rbp; mov rbp, rsp; cmp byte [rbp+0x18], 0; je: the second on the stack
    code = [b"\x55", b"\x48\x89\xe5", b"\x80\x7d\x18\x00", b"\x74\x00"]
    assert source(code, 3, BRANCH, {})["arguments"] == {7: 0xFF}
    # push rbx; sub rsp, 0x10; cmp byte [rsp+0x28], 0; je: the same without a frame
    code = [b"\x53", b"\x48\x83\xec\x10", b"\x80\x7c\x24\x28\x00", b"\x74\x00"]
    assert source(code, 3, BRANCH, {})["arguments"] == {7: 0xFF}


def test_memory_is_not_followed():
    # test byte [rdi+0xa5], 4; je
    found = source([b"\xf6\x87\xa5\x00\x00\x00\x04", b"\x74\x00"], 1, BRANCH, {})
    assert found["memory"]
    assert found["arguments"] == {}
    assert found["lines"][-1] == "0x0 test byte ptr [rdi + 0xa5], 4"


def test_a_constant_comes_from_nowhere():
    # xor eax, eax; test eax, eax; je
    found = source([b"\x31\xc0", b"\x85\xc0", b"\x74\x00"], 2, BRANCH, {})
    assert (found["place"], found["arguments"], found["memory"]) == (None, {}, False)
