"""Shared libraries of kernels and the custom op, which ONNX Runtime loads without this package.

Every kernel is compiled for several instruction sets.  The library chooses among them when it is registered, and
reports a processor that fits none.  It exports ``RegisterCustomOps`` only.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from struct import Struct

from einnet_explore.runtime import compiled
from einnet_explore.runtime.onnx_fragment import SessionKernel, custom_op_text

API_VERSION = 17
"""The version of ONNX Runtime's C API that the custom op uses, as in ``custom_op.c``."""

INSTRUCTION_SETS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")
"""Instruction sets, best first, named as compilers do: AVX-512, AVX2 with FMA, SSE4.2."""

_LINK_FLAGS = ("-shared", "-s", "-Wl,--build-id=none", "-Wl,-z,defs", "-Wl,-z,noexecstack")
_HEADERS_AT, _HEADER_SIZES = Struct("<Q"), Struct("<HH")
"""Fields of the header of an ELF file, at bytes 32 and 54."""

_VERSION_SCRIPT = "{ global: RegisterCustomOps; local: *; };\n"


@dataclass
class LibraryKernels:
    """Kernels of a library, by numbers that are made of their keys: equal kernels are compiled once."""

    kernels: dict[int, SessionKernel] = field(default_factory=dict)

    def number(self, kernel: SessionKernel) -> int:
        """Return the number of *kernel*, which becomes one of the library's."""
        number = int.from_bytes(hashlib.sha256(kernel.key.encode()).digest()[:7])
        self.kernels.setdefault(number, kernel)
        return number

    def write(self, path: Path, sets: Sequence[str] = INSTRUCTION_SETS, flags: Sequence[str] = ()) -> None:
        """Compile all kernels for *sets* and write the library to *path*; *flags* go to the compiler of the custom op.

        Raises BackendError without a C compiler, and if a compiler refuses a kernel.
        """
        with tempfile.TemporaryDirectory() as folder:
            here = Path(folder)
            objects = list(self._write_objects(here, sets))
            source, exports = here / "library.c", here / "exports.map"
            source.write_text("\n".join((custom_op_text(), *self._table(sets), _lookup_text())))
            exports.write_text(_VERSION_SCRIPT)
            names = (f"-ffile-prefix-map={folder}=.", f"-Wl,--version-script={exports}")
            compiled.run_c_compiler(
                "-O2", "-fPIC", *_LINK_FLAGS, *names, *flags, str(source), *objects, "-o", str(path), "-lm"
            )
        path.write_bytes(_move_headers_to_end(path.read_bytes()))

    def _write_objects(self, folder: Path, sets: Sequence[str]) -> Iterable[str]:
        for number, kernel in self.kernels.items():
            for cpu in sets:
                name = _entry_name(number, cpu)
                path = folder / f"{name}.o"
                kernel.write_object(path, name, cpu)
                yield str(path)

    def _table(self, sets: Sequence[str]) -> Iterable[str]:
        """The C text of the table of kernels."""
        for number in self.kernels:
            for cpu in sets:
                yield f"int {_entry_name(number, cpu)}(void *, const Any *, int32_t, Any *);"
        yield f"enum {{ SETS = {len(sets)}, KERNELS = {len(self.kernels)} }};"
        yield f'#define SET_NAMES "{", ".join(sets)}"'
        yield "static int supports(int set)\n{\n    __builtin_cpu_init();"
        yield from (f'    if (set == {n}) return !!__builtin_cpu_supports("{cpu}");' for n, cpu in enumerate(sets))
        yield "    return 0;\n}"
        yield "static const struct { int64_t number; Entry entries[SETS]; } kernels[KERNELS + 1] = {"
        for number in self.kernels:
            yield f"    {{ {number}, {{ {', '.join(_entry_name(number, cpu) for cpu in sets)} }} }},"
        yield "    { 0 }\n};"


def _move_headers_to_end(library: bytes) -> bytes:
    """Move the program headers of an ELF file to its end.

    The loader reads them first, so it refuses a file that was cut off; otherwise it would crash on the missing pages.
    """
    start, size, count = *_HEADERS_AT.unpack_from(library, 32), *_HEADER_SIZES.unpack_from(library, 54)
    padded = library + bytes(-len(library) % 8)
    moved = padded + library[start : start + size * count]
    return moved[:32] + _HEADERS_AT.pack(len(padded)) + moved[40:]


def _entry_name(number: int, cpu: str) -> str:
    return f"{compiled.ENTRY_POINT_PREFIX}k{number}_{cpu.replace('-', '_')}"


def _lookup_text() -> str:
    return resources.files(__package__).joinpath("kernel_library.c").read_text()
