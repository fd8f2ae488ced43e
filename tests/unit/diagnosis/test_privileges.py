"""Diagnosis needs no privilege: ptrace and what reads other processes' memory are denied, and no user is root."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

DENY = """
import ctypes, json, os, struct, sys
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, EPERM = 0x7FFF0000, 0x00050001
PTRACE, PROCESS_VM_READV, PROCESS_VM_WRITEV = 101, 310, 311
program = struct.pack("HBBI", LOAD, 0, 0, 0)
for number in (PTRACE, PROCESS_VM_READV, PROCESS_VM_WRITEV):
    program += struct.pack("HBBI", JUMP_IF_EQUAL, 0, 1, number) + struct.pack("HBBI", RETURN, 0, 0, EPERM)
if "code" in sys.argv:  # and what would make code writable
    MPROTECT, ITS_THIRD_ARGUMENT, READ_WRITE_EXECUTE = 10, 32, 7
    program += struct.pack("HBBI", JUMP_IF_EQUAL, 0, 3, MPROTECT) + struct.pack("HBBI", LOAD, 0, 0, ITS_THIRD_ARGUMENT)
    program += struct.pack("HBBI", JUMP_IF_EQUAL, 0, 1, READ_WRITE_EXECUTE) + struct.pack("HBBI", RETURN, 0, 0, EPERM)
program += struct.pack("HBBI", RETURN, 0, 0, ALLOW)
libc = ctypes.CDLL(None, use_errno=True)
if os.getuid() == 0 and "nobody" in sys.argv:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
code = ctypes.create_string_buffer(program)
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
filter = Program(len(program) // 8, ctypes.addressof(code))
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(filter), 0, 0) == 0, ctypes.get_errno()
assert libc.ptrace(0, 0, 0, 0) == -1 and ctypes.get_errno() == 1
from magneton_dist.diagnosis.calls import Call, Tensor
from magneton_dist.diagnosis.laboratory import Laboratory
square = Tensor((64, 64), (64, 1), "float32", "cpu")
call = Call("aten.mm.default", ({"v": 0}, {"v": 1}), (square, square))
"""
ASK = """
with Laboratory(300) as laboratory:
    found = laboratory.ask(dict(os.environ), {
        "settings": {}, "flips": [["torch.backends.mkldnn.enabled", "False"]], "read": [], "getters": [],
        "call": call.described(), "signature": True, "seconds": True, "read_set": True,
        "launches": True, "steps": None, "slice": None, "repeat_s": None,
    })
print(json.dumps(found))
"""
FOLLOW = """
from magneton_dist.diagnosis.factors import Factor
from magneton_dist.diagnosis.key_variable import key_variable
from magneton_dist.diagnosis.trial import Side, Trial
from magneton_dist.diagnosis.calls import SDPA
heads = Tensor((1, 2, 8, 8), (128, 64, 8, 1), "float32", "cpu")
call = Call(SDPA, ({"v": 0}, {"v": 1}, {"v": 2}), (heads, heads, heads))
name = "torch.backends.cuda.flash_sdp_enabled"
with Laboratory(300) as laboratory:
    factors = [Factor("setting", name, ("True", "False"))]
    trial = Trial(laboratory, Side({name: "True"}, call), Side({}, call), factors, dict(os.environ))
    print(*key_variable(trial).lines("attention", ("a", "b")), *trial.signature(frozenset()).operators)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are x86-64's")
def test_everything_works_with_ptrace_denied():
    done = subprocess.run([sys.executable, "-c", DENY + ASK], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert '"userEnabledMkldnn": 0' in done.stdout
    assert '"aten::mm"' in done.stdout
    assert "at::native::cpublas::gemm" in done.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are x86-64's")
def test_where_code_cannot_be_written_the_layer_that_follows_it_says_so_and_others_work():
    done = subprocess.run([sys.executable, "-c", DENY + FOLLOW, "code"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert "key variable: could not run: NotPossibleError: code cannot be made writable" in done.stdout
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in done.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are x86-64's")
def test_what_decides_in_torchs_code_is_found_with_ptrace_denied():
    pytest.importorskip("capstone", reason="key variables need the extra explain")
    done = subprocess.run([sys.executable, "-c", DENY + FOLLOW], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert "at::Context::userEnabledFlashSDP: 1 as in a, 0 as in b" in done.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls are x86-64's")
@pytest.mark.skipif(os.getuid() != 0, reason="nobody here can become another user")
def test_everything_works_as_an_unprivileged_user():
    reachable = [sys.executable, os.path.realpath(sys.executable), os.__file__]
    check = f"import os; os.setuid(65534); raise SystemExit(not all(os.access(p, os.R_OK) for p in {reachable}))"
    if subprocess.run([sys.executable, "-c", check], check=False).returncode:
        pytest.skip("this Python lies where other users cannot read it")
    done = subprocess.run([sys.executable, "-c", DENY + ASK, "nobody"], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert '"userEnabledMkldnn": 0' in done.stdout
