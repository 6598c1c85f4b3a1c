#!/usr/bin/env -S python3 -IS
"""The compile launcher of a survey, where every translation unit is tried, whatever becomes of the others.

Build tools stop at the first failure, so that one refused unit hides what the rest has to say. Here a refused unit leaves
a file that no linker takes for an object, and success is reported: all units are attempted, and the link then fails. What
the compiler said goes to the log of units, and finished objects are kept: whether a kernel is a stub only they tell. Host
code says nothing about an architecture and takes most of the time until then, so it is left out.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import compile_launcher

COMPILES = ("-c", "--compile", "-dc", "--device-c", "--cubin", "-cubin")
OBJECTS = os.environ.get("CLEANROOM_OBJECTS", "/out/objects")
PLACEHOLDER = b"This unit was refused or left out; its build goes on only to try the others.\n"
LONGEST = 20_000
"""Characters of a compiler's output that are kept: the first error is what counts."""


def main() -> int:
    arguments = sys.argv[1:]
    sources = [a for a in arguments if a.endswith(compile_launcher.SOURCES) and not a.startswith("-")]
    output = compile_launcher.value_of(arguments, "-o", "--output-file")
    compiles = len(sources) == 1 and any(a in COMPILES for a in arguments)
    if compiles and output and os.path.basename(sys.argv[0]) != "nvcc":
        return leave_out(output)
    printed = io.TextIOWrapper(io.BytesIO())
    shown, sys.stdout = sys.stdout, printed
    try:
        status = compile_launcher.main()
    finally:
        sys.stdout = shown
    said = printed.buffer.getvalue()  # what compile_launcher wrote is bytes, past the text layer
    sys.stdout.buffer.write(said)
    sys.stdout.flush()
    if not compiles or output is None:
        return status
    if status == 0:
        keep(output)
        return 0
    text = said.decode(errors="replace")[:LONGEST]
    compile_launcher.record(event="refused", unit=sources[0], output=output, text=text)
    return leave_out(output)


def leave_out(output: str) -> int:
    """Put something in the place of an object that no linker takes for one, and report success."""
    with open(output, "wb") as stream:
        stream.write(PLACEHOLDER)
    return 0


def keep(output: str) -> None:
    """Copy an object to where the stage's results are, under a name that its path gives."""
    os.makedirs(OBJECTS, exist_ok=True)
    shutil.copyfile(output, os.path.join(OBJECTS, hashlib.sha256(output.encode()).hexdigest()[:16] + ".o"))


if __name__ == "__main__":
    sys.exit(main())
