#!/bin/bash
# about: 7-Zip: LZMA2 of 12 MiB with a dictionary of 16 MiB in two threads, and back; sums
# group: compressors
# packages: 7zip
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() { need 7zz; lines "$(sized 12 4)" >input; }

work() {
    made=made.$$.7z
    trap 'rm -f "$made"' EXIT
    7zz a -bso0 -bsp0 -mx=3 -md=16m -mmt=2 -mtm- "$made" input >&2
    7zz t -bso0 -bsp0 "$made" >&2
    7zz x -so "$made" | sum
}

main "$@"
