"""Let the C library keep the memory that a step frees, so that the next step finds it mapped.

glibc gives memory at the top of its heap back to the system when more than a bound is free, at the
end of each backward pass, and takes each large tensor from the system anew. The system then clears
every page again: a quarter of a step in bfloat16 went there (notebooks/evidence/speed.ipynb).
Numbers do not change.
Neither does the largest amount in use; between steps a process keeps up to `KEPT` that it would
have given back.
"""

from __future__ import annotations

import ctypes
import os

#: Parameters of mallopt(3): bytes free at the top from which on memory is given back, and bytes
#: from which on a block is taken from the system by itself; glibc allows the second up to 32 MiB.
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
KEPT = 1 << 30
LARGEST = 32 << 20
#: Variables by which a user sets the same; they are left as they are.
OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Set glibc's bounds for this process; False where there is no glibc, or the user set them."""
    if any(name in os.environ for name in OWN) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version  # noqa: B018  other C libraries take these numbers for others
        mallopt = libc.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(TRIM_THRESHOLD, KEPT) and mallopt(MMAP_THRESHOLD, LARGEST))
