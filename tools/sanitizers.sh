#!/bin/sh
# Runs the tests under a sanitizer, with the stable compiler.
#
#   tools/sanitizers.sh thread  [arguments of cargo test]     data races
#   tools/sanitizers.sh address [arguments of cargo test]     uses of freed memory, overruns
#
# Without further arguments: the library's own unit tests and the tests that use several threads or raw memory, some of which take
# minutes on a quiet machine; what comes behind `--` chooses among them (tools/sanitizers.sh thread --test pressure -- threads).
# The standard library is not instrumented. Builds go to a folder of their own.
set -eu

kind=${1:?usage: tools/sanitizers.sh thread|address [arguments of cargo test]}
shift
case "$kind" in
thread | address) ;;
*)
    echo "usage: tools/sanitizers.sh thread|address [arguments of cargo test]" >&2
    exit 2
    ;;
esac
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
if [ $# -eq 0 ]; then
    set -- --no-fail-fast --lib --test core_model --test streams --test pools --test captures --test sleep --test history \
        --test host_allocator --test host_random --test publish --test sharing --test peers --test recording \
        --test stats_export --test dlpack --test growable --test growable_random --test pressure --test host_register \
        --test host_transfer --test state_machine
fi
export RUSTC_BOOTSTRAP=1
# Few random programs: each operation takes much longer.
export ASCEND_ALLOC_OPERATIONS="${ASCEND_ALLOC_OPERATIONS:-2000}"
# All symbols are exported, so that libraries which tests load find the sanitizer's functions in the test.
export RUSTFLAGS="-Zsanitizer=$kind -Cunsafe-allow-abi-mismatch=sanitizer -Clink-arg=-rdynamic"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/sanitizer-$kind"
if [ "$kind" = address ]; then
    # C programs that load the library bring the sanitizer along (ffi_library; valgrind cannot run it: -- --skip valgrind).
    mkdir -p "$CARGO_TARGET_DIR/compilers"
    compilers=$(CDPATH='' cd -- "$CARGO_TARGET_DIR/compilers" && pwd)
    for compiler in gcc g++; do
        printf '#!/bin/sh\nexec %s -fsanitize=address "$@"\n' "$(command -v "$compiler")" >"$compilers/$compiler"
        chmod +x "$compilers/$compiler"
    done
    PATH="$compilers:$PATH"
fi
# Blocks of the simulator outlive the process by design, so leaks are looked for by the tests themselves.
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}"
export TSAN_OPTIONS="halt_on_error=1:suppressions=$root/tools/tsan.supp${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
exec cargo test --locked -p ascend-alloc --target "$(rustc -vV | sed -n 's/^host: //p')" "$@"
