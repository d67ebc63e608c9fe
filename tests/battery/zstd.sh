#!/bin/bash
# about: zstd -19 --long of 24 MiB in two threads, and back; sums
# group: compressors
# packages: zstd
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() { need zstd; lines "$(sized 24 8)" >input; }

work() {
    made=made.$$.zst
    trap 'rm -f "$made"' EXIT
    zstd -q "-$(sized 17 12)" --long=26 -T2 -o "$made" input
    sum <"$made"
    zstd -q -d --long=26 -c "$made" | sum
}

main "$@"
