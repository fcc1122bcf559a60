"""How the kernels are compiled: without the GIL, once for a machine, kept in a private folder."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numba
from llvmlite import ir
from numba import types
from numba.core import event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.compiler import Compiler
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.extending import intrinsic

try:
    import fcntl
except ImportError:  # Windows: two processes may compile the same kernel there
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("perturb_mpm")


@functools.cache
def import_array_functions() -> None:
    """Import the array functions that Numba's compiler needs, without SciPy's linear algebra.

    Numba imports that only to know whether it is there, a fifth of the time to the first kernel,
    and asks again wherever a product of matrices is compiled.
    """
    from numba.np import linalg

    ask = linalg.ensure_blas
    linalg.ensure_blas = lambda: None
    try:
        from numba.np import arraymath

        arraymath.ensure_blas = ask
    finally:
        linalg.ensure_blas = ask


def cache_folder() -> Path | None:
    """Return a folder that only this user can write to, or None where there is none.

    Numba's cache files are executed when they are read, so a folder that others could write to
    is not used.
    """
    if "PERTURB_MPM_CACHE" in os.environ:
        base = Path(os.environ["PERTURB_MPM_CACHE"])
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home())) / "perturb-mpm"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perturb-mpm"
    folder = base / f"kernels-{sources()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except OSError:
        return None
    private = sys.platform == "win32" or (
        found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
    return folder if private and os.access(folder, os.W_OK) else None


def sources() -> str:
    """Return a name for the present state of all kernels and of what compiles them.

    Numba looks at the file of a kernel only, not at those of the kernels it calls, and replaces
    what another of its versions compiled.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    here = Path(__file__).parent
    constants = (here.parents[1] / "noise").glob("*.py")  # of Philox, and the polynomials
    for path in sorted([*here.glob("*.py"), here.parent / "lattice.py", *constants]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


_FOLDER = cache_folder()
_BESIDE: list[subprocess.Popen[bytes]] = []  # nobody waits for it; Python warns of one let go
_DONE = "compiled-ahead"  # a file in the folder
POLL_S = 0.02
LONGEST_WAIT_S = 300.0  # for a kernel that another process compiles


def start_compiling(*, white: bool) -> None:
    """Run ``ahead.py`` beside this process, unless that was done to its end for these sources."""
    if _FOLDER is None or _BESIDE or (_FOLDER / _DONE).exists():
        return
    with suppress(OSError):
        noise = "white" if white else "correlated"
        process = subprocess.Popen(  # noqa: S603 - this package's own module
            [sys.executable, "-P", "-m", "perturb_mpm.engines.cpu.ahead", noise],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _BESIDE.append(process)


@contextmanager
def only_compiler() -> Iterator[bool]:
    """Yield whether no other process compiles ahead; whoever comes to the end need not begin again.

    A process that dies before its end is followed by that of the next run.
    """
    if _FOLDER is None:
        yield False
        return
    with (_FOLDER / "ahead.lock").open("wb") as lock:
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another one does, or files cannot be locked
            yield False
            return
        yield True
        (_FOLDER / _DONE).touch()


class KernelFiles(IndexDataCacheFile):  # type: ignore[misc]
    """Numba's cache files, each with what it was compiled for and a digest at its end.

    A power cut may leave a file with pages of zeros, or an index that names the file of another
    signature: neither may be executed.
    """

    def save(self, key: Any, data: Any) -> None:
        """Write one compiled signature."""
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        """Return one compiled signature, None where there is none."""
        kept, data = super().load(key) or (key, None)
        if kept != key:
            raise ValueError("it is of another signature")
        return data

    def _dump(self, obj: Any) -> bytes:
        content: bytes = super()._dump(obj)
        return content + hashlib.sha256(content).digest()  # unpickling ends before it

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(content[:-32]).digest() != content[-32:]:
            raise ValueError("it is not as it was written")
        return super()._load_data(name)


_Implementation: Any = FunctionCache._impl_class


class _KernelLocator(_Implementation._locator_classes[0]):  # type: ignore[misc]
    """Where a kernel is kept: by its module and the content of its file.

    Neither the path nor the time of the file counts, so that every checkout and environment with
    the same kernels shares them.
    """

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        super().__init__(function, file)
        self._cache_path = str(Path(numba.config.CACHE_DIR) / function.__module__)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _KernelLocator:
        """Return where a kernel is kept; whether files can be written there shows when one is."""
        return cls(function, file)

    def get_source_stamp(self) -> str:
        """Return the digest of the kernel's file."""
        return hashlib.sha256(Path(self._py_file).read_bytes()).hexdigest()


class _KernelImplementation(_Implementation):  # type: ignore[misc]
    _locator_classes = (_KernelLocator,)


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache of one kernel; damaged or unwritable files cost a compilation, never a run.

    A power cut leaves files of length 0 behind, and a disk may be full: what cannot be read is
    compiled and written again, what cannot be written is compiled again next time. While one
    process compiles a kernel, others wait for it.
    """

    _impl_class = _KernelImplementation
    _cache_file: Any
    _lock: IO[bytes] | None = None

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        files = self._cache_file
        names = (files._cache_path, self._impl.filename_base, files._source_stamp)
        self._cache_file = KernelFiles(*names)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled kernel; None where there is none that can be read."""
        found = self._load(sig, target_context)
        if found is None and self._wait_for_others():
            found = self._load(sig, target_context)
            if found is not None:
                self._let_others()
        if found is None:  # Numba compiles it next
            import_array_functions()
        return found

    def has(self, sig: Any, target_context: Any) -> bool:
        """Return whether the folder has this kernel, as far as its index tells."""
        key = self._index_key(sig, target_context.codegen())
        try:
            return key in self._cache_file._load_index()
        except Exception:  # noqa: BLE001 - unpickling damaged bytes raises anything
            return False

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled kernel, or say once that it cannot be kept."""
        self._write(super().save_overload, sig, data)
        self._let_others()

    def _load(self, sig: Any, target_context: Any) -> Any:
        """Return what is kept, without the imports that only compiling needs.

        They take a third of the time to the first result, and the compiler makes up for them.
        """
        try:
            rtsys.initialize(target_context)  # kernels take memory from it
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
            return None
        except Exception as error:  # noqa: BLE001 - unpickling damaged bytes raises anything
            log.info("compiling %s again: its cache is damaged (%s)", self._name, error)
            self._write(self.flush)
            return None

    def _wait_for_others(self) -> bool:
        """Lock this kernel; return whether another process had it, and may have written it.

        A process that dies gives its locks back, and one that hangs is not waited for. A kernel
        waits only for those that it calls, so that no two processes wait for each other.
        """
        if fcntl is None:
            return False
        waited = False
        with suppress(OSError):  # where files cannot be locked nobody waits
            if self._lock is None:
                path = Path(self._cache_file._cache_path, f"{self._impl.filename_base}.lock")
                path.parent.mkdir(parents=True, exist_ok=True)  # nothing may be kept there yet
                self._lock = path.open("wb")
            for _ in range(round(LONGEST_WAIT_S / POLL_S)):
                try:
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    waited = True
                    time.sleep(POLL_S)
                else:
                    break
        return waited

    def _let_others(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write(self, write: Callable[..., None], *arguments: Any) -> None:
        try:
            write(*arguments)
        except OSError as error:
            self.disable()
            _warn_once(f"compiled kernels are not kept in {_FOLDER}: {error.strerror or error}")


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


class _DisjointCompiler(Compiler):  # type: ignore[misc]
    """Numba's compiler, which lets LLVM rely on arrays that do not overlap."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.state.flags.noalias = True


def disjoint_kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel whose array arguments never overlap: no loop has to ask whether they do."""
    return kernel(function, pipeline_class=_DisjointCompiler)


def kernel_part(function: Callable[..., Any]) -> Any:
    """Make a function a part of every kernel that calls it, so that it is compiled with it alone.

    A function of its own is compiled by itself, and once more with each of its callers.
    """
    return numba.njit(nogil=True, error_model="numpy", inline="always")(function)


def kernel(function: Callable[..., Any], **options: Any) -> Any:
    """Compile a leaf kernel on first use, with exact IEEE arithmetic, and keep it in the cache."""
    compiled = numba.njit(nogil=True, error_model="numpy", **options)(function)
    if _FOLDER is None:
        import_array_functions()
        return compiled
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(_FOLDER)
    try:
        compiled._cache = KernelCache(function)
    finally:
        numba.config.CACHE_DIR = before
    return compiled


def is_compiled(function: Any, *arguments: object) -> bool:
    """Return whether a kernel can be called with such arguments without compiling it."""
    signature = tuple(function.typeof_pyval(each) for each in arguments)
    if signature in function.overloads:
        return True
    cache = function._cache
    return isinstance(cache, KernelCache) and cache.has(signature, cpu_target.target_context)


@intrinsic  # type: ignore[untyped-decorator]
def fma(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Compute a·b + c with one rounding, so that vector width and machine do not change a bit."""
    signature = types.float32(types.float32, types.float32, types.float32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def bits_to_float(typing_context: Any, bits: Any) -> Any:
    """Read the 32 bits of an integer as a float."""
    signature = types.float32(types.int32)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator]
def widen(typing_context: Any, stored: Any) -> Any:
    """Read a float32, or the 16 bits of a half-precision float, as float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if stored == types.float32:
            return arguments[0]
        half = builder.bitcast(arguments[0], ir.HalfType())
        return builder.fpext(half, ir.FloatType())

    return types.float32(stored), generate


@intrinsic  # type: ignore[untyped-decorator]
def narrow(typing_context: Any, value: Any, like: Any) -> Any:
    """Return a float32 in the form of ``like``: itself, or the 16 bits of the nearest half."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if like == types.float32:
            return arguments[0]
        half = builder.fptrunc(arguments[0], ir.HalfType())
        return builder.bitcast(half, ir.IntType(16))

    return like(types.float32, like), generate


class _Announcement(event.Listener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.made = False

    def on_start(self, event: Any) -> None:
        if not self.made:
            self.made = True
            kept = "kept for later runs" if _FOLDER else "no private cache folder: not kept"
            words = "compiling the CPU kernels once, about 10 s on two free cores (%s) …"
            log.warning(words, kept)

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_announcement = _Announcement()


@contextmanager
def announce_compilation() -> Iterator[None]:
    """Say once in a process that kernels are being compiled, if they are."""
    with event.install_listener("numba:compile", _announcement):
        yield
