#!/bin/bash
# about: zstd -15 --long of 12 MiB in two threads, and back; sums
# group: compressors
# packages: zstd
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() { need zstd; lines "$(sized 12 8)" >input; }

work() {
    made=made.$$.zst
    trap 'rm -f "$made"' EXIT
    zstd -q "-$(sized 15 12)" --long=26 -T2 -o "$made" input
    sum <"$made"
    zstd -q -d --long=26 -c "$made" | sum
}

main "$@"
