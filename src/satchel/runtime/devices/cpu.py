"""The worker loop's own words for each processor and system: to spin, to tell time, to sleep."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Isa:
    """What of the loop an instruction set decides, in LLVM's text."""

    futex: int  # the number of Linux's system call
    clock: str  # reads a clock that programs may read and that runs evenly
    pause: str  # tells the core that this is a spin
    get_policy: int  # the numbers of get_mempolicy and set_mempolicy
    set_policy: int
    features: str = ""  # that LLVM needs for these


ISAS = {
    "x86_64": Isa(
        futex=202,
        clock="call i64 @llvm.readcyclecounter()",
        pause="call void @llvm.x86.sse2.pause()",
        get_policy=239,
        set_policy=238,
    ),
    "aarch64": Isa(
        futex=98,
        clock='call i64 @llvm.read_volatile_register.i64(metadata !{!"cntvct_el0"})',
        pause="call void @llvm.aarch64.hint(i32 1)",
        get_policy=236,
        set_policy=237,
    ),
    "riscv64": Isa(
        futex=98,
        clock="call i64 @llvm.readsteadycounter()",
        pause="call void @llvm.riscv.pause()",
        get_policy=236,
        set_policy=237,
        # the pause is a fence without effect where a core does not know it
        features="+m,+a,+f,+d,+c,+zihintpause",
    ),
}

# Sleep while the 32-bit word at %word is %seen (or less long); wake all who sleep on a word.
SLEEP = {
    "linux": """
define internal void @sleep(ptr %c, ptr %word, i32 %seen) nounwind {
  %call.p = field %c, Control.sleep_call
  %call = load ptr, ptr %call.p                        ; syscall(futex, word, FUTEX_WAIT | PRIVATE)
  %status = call i64 (i64, ...) %call(i64 {futex}, ptr %word, i64 128, i32 %seen, ptr null)
  ret void
}
define internal void @wake(ptr %c, ptr %word) nounwind {
  %call.p = field %c, Control.wake_call
  %call = load ptr, ptr %call.p                        ; syscall(futex, word, FUTEX_WAKE | PRIVATE)
  %status = call i64 (i64, ...) %call(i64 {futex}, ptr %word, i64 129, i32 2147483647)
  ret void
}
""",
    "darwin": """
define internal void @sleep(ptr %c, ptr %word, i32 %seen) nounwind {
  %call.p = field %c, Control.sleep_call
  %call = load ptr, ptr %call.p                        ; __ulock_wait(COMPARE_AND_WAIT | NO_ERRNO)
  %value = zext i32 %seen to i64
  %status = call i32 %call(i32 16777217, ptr %word, i64 %value, i32 0)
  ret void
}
define internal void @wake(ptr %c, ptr %word) nounwind {
  %call.p = field %c, Control.wake_call
  %call = load ptr, ptr %call.p                        ; __ulock_wake(... | WAKE_ALL)
  %status = call i32 %call(i32 16777473, ptr %word, i64 0)
  ret void
}
""",
    "win32": """
define internal void @sleep(ptr %c, ptr %word, i32 %seen) nounwind {
  %call.p = field %c, Control.sleep_call
  %call = load ptr, ptr %call.p                        ; WaitOnAddress, without a time limit
  %value = alloca i32
  store i32 %seen, ptr %value
  %status = call i32 %call(ptr %word, ptr %value, i64 4, i32 -1)
  ret void
}
define internal void @wake(ptr %c, ptr %word) nounwind {
  %call.p = field %c, Control.wake_call
  %call = load ptr, ptr %call.p                        ; WakeByAddressAll
  call void %call(ptr %word)
  ret void
}
""",
}


def system() -> str:
    """This system, as `SLEEP` calls it: what is not known is taken for a Linux."""
    return "linux" if sys.platform not in SLEEP else sys.platform


def system_calls(system: str) -> tuple[int, int]:
    """Where this process has the functions to sleep and to wake that `SLEEP` calls."""
    library, names = {
        "linux": (None, ("syscall", "syscall")),
        "darwin": (None, ("__ulock_wait", "__ulock_wake")),
        "win32": ("api-ms-win-core-synch-l1-2-0.dll", ("WaitOnAddress", "WakeByAddressAll")),
    }[system]
    functions = ctypes.CDLL(library)
    sleep, wake = (ctypes.cast(functions[name], ctypes.c_void_p).value or 0 for name in names)
    return sleep, wake
