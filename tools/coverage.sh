#!/bin/sh
# Measures which lines of src the tests run, and prints a table by folder and the lines that none of them runs.
#
#   tools/coverage.sh [arguments of cargo test]
#
# Needs Python 3, and llvm-profdata and llvm-cov of the LLVM version that rustc has (22 for Rust 1.95; `rustc -vV` says it): Debian's package
# llvm-22, or a folder with both named in LLVM_BIN. Older ones cannot read the profiles. Nothing is downloaded.
#
# Without arguments: the README's `cargo test`. Programs that tests start count too, the C programs with libascend_alloc.so
# among them, unless they are killed or leave by _exit. Only packages of this workspace are instrumented. Builds and profiles go
# to a folder of their own, `coverage` in the target folder; profiles of earlier runs are removed unless COVERAGE_KEEP is set.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
version=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
bin=${LLVM_BIN:-/usr/lib/llvm-$version/bin}
for tool in llvm-profdata llvm-cov; do
    if [ ! -x "$bin/$tool" ]; then
        echo "$bin/$tool is missing: install LLVM $version (Debian: llvm-$version), or name its folder in LLVM_BIN" >&2
        exit 2
    fi
done

target=${CARGO_TARGET_DIR:-$root/target}
case "$target" in
/*) ;;
*) target=$root/$target ;;
esac
export CARGO_TARGET_DIR="$target/coverage"
profiles=$CARGO_TARGET_DIR/profiles
mkdir -p "$profiles"
[ -n "${COVERAGE_KEEP:-}" ] || rm -f "$profiles"/*.profraw

# Instruments this workspace's packages and leaves the others as they are. Not in sh, which drops variables whose names have a dash.
export RUSTC_WORKSPACE_WRAPPER="$CARGO_TARGET_DIR/instrumented"
[ -x "$RUSTC_WORKSPACE_WRAPPER" ] || {
    cat >"$RUSTC_WORKSPACE_WRAPPER" <<'END'
#!/usr/bin/env python3
import os, sys
os.execvp(sys.argv[1], [*sys.argv[1:], "-Cinstrument-coverage"])
END
    chmod +x "$RUSTC_WORKSPACE_WRAPPER"
}
# Build scripts are instrumented too, and are not looked at.
LLVM_PROFILE_FILE=/dev/null cargo test --locked --no-run --message-format=json-render-diagnostics "$@" >"$profiles/built.json"
failed=0
LLVM_PROFILE_FILE="$profiles/%8m.profraw" cargo test --locked --no-fail-fast "$@" || failed=$?
"$bin/llvm-profdata" merge -sparse "$profiles"/*.profraw -o "$profiles/all.profdata"
python3 tools/coverage.py "$bin/llvm-cov" "$profiles" "$CARGO_TARGET_DIR/debug"
exit "$failed"
