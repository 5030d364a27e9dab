"""Build and load the kernels of `ternary.cpp`, once per machine and source.

A C++ compiler (`CXX`, c++, g++ or clang++) builds them on first use, in a few seconds, into
`$XDG_CACHE_HOME/chimera` or `~/.cache/chimera`; the name hashes source, compiler and torch. The
folder is the user's alone: a folder that others own or may write to is not read, and the
library is then built in a temporary one. Plain `c++ -shared` and ctypes: torch's own loader needs
ninja and half a minute for its headers. The kernels share torch's OpenMP threads.

`library()` is None without a compiler, and with CHIMERA_KERNELS=0; callers then compute in torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import c_float, c_int32, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("ternary.cpp")
HEADER = Path(__file__).with_name("ternary_dots.h")
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fno-math-errno")
COMPILERS = ("c++", "g++", "clang++")
#: Seconds that a compiler may take.
PATIENCE = 120
PATHS = ("plain", "AVX2", "AVX-512 VNNI")


class Library:
    """The loaded kernels.

    Args:
        file: shared library.
    """

    def __init__(self, file: Path) -> None:
        self._library = ctypes.CDLL(str(file))
        self.product = self._library.chimera_product
        self.product.argtypes = [
            c_int32, c_int32, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p,
        ]  # fmt: skip
        self.linear = self._library.chimera_linear
        self.linear.argtypes = [
            c_int32, c_int32, c_void_p, c_int64, c_int64, c_int32, *[c_float] * 4,
            c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p,
        ]  # fmt: skip
        self.product.restype = self.linear.restype = None
        #: The best path that this CPU has and that computes what the plain one does.
        self.path = next(p for p in range(self._library.chimera_best_path(), -1, -1) if self._is(p))

    @property
    def name(self) -> str:
        """Name of the path."""
        return PATHS[self.path]

    def _is(self, path: int) -> bool:
        """Whether a path gives the sums of the plain one, in whole tiles and in parts of them."""
        if path == 0:
            return True
        generator = torch.Generator().manual_seed(0)
        for tokens, blocks, height in ((5, 1, 7), (1, 17, 35), (7, 34, 6)):
            packed = torch.randint(0, 256, (height, 32 * blocks), generator=generator)
            packed = (packed & ~(packed >> 1) & 0x55 | packed & 0xAA).to(torch.uint8)  # no code 3
            codes = torch.randint(-128, 128, (tokens, 128 * blocks), generator=generator)
            codes = codes.to(torch.int8)
            sums = [torch.empty(tokens, height, dtype=torch.int32) for _ in range(2)]
            for each, out in zip((path, 0), sums, strict=True):
                self.product(
                    each, 1, codes.data_ptr(), tokens, codes.shape[1], packed.data_ptr(), height,
                    out.data_ptr(),
                )  # fmt: skip
            if not torch.equal(*sums):
                return False
        return True


@cache
def library() -> Library | None:
    """The kernels, built if they have to be; None if they cannot be."""
    if os.environ.get("CHIMERA_KERNELS") == "0" or os.name != "posix":
        return None
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *COMPILERS))), None)
    if compiler is None:
        return None
    try:
        return _loaded(compiler)
    except (OSError, subprocess.SubprocessError):
        return None


def _loaded(compiler: str) -> Library:
    state = os.stat(compiler)
    sources = (SOURCE.read_bytes(), HEADER.read_bytes())
    facts = (*sources, FLAGS, compiler, state.st_size, state.st_mtime_ns)
    digits = hashlib.sha256(repr((*facts, torch.__version__, platform.machine())).encode())
    name = f"ternary-{digits.hexdigest()[:16]}.so"
    folder = _own_folder()
    if folder is not None:
        file = folder / name
        if not (_is_mine(file) and file.is_file()):
            _build(compiler, file)
        return Library(file)
    with tempfile.TemporaryDirectory() as temporary:  # private; a loaded file needs no name
        _build(compiler, Path(temporary) / name)
        return Library(Path(temporary) / name)


def _own_folder() -> Path | None:
    """Folder of built libraries, made if missing; None if others could write to it."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "chimera"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_mine(folder):
            return folder
    return None


def _is_mine(path: Path) -> bool:
    """Whether this user owns a path, which is no link, and nobody else may write to it."""
    try:
        state = os.lstat(path)
    except OSError:
        return False
    return state.st_uid == os.getuid() and not state.st_mode & 0o022 and not path.is_symlink()


def _build(compiler: str, file: Path) -> None:
    """Compile to a file that appears whole, with OpenMP if the compiler has it.

    Raises:
        OSError, subprocess.SubprocessError: no compiler, or it fails.
    """
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made, built = Path(folder) / "ternary.o", Path(folder) / "ternary.so"
        runtime = _openmp()
        link = [runtime] if runtime else ["-fopenmp"]
        try:
            _run(compiler, *FLAGS, "-fopenmp", "-c", str(SOURCE), "-o", str(made))
            _run(compiler, "-shared", str(made), *link, "-o", str(built))
        except subprocess.CalledProcessError:
            _run(compiler, *FLAGS, "-shared", str(SOURCE), "-o", str(built))
        built.chmod(0o700)
        built.replace(file)


def _openmp() -> str | None:
    """Path of the OpenMP library that torch brings; another one would have threads of its own."""
    root = Path(torch.__file__).parent
    places = (root / "lib", root.parent / "torch.libs")
    return next((str(p) for place in places for p in sorted(place.glob("libgomp*.so*"))), None)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
