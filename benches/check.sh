#!/bin/sh
# Counts instructions and compares them with benches/instructions.baseline.
#
#   benches/check.sh            fails when a count is more than 3 % above its baseline, or missing
#   benches/check.sh --update   writes the counts of this tree as the new baseline
#
# Needs valgrind; installs the gungraun-runner of the right version with cargo where it is missing.
# Counts belong to an architecture, a compiler and a profile: on another architecture they are shown
# and nothing fails; with another compiler they are compared all the same, and the difference is named.
set -eu

version=0.20.0
tolerance=${TOLERANCE_PERCENT:-3}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
baseline=$root/benches/instructions.baseline

case "${1:-}" in
'' | --update) ;;
*)
    echo "usage: benches/check.sh [--update]" >&2
    exit 2
    ;;
esac

if ! command -v valgrind >/dev/null; then
    echo "valgrind is missing; install it with the system's package manager" >&2
    exit 1
fi
if ! gungraun-runner --version 2>/dev/null | grep -q "$version"; then
    cargo install --quiet --locked gungraun-runner --version "=$version"
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$root"
if ! GUNGRAUN_HOME=$folder/home cargo bench --locked --package ascend-alloc --bench instructions \
    >"$folder/output" 2>&1; then
    cat "$folder/output" >&2
    exit 1
fi

# One folder for each count: calls/pair.of_512_b/callgrind.pair.of_512_b.out
find "$folder/home" -name 'callgrind.*.out' | sort | while read -r file; do
    name=$(basename "$(dirname "$file")")
    awk -v name="$name" '/^(summary|totals):/ { count = $2 } END { print name, count }' "$file"
done >"$folder/counts"
if ! [ -s "$folder/counts" ]; then
    cat "$folder/output" >&2
    echo "no counts were found" >&2
    exit 1
fi

machine=$(uname -m)
compiler=$(rustc --version | cut -d ' ' -f 2)
if [ "${1:-}" = --update ]; then
    {
        echo "# Instructions of each function of benches/instructions.rs; written by benches/check.sh --update"
        echo "# machine $machine"
        echo "# compiler $compiler"
        cat "$folder/counts"
    } >"$baseline"
    cat "$baseline"
    exit 0
fi

was_machine=$(sed -n 's/^# machine //p' "$baseline")
was_compiler=$(sed -n 's/^# compiler //p' "$baseline")
if [ "$compiler" != "$was_compiler" ]; then
    echo "note: the baseline was taken with rustc $was_compiler, this is $compiler"
fi
awk -v tolerance="$tolerance" '
    FNR == NR { if (NF == 2 && $1 != "#") { before[$1] = $2 } next }
    {
        seen[$1] = 1
        if (!($1 in before)) {
            printf "%-28s %10d  has no baseline\n", $1, $2
            bad = 1
            next
        }
        change = ($2 - before[$1]) * 100 / before[$1]
        verdict = ""
        if (change > tolerance) { verdict = "  WORSE"; bad = 1 }
        if (change < -tolerance) { verdict = "  better"; better = 1 }
        printf "%-28s %10d  was %10d  %+6.1f %%%s\n", $1, $2, before[$1], change, verdict
    }
    END {
        for (name in before) if (!(name in seen)) { printf "%-28s was not counted\n", name; bad = 1 }
        if (better) print "some are better: benches/check.sh --update keeps it that way"
        if (bad) print "instructions: not as in the baseline (tolerance " tolerance " %)"
        exit bad
    }' "$baseline" "$folder/counts" || {
    if [ "$machine" != "$was_machine" ]; then
        echo "the baseline is for $was_machine, this is $machine: nothing is compared"
        exit 0
    fi
    exit 1
}
