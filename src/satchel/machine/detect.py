"""Which machine this is."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache

from satchel.machine.linux import read_linux
from satchel.machine.machine import Machine
from satchel.machine.others import read_darwin, read_other

_ISAS = {"amd64": "x86_64", "arm64": "aarch64"}


@cache
def this_machine() -> Machine:
    """The computer that this process runs on, looked at once."""
    isa = os.uname().machine if hasattr(os, "uname") else platform.machine()
    isa = _ISAS.get(isa.lower(), isa.lower())
    if sys.platform.startswith("linux"):
        return read_linux(isa, allowed=frozenset(os.sched_getaffinity(0)))
    if sys.platform == "darwin":
        return read_darwin(isa)
    return read_other(isa, sys.platform)
