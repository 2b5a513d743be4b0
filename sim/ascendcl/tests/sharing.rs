//! Memory and events that one process exports and another imports, both through the library.

mod common;

use std::process::Command;

use common::{library, printed};

/// Common to both sides.
const BOTH: &str = "
import ctypes, os, subprocess, sys
from ctypes import byref, c_int, c_size_t, c_uint32, c_uint64, c_void_p
library = ctypes.CDLL(sys.argv[1])
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
SIZE = 4 << 20
def good(code):
    assert code == 0, (code, library.aclGetRecentErrMsg())
def room(handle):
    start = c_void_p()
    good(library.aclrtReserveMemAddress(byref(start), c_size_t(SIZE), c_size_t(0), None, c_uint64(0)))
    good(library.aclrtMapMem(start, c_size_t(SIZE), c_size_t(0), handle, c_uint64(0)))
    return start
def look(start):
    bytes = ctypes.create_string_buffer(8)
    good(library.aclrtMemcpy(bytes, c_size_t(8), c_void_p(start.value + SIZE - 8), c_size_t(8), 2))
    return bytes.raw
good(library.aclInit(None))
good(library.aclrtSetDevice(0))
";

const EXPORTER: &str = "
prop = (c_uint32 * 8)(0, 0, 4, 0, 1, 0, 0, 0)
handle, shared, pid = c_void_p(), c_uint64(), c_int()
good(library.aclrtMallocPhysical(byref(handle), c_size_t(SIZE), byref(prop), c_uint64(0)))
start = room(handle)
good(library.aclrtMemset(start, c_size_t(SIZE), 7, c_size_t(SIZE)))
good(library.aclrtMemExportToShareableHandle(handle, 0, c_uint64(0), byref(shared)))
block, key = c_void_p(), ctypes.create_string_buffer(65)
good(library.aclrtMalloc(byref(block), c_size_t(SIZE - 32), 0))
good(library.aclrtMemset(block, c_size_t(SIZE - 32), 5, c_size_t(SIZE - 32)))
good(library.aclrtIpcMemGetExportKey(block, c_size_t(SIZE - 32), key, c_size_t(65), c_uint64(0)))
event, stream, named = c_void_p(), c_void_p(), ctypes.create_string_buffer(64)
good(library.aclrtCreateEventExWithFlag(byref(event), c_uint32(0x40)))
good(library.aclrtCreateStream(byref(stream)))
good(library.aclrtIpcGetEventHandle(event, named))
importer = subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1], str(shared.value), key.value.decode(),
                             named.raw.hex()],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
pid = c_int(int(importer.stdout.readline()))
good(library.aclrtMemSetPidToShareableHandle(shared, byref(pid), c_size_t(1)))
good(library.aclrtIpcMemSetImportPid(key, byref(pid), c_size_t(1)))
good(library.aclrtRecordEvent(event, stream))
good(library.aclrtSynchronizeStream(stream))
importer.stdin.write('go\\n')
importer.stdin.flush()
assert importer.stdout.readline() == 'written\\n'
assert look(start) == b'\\x09' * 8, look(start)
importer.stdin.write('end\\n')
importer.stdin.flush()
assert importer.wait() == 0
good(library.aclrtIpcMemClose(key))
print('shared')
";

const IMPORTER: &str = "
pid = c_int()
good(library.aclrtDeviceGetBareTgid(byref(pid)))
shared, handle, block = c_uint64(int(sys.argv[2])), c_void_p(), c_void_p()
assert library.aclrtMemImportFromShareableHandle(shared, 0, byref(handle)) == 207006
assert library.aclrtIpcMemImportByKey(byref(block), sys.argv[3].encode(), c_uint64(0)) == 207006
print(pid.value, flush=True)
assert sys.stdin.readline() == 'go\\n'
class Named(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_char * 64)]
event, status = c_void_p(), c_uint32(7)
good(library.aclrtIpcOpenEventHandle(Named.from_buffer_copy(bytes.fromhex(sys.argv[4])), byref(event)))
good(library.aclrtSynchronizeEvent(event))
good(library.aclrtQueryEventStatus(event, byref(status)))
assert status.value == 1, status
good(library.aclrtMemImportFromShareableHandle(shared, 0, byref(handle)))
start = room(handle)
assert look(start) == b'\\x07' * 8, look(start)
good(library.aclrtMemset(start, c_size_t(SIZE), 9, c_size_t(SIZE)))
good(library.aclrtIpcMemImportByKey(byref(block), sys.argv[3].encode(), c_uint64(0)))
look_at = ctypes.create_string_buffer(8)
good(library.aclrtMemcpy(look_at, c_size_t(8), block, c_size_t(8), 2))
assert look_at.raw == b'\\x05' * 8, look_at.raw
print('written', flush=True)
assert sys.stdin.readline() == 'end\\n'
good(library.aclrtIpcMemClose(sys.argv[3].encode()))
good(library.aclrtUnmapMem(start))
good(library.aclrtFreePhysical(handle))
good(library.aclrtReleaseMemAddress(start))
";

fn share(backing: &str) -> String {
    let (exporter, importer) = (format!("{BOTH}{EXPORTER}"), format!("{BOTH}{IMPORTER}"));
    let mut python = Command::new("python3");
    python.args(["-c", &exporter]).arg(library()).arg(importer);
    // A capacity that all kinds of backing take.
    python.env("ASCEND_SIM_CAPACITY", "4G").env("ASCEND_SIM_BACKING", backing);
    printed(&mut python)
}

#[test]
fn chunks_blocks_and_events_are_shared_by_processes_that_are_allowed_to() {
    assert_eq!(share("tables"), "shared\n");
    assert_eq!(share("mapped"), "shared\n");
}
