#!/bin/sh
# Prints the folder that holds libclang.so, for LIBCLANG_PATH.
#
# bindgen needs libclang, which a machine with only Rust and gcc lacks. The PyPI wheel carries one
# for x86-64 and for 64-bit Arm; it is fetched once, by version, into the target folder.
set -eu

version=18.1.1
root=$(cd "$(dirname "$0")/.." && pwd)
target="${CARGO_TARGET_DIR:-$root/target}"
folder="$target/libclang-$version"

if [ ! -f "$folder/libclang.so" ]; then
    # Made elsewhere and renamed, so that an interrupted or a second run leaves no half library.
    work="$folder.$$"
    trap 'rm -rf "$work"' EXIT
    mkdir -p "$work/wheel" "$folder"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
        --dest "$work" "libclang==$version" >&2
    python3 -m zipfile -e "$work"/libclang-"$version"-*.whl "$work/wheel" >&2
    library=$(find "$work/wheel" -name libclang.so)
    mv "$library" "$folder/libclang.so"
fi

echo "$folder"
