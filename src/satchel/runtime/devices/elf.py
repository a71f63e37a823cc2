"""A loader of ELF objects for x86-64 and ARM, to start without LLVM.

It knows what kernels consist of, code and constants that refer to each other, and refuses anything
else: data that can be written, symbols from elsewhere, relocations it does not know. Memory is
never writable and executable at once. Numbers are from the System V and ARM ELF ABIs.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from satchel.runtime.memory import align

_X86_64, _AARCH64 = 62, 183  # e_machine
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _REL = 1, 2, 4, 8, 9  # sh_type
_WRITE, _ALLOC, _EXECUTE = 1, 2, 4  # sh_flags
_UNDEFINED, _RESERVED = 0, 0xFF00  # st_shndx
_CONSTANT = b".data.rel.ro"  # written by the loader alone
_UNWINDING = (b".eh_frame", b".rela.eh_frame")  # kernels raise nothing


class CanNotLoadError(Exception):
    """This object, or this system, needs a real linker."""


@dataclass
class _Section:
    name: bytes
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    place: int = 0  # where it lies in the image


@dataclass
class _Object:
    raw: bytes
    machine: int
    sections: list[_Section]

    @property
    def loaded(self) -> list[_Section]:
        """What a running program needs."""
        return [section for section in self.sections if section.flags & _ALLOC and section.size]

    def symbols(self) -> list[tuple[bytes, int, int, int]]:
        """Name, section, value and binding of each; the table that relocations count in."""
        for table in self.sections:
            if table.kind == _SYMTAB:
                names = self.sections[table.link]
                raw = self.raw[table.offset : table.offset + table.size]
                return [
                    (_string(self.raw, names.offset + name), section, value, info >> 4)
                    for name, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", raw)
                ]
        return []


def load(objects: Sequence[bytes]) -> tuple[list[dict[str, int]], object]:
    """Put objects into memory, ready to be called.

    Returns the addresses of the functions of each, and what owns their memory. Raises
    CanNotLoadError.
    """
    if not hasattr(mmap, "MAP_PRIVATE"):
        raise CanNotLoadError("this system has no mmap")
    image = Image(objects)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    try:
        memory = mmap.mmap(-1, image.n_bytes, flags=flags)
    except (OSError, OverflowError) as error:
        raise CanNotLoadError("there is no memory for this object") from error
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    functions = image.put(memory, base)
    _protect(base, image.n_code_bytes, mmap.PROT_READ | mmap.PROT_EXEC)
    _protect(base + image.n_code_bytes, image.n_bytes - image.n_code_bytes, mmap.PROT_READ)
    return functions, memory


class Image:
    """Objects side by side: all code first, then, from a page of their own, all constants."""

    def __init__(self, objects: Sequence[bytes]) -> None:
        try:
            self._objects = [_read(raw) for raw in objects]
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise CanNotLoadError(f"a damaged object: {error}") from error
        self.n_code_bytes = self._arrange(0, code=True)
        self.n_bytes = max(self._arrange(self.n_code_bytes, code=False), mmap.PAGESIZE)

    def _arrange(self, end: int, code: bool) -> int:
        """Give sections their places from `end` on; returns where they end, in whole pages."""
        for source in self._objects:
            for section in source.loaded:
                if bool(section.flags & _EXECUTE) == code:
                    section.place = align(end, max(1, section.alignment))
                    end = section.place + section.size
        return align(end, mmap.PAGESIZE)

    def put(self, memory: mmap.mmap | bytearray, base: int) -> list[dict[str, int]]:
        """Write the image for the address `base`; returns the functions of each object."""
        for source in self._objects:
            for section in source.loaded:
                if section.kind != _NOBITS:
                    raw = source.raw[section.offset : section.offset + section.size]
                    memory[section.place : section.place + section.size] = raw
        try:
            return [_bind(source, memory, base) for source in self._objects]
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise CanNotLoadError(f"a damaged object: {error}") from error


def _read(raw: bytes) -> _Object:
    """The sections of a relocatable object; refuses those that kernels do not have."""
    ident, kind, machine = struct.unpack_from("<6s10xHH", raw)
    if ident != b"\x7fELF\x02\x01" or kind != 1 or machine not in (_X86_64, _AARCH64):
        raise CanNotLoadError("not a relocatable ELF object of a known processor")
    start, _, _, _, _, entry, count, names = struct.unpack_from("<QIHHHHHH", raw, 40)
    sections: list[_Section] = []
    for i in range(count):
        name, kind, flags, _, offset, size, link, info, alignment, _ = struct.unpack_from(
            "<IIQQQQIIQQ", raw, start + i * entry
        )
        if kind != _NOBITS and offset + size > len(raw):
            raise CanNotLoadError("a section lies outside the file")
        sections.append(_Section(b"", kind, flags, offset, size, link, info, alignment))
        sections[-1].name = name.to_bytes(4, "little")
    for section in sections:
        at = sections[names].offset + int.from_bytes(section.name, "little")
        section.name = _string(raw, at)
        if section.name in _UNWINDING:
            section.flags = 0
        if section.flags & _WRITE and section.size and not section.name.startswith(_CONSTANT):
            raise CanNotLoadError(f"{section.name.decode()} can be written")
        if section.kind == _REL:
            raise CanNotLoadError("relocations without addends")
    return _Object(raw, machine, sections)


def _bind(source: _Object, memory: mmap.mmap | bytearray, base: int) -> dict[str, int]:
    """Apply an object's relocations; the addresses of its global symbols."""
    symbols = source.symbols()
    apply = _x86_64 if source.machine == _X86_64 else _aarch64
    for table in source.sections:
        section = source.sections[table.info] if table.kind == _RELA else None
        if section is None or section not in source.loaded:
            continue
        raw = source.raw[table.offset : table.offset + table.size]
        for offset, info, addend in struct.iter_unpack("<QQq", raw):
            name, index, value, _ = symbols[info >> 32]
            if not _UNDEFINED < index < _RESERVED:
                raise CanNotLoadError(f"{name.decode()} is not in the object")
            if not 0 <= offset <= section.size - 4:
                raise CanNotLoadError("a relocation lies outside its section")
            at = section.place + offset
            target = base + source.sections[index].place + value + addend
            apply(memory, at, info & 0xFFFFFFFF, target, base + at)
    return {
        name.decode(): base + source.sections[index].place + value
        for name, index, value, binding in symbols
        if binding == 1 and _UNDEFINED < index < _RESERVED
    }


def _x86_64(memory: mmap.mmap | bytearray, offset: int, kind: int, target: int, at: int) -> None:
    if kind == 1:  # R_X86_64_64
        struct.pack_into("<Q", memory, offset, target)
    elif kind in (2, 4):  # PC32, and PLT32 to what is near
        struct.pack_into("<i", memory, offset, target - at)
    elif kind == 24:  # PC64
        struct.pack_into("<q", memory, offset, target - at)
    else:
        raise CanNotLoadError(f"relocation {kind}")


_LOW12 = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # *_LO12_NC: bits that are not encoded


def _aarch64(memory: mmap.mmap | bytearray, offset: int, kind: int, target: int, at: int) -> None:
    (word,) = struct.unpack_from("<I", memory, offset)
    if kind == 257:  # R_AARCH64_ABS64
        struct.pack_into("<Q", memory, offset, target)
        return
    if kind == 261:  # PREL32
        struct.pack_into("<i", memory, offset, target - at)
        return
    if kind in (282, 283):  # JUMP26, CALL26
        word |= _signed(target - at, 28) >> 2
    elif kind == 275:  # ADR_PREL_PG_HI21
        pages = _signed((target >> 12) - (at >> 12), 21)
        word |= (pages & 3) << 29 | pages >> 2 << 5
    elif kind in _LOW12:
        if target & ((1 << _LOW12[kind]) - 1):
            raise CanNotLoadError("a constant is not aligned")
        word |= (target & 0xFFF) >> _LOW12[kind] << 10
    else:
        raise CanNotLoadError(f"relocation {kind}")
    struct.pack_into("<I", memory, offset, word)


def _signed(value: int, bits: int) -> int:
    """`value` in two's complement of `bits`; refuses what does not fit."""
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise CanNotLoadError("a jump is too far")
    return value % (1 << bits)


def _string(raw: bytes, at: int) -> bytes:
    return raw[at : raw.index(0, at)]


def _protect(address: int, n_bytes: int, protection: int) -> None:
    libc = ctypes.CDLL(None)
    arguments = ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), protection
    if n_bytes and libc.mprotect(*arguments):
        raise CanNotLoadError("the system does not let this memory be executed")
