//! Processes: forks, every way to end, unloading, the report at exit. Each in programs of their own.

mod common;

use std::process::Command;

use common::{clean, folder, library, printed, program, run};

#[test]
fn a_forked_child_gets_errors_and_its_parent_goes_on() {
    assert_eq!(printed(&mut clean(&program("fork.c", false))), "done\n");
}

#[test]
fn a_process_may_end_in_any_way() {
    let program = program("ending.c", false);
    for how in ["return", "exit", "quick", "thread"] {
        for _ in 0..5 {
            let output = run(clean(&program).arg(how));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(text.contains("destroyed"), how != "quick", "{how}: {text}");
        }
    }
}

#[test]
fn the_library_may_be_closed_while_work_runs() {
    let program = program("unload.c", true);
    assert_eq!(printed(clean(&program).arg(library())), "60\n");
}

#[test]
fn the_report_at_exit_names_what_was_left_and_nothing_else() {
    let program = program("report.c", false);
    let file = folder("report").join("report.txt");
    let report = |how: &str| {
        run(clean(&program).arg(how).env("ASCEND_SIM_REPORT", &file));
        std::fs::read_to_string(&file).expect("the report is written")
    };
    let text = report("clean");
    assert!(text.contains("0 finding(s)\n") && text.contains("0 leak(s)\n"), "{text}");
    let text = report("dirty");
    // The fill may also have run by then, on memory that is gone.
    assert!(!text.contains(" 0 finding(s)\n") && text.contains("finding: unordered use"), "{text}");
    assert!(text.contains("aclrtMemsetAsync"), "the finding names the work: {text}");
    assert!(
        !text.contains(" 0 leak(s)\n") && text.contains("leak: ") && text.contains("by aclrtMalloc (call 2"),
        "{text}"
    );
    let output = run(clean(&program).arg("dirty").env("ASCEND_SIM_REPORT", "stderr"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("leak(s)"));
    assert!(run(clean(&program).arg("dirty")).stderr.is_empty(), "without the variable nothing is written");
}

#[test]
fn python_may_fork_exit_and_call_from_threads() {
    let script = "
import atexit, ctypes, os, sys, threading
library = ctypes.CDLL(sys.argv[1])
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
def good(code):
    assert code == 0, (code, library.aclGetRecentErrMsg())
good(library.aclInit(None))
good(library.aclrtSetDevice(0))
block = ctypes.c_void_p()
good(library.aclrtMalloc(ctypes.byref(block), ctypes.c_size_t(1 << 20), 0))
atexit.register(lambda: good(library.aclrtFree(block)))
def other():
    assert library.aclrtGetDevice(ctypes.byref(ctypes.c_int())) == 107002
    assert b'aclrtGetDevice' in library.aclGetRecentErrMsg()
    good(library.aclrtSetDevice(1))
threads = [threading.Thread(target=other) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert library.aclGetRecentErrMsg() is None, 'errors of other threads are theirs'
child = os.fork()
if child == 0:
    code = library.aclrtSetDevice(0)
    os._exit(0 if code == 507033 and b'forked' in library.aclGetRecentErrMsg() else 1)
assert os.waitpid(child, 0)[1] == 0
print('done')
";
    let python = std::env::var_os("PYTHON").unwrap_or_else(|| "python3".into());
    assert_eq!(printed(Command::new(python).args(["-c", script]).arg(library())), "done\n");
}
