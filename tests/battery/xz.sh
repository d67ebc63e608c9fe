#!/bin/bash
# about: xz -7 of 24 MiB in two threads, and back; sums
# group: compressors
# packages: xz-utils
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() { need xz; lines "$(sized 24 8)" >input; }

work() {
    made=made.$$.xz
    trap 'rm -f "$made"' EXIT
    xz "-$(sized 6 3)" -T2 --block-size="$(sized 12 4)MiB" -c input >"$made"
    sum <"$made"
    xz -dc "$made" | sum
}

main "$@"
