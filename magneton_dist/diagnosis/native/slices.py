"""Where the value comes from that decides a branch, or that a function returns: back along the steps that were done.

The instructions are read from the library's file with capstone (extra `explain`). Runs in fresh processes only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from magneton_dist.diagnosis.native.symbols import Libraries, Library
from magneton_dist.diagnosis.read_set import NotPossibleError

BRANCH, RETURN = "branch", "return"
MOST_INSTRUCTIONS = 3000  # that are looked at, back from the branch
_LONGEST = 16  # bytes of an instruction
_WORD_BYTES = 8
_WHOLE = (1 << 64) - 1
_FLAGS = "rflags"
_ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")  # more lie on the stack
# What a called function may overwrite.
_VOLATILE = {"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", _FLAGS}
_FRAME = {"rsp", "rbp"}
_ZEROING = {"xor", "sub", "pxor", "xorps", "vpxor", "vxorps"}
# The low bits of what they write come from the low bits of what they read.
_LOW_FROM_LOW = {"mov", "movzx", "movsx", "movsxd", "and", "or", "xor", "add", "sub", "push"}
_VECTOR = re.compile(r"[xyz]mm(\d+)")
_NUMBERED = re.compile(r"(r\d+)[dwb]?")
_NAMED = re.compile(r"[re]?([abcd])[xlh]|[re]?(si|di|bp|sp)l?")


def source(
    library: str, steps: Sequence[int], at: int, want: str | int, calls: Mapping[str, Sequence[int | None]],
    mask: int = _WHOLE,
) -> dict[str, Any]:  # fmt: skip
    """Where the value comes from.

    Args:
        library: that has the function.
        steps: offsets of its instructions from its first one, as both worlds did them.
        at: place in `steps` of the branch, of the call, or behind the last one.
        want: "branch"; "return", what the function returns; or the number of an argument of the call.
        calls: place in `steps` -> what the call there returned in either world.
        mask: bits that are wanted of it.

    Returns:
        `place` in `steps` of the call that returned it, or None, and the `mask` of the bits that matter; else
        `arguments` of the function that it may come from, number -> mask; `memory`: it may come from memory;
        `lines`: the instructions that say so, the last one first.

    Raises:
        NotPossibleError: capstone is not installed, or there is no such library.
    """
    return _Slice(Libraries().named(library), steps, calls).source(at, want, mask)


class _Slice:
    def __init__(
        self, library: Library, steps: Sequence[int], calls: Mapping[str, Sequence[int | None]]
    ) -> None:
        try:
            import capstone
        except ImportError as error:
            raise NotPossibleError("needs capstone: pip install 'magneton-dist[explain]'") from error
        self._x86 = capstone.x86
        self._read, self._write = capstone.CS_AC_READ, capstone.CS_AC_WRITE
        self._machine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        self._machine.detail = True
        self._library, self._steps, self._calls = library, steps, calls
        self._lines: list[str] = []
        self._memory = False  # the value may come from memory that was not followed
        self._stack = 0  # of the instruction that is looked at, from the stack of the one at the end, bytes

    def source(self, at: int, want: str | int, mask: int) -> dict[str, Any]:
        wanted: dict[str, int] = {}
        if want == BRANCH:
            self._note(self._instruction(at))
            self._want(self._instruction(at), wanted)
        elif isinstance(want, int) and want >= len(_ARGUMENTS):
            wanted[_slot("rsp", _WORD_BYTES * (want - len(_ARGUMENTS)))] = mask
        else:
            wanted[_ARGUMENTS[want] if isinstance(want, int) else "rax"] = mask
        for place in range(at - 1, max(-1, at - 1 - MOST_INSTRUCTIONS), -1):
            if not wanted:
                break
            answers = self._calls.get(str(place))
            if answers is None:
                self._back(self._instruction(place), wanted)
                continue
            if "rax" in wanted and _differ(answers, wanted["rax"]):
                self._note(self._instruction(place))
                return {"place": place, "mask": wanted["rax"], "lines": self._lines}
            for register in _VOLATILE & wanted.keys():
                del wanted[register]
        arguments = {}
        for name, bits in wanted.items():
            number = self._argument(name)
            if number is not None:
                arguments[number] = bits
            self._memory |= name.startswith("[") and number is None
        return {"place": None, "arguments": arguments, "memory": self._memory, "lines": self._lines}

    def _argument(self, name: str) -> int | None:
        """The number of the argument that a register or place on the stack holds where the function begins."""
        if name in _ARGUMENTS:
            return _ARGUMENTS.index(name)
        base, _, place = name.strip("[]").partition("+")
        if base not in _FRAME or not place:
            return None
        # behind the word that it returns through; rbp is kept in one more
        behind = int(place, 16) - (self._stack + _WORD_BYTES if base == "rsp" else 2 * _WORD_BYTES)
        return len(_ARGUMENTS) + behind // _WORD_BYTES if behind >= 0 else None

    def _back(self, instruction: Any, wanted: dict[str, int]) -> None:
        """One instruction further back: what it writes that is wanted comes from what it reads."""
        self._stack += self._takes(instruction)
        hit = [register for register in self._written(instruction) if register in wanted]
        if not hit:
            return
        self._note(instruction)
        bits = max(wanted.pop(register) for register in hit)
        if instruction.mnemonic not in _LOW_FROM_LOW:
            bits = _WHOLE
        operands = instruction.operands
        registers = {operand.reg for operand in operands if operand.type == self._x86.X86_OP_REG}
        plain = all(operand.type == self._x86.X86_OP_REG for operand in operands)
        if not (instruction.mnemonic in _ZEROING and plain and len(registers) == 1):
            self._want(instruction, wanted, bits)

    def _want(self, instruction: Any, wanted: dict[str, int], mask: int = _WHOLE) -> None:
        """What an instruction reads, but for addresses: of those, an index chooses what is read."""
        for operand in instruction.operands:
            bits = ((1 << 8 * operand.size) - 1) & mask
            if operand.type == self._x86.X86_OP_REG and operand.access & self._read:
                wanted[self._family(operand.reg)] = wanted.get(self._family(operand.reg), 0) | bits
            elif operand.type == self._x86.X86_OP_MEM and instruction.mnemonic == "lea":
                for register in (operand.mem.base, operand.mem.index):
                    if register and self._family(register) not in (*_FRAME, "rip"):
                        wanted[self._family(register)] = _WHOLE
            elif operand.type == self._x86.X86_OP_MEM and (operand.access & self._read or self._jumps(instruction)):
                slot = self._slot(operand)
                if slot:
                    wanted[slot] = wanted.get(slot, 0) | bits
                elif operand.mem.index:
                    wanted[self._family(operand.mem.index)] = _WHOLE
                else:
                    self._memory = True
        if any(instruction.reg_name(register) == _FLAGS for register in instruction.regs_read):
            wanted[_FLAGS] = _WHOLE

    def _jumps(self, instruction: Any) -> bool:
        return instruction.mnemonic.rpartition(" ")[2] in ("call", "jmp")

    def _written(self, instruction: Any) -> Iterator[str]:
        _, written = instruction.regs_access()
        yield from {self._family(register) for register in written}
        if instruction.mnemonic == "push":
            yield _slot("rsp", self._stack - _WORD_BYTES)
        for operand in instruction.operands:
            if operand.type == self._x86.X86_OP_MEM and operand.access & self._write and self._slot(operand):
                yield self._slot(operand)

    def _slot(self, operand: Any) -> str:
        """A place of the function's own on the stack, as a name; empty for other memory."""
        base = self._family(operand.mem.base) if operand.mem.base else ""
        if base not in _FRAME or operand.mem.index:
            return ""
        return _slot(base, operand.mem.disp + (self._stack if base == "rsp" else 0))

    def _takes(self, instruction: Any) -> int:
        """Bytes that it takes from the stack."""
        if instruction.mnemonic in ("push", "pop"):
            return _WORD_BYTES if instruction.mnemonic == "push" else -_WORD_BYTES
        if instruction.mnemonic not in ("sub", "add"):
            return 0
        to, by = instruction.operands
        if to.type != self._x86.X86_OP_REG or self._family(to.reg) != "rsp" or by.type != self._x86.X86_OP_IMM:
            return 0
        return int(by.imm) * (1 if instruction.mnemonic == "sub" else -1)

    def _family(self, register: int) -> str:
        """The whole register that this one is a part of."""
        name = str(self._machine.reg_name(register))
        vector, numbered, named = _VECTOR.fullmatch(name), _NUMBERED.fullmatch(name), _NAMED.fullmatch(name)
        if vector:
            return f"xmm{vector[1]}"
        if numbered:
            return numbered[1]
        return (f"r{named[1]}x" if named[1] else f"r{named[2]}") if named else name

    def _instruction(self, place: int) -> Any:
        offset = self._steps[place]
        found = next(self._machine.disasm(self._library.code(offset, _LONGEST), offset, 1), None)
        if found is None:
            raise NotPossibleError(f"what is at {offset:#x} of {self._library.name} is no instruction")
        return found

    def _note(self, instruction: Any) -> None:
        self._lines.append(f"{instruction.address:#x} {instruction.mnemonic} {instruction.op_str}".rstrip())


def _slot(base: str, place: int) -> str:
    return f"[{base}{place:+#x}]"


def _differ(answers: Sequence[int | None], mask: int) -> bool:
    a, b = answers
    return a is not None and b is not None and (a ^ b) & mask != 0
