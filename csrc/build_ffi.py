"""Write the C source of the cffi module from the marked part of pgio.h, so that there is one set of declarations.

python build_ffi.py pgio.h _pgio.c
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cffi

BEGIN, END = "/* cffi: begin", "/* cffi: end */"


def declarations(header: str) -> str:
    """The part of the header between the marks, which is plain enough for cffi."""
    if header.count(BEGIN) != 1 or header.count(END) != 1:
        raise ValueError("pgio.h needs exactly one begin mark and one end mark")
    marked = header[header.index(BEGIN) : header.index(END)]
    return re.sub(r"/\*.*?\*/", "", marked, flags=re.DOTALL)


def main(header_path: str, source_path: str) -> None:
    ffi = cffi.FFI()
    ffi.cdef(declarations(Path(header_path).read_text()))
    ffi.set_source("pagegram_io._pgio", '#include "pgio.h"')
    ffi.emit_c_code(source_path)


if __name__ == "__main__":
    main(*sys.argv[1:])
