"""MindSpore on ascend-alloc: one line before training.

    import ascend_alloc_mindspore
    ascend_alloc_mindspore.enable()                 # until the process ends

or, for a part of a program,

    with ascend_alloc_mindspore.use():
        ...

and after each step `ascend_alloc_mindspore.end_step()`. README.md beside this file says why, and what MindSpore's
hook does differently from its documentation.
"""

import atexit
import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

__all__ = ["enable", "end_step", "library_path", "stats", "use"]

#: Names the library, where it is neither beside this file nor known to the loader.
LIBRARY = "ASCEND_ALLOC_LIBRARY"
_FILE = "libascend_alloc.so"
_MALLOC, _FREE = "ascend_alloc_malloc", "ascend_alloc_free"

_lock = threading.Lock()
#: How many of our contexts are open, and MindSpore's context that the first one entered.
_depth, _entered = 0, None
_pool = None


def library_path() -> str:
    """What is loaded: the file that the environment variable ASCEND_ALLOC_LIBRARY names, else the one beside this
    module, else the name alone, for the loader to find."""
    named = os.environ.get(LIBRARY)
    if named:
        if not Path(named).is_file():
            raise FileNotFoundError(f"{LIBRARY} names {named}, which is no file")
        return named
    beside = Path(__file__).resolve().with_name(_FILE)
    return str(beside) if beside.is_file() else _FILE


@contextlib.contextmanager
def use() -> Iterator[None]:
    """MindSpore's device memory comes from ascend-alloc inside.

    The switch is MindSpore's, and it counts for the whole process: other threads take part. Contexts of this
    function nest, also with `enable`, and may be used by several threads: the outermost counts. MindSpore's own
    `use_mem_pool` must not be used inside, because leaving it ends ours.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def enable() -> None:
    """MindSpore's device memory comes from ascend-alloc from now on. Calling it again changes nothing more."""
    _enter()


def end_step() -> None:
    """Gives what MindSpore has cached back to ascend-alloc; to be called between steps.

    MindSpore keeps every block it ever got and reuses it only whole; ascend-alloc puts free memory together anew for
    each request, but only what it has been given back.
    """
    import mindspore

    mindspore.runtime.empty_cache()


def stats(device: int = 0) -> dict[str, int]:
    """Statistics of ascend-alloc for a device of this process, as `name.pool.figure`, such as
    "reserved_bytes.all.peak": the names of torch.npu.memory_stats(). Bytes or counts."""
    library = _load()
    raw = _Stats(struct_size=ctypes.sizeof(_Stats))
    if library.ascend_alloc_stats(ctypes.c_int(device), ctypes.byref(raw)) != 0:
        raise RuntimeError(_last_error(library))
    flat = {}
    for name in _ARRAYS:
        for pool, _ in _StatArray._fields_:
            for figure, _ in _Stat._fields_:
                flat[f"{name}.{pool}.{figure}"] = getattr(getattr(getattr(raw, name), pool), figure)
    for name in _SINGLE:
        flat.update({f"{name}.{figure}": getattr(getattr(raw, name), figure) for figure, _ in _Stat._fields_})
    return flat | {name: getattr(raw, name) for name in _NUMBERS}


def _enter() -> None:
    global _depth, _entered, _pool
    with _lock:
        if _depth == 0:
            _refuse_what_ignores_the_hook()
            if _pool is None:
                _pool = _make_pool()
                # Runs before MindSpore's own end, in which it gives its blocks back and then resets the device.
                atexit.register(_load().ascend_alloc_finish)
            import mindspore

            # The hook is told the device that set_context has set; set_device alone leaves it at 0.
            mindspore.set_context(device_id=mindspore.get_context("device_id"))
            context = mindspore.runtime.use_mem_pool(_pool)
            try:
                context.__enter__()
            except NameError as error:
                raise RuntimeError(
                    "MindSpore has not loaded its Ascend plug-in, so that it has no pluggable allocator here; "
                    "the log says what it could not load"
                ) from error
            _entered = context
        _depth += 1


def _leave() -> None:
    global _depth, _entered
    with _lock:
        _depth -= 1
        if _depth == 0:
            context, _entered = _entered, None
            context.__exit__(None, None, None)


def _make_pool():
    import mindspore

    path = library_path()
    try:
        return mindspore.runtime.MemPool(mindspore.runtime.PluggableAllocator(path, _MALLOC, _FREE))
    except (OSError, AttributeError) as error:
        raise RuntimeError(
            f"{path} cannot be used: {error}. Build it with `cargo build --release -p ascend-alloc-ffi` "
            f"and name it in {LIBRARY}"
        ) from error


def _refuse_what_ignores_the_hook() -> None:
    settings = dict(part.partition(":")[::2] for part in os.environ.get("MS_ALLOC_CONF", "").split(","))
    if settings.get("older_pool", "").strip().lower() == "true":
        raise RuntimeError("MS_ALLOC_CONF says older_pool:True; that memory pool of MindSpore ignores pluggable allocators")


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(library_path())
    library.ascend_alloc_last_error.restype = ctypes.c_char_p
    return library


def _last_error(library: ctypes.CDLL) -> str:
    text = library.ascend_alloc_last_error()
    return text.decode(errors="replace") if text else "no reason is known"


class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("current", "peak", "allocated", "freed")]


class _StatArray(ctypes.Structure):
    _fields_ = [(name, _Stat) for name in ("all", "small_pool", "large_pool")]


_ARRAYS = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
]
_SINGLE = ["oversize_allocations", "oversize_segments"]
_NUMBERS = [
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "max_split_size",
    "reserved_address_space",
    "cached_handles",
    "sleeping_bytes",
    "chunks_moved",
    "map_calls",
    "unmap_calls",
    "malloc_physical_calls",
    "free_physical_calls",
    "wait_calls",
    "size_mismatches",
]


class _Stats(ctypes.Structure):
    """The beginning of ascend_alloc_stats_t; the library fills in as much as struct_size says."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        *((name, _StatArray) for name in _ARRAYS),
        *((name, _Stat) for name in _SINGLE),
        *((name, ctypes.c_int64) for name in _NUMBERS),
    ]
