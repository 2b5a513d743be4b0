//! The command `ascend-alloc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ascend_alloc_cli::command::main()
}
