#!/bin/bash
# about: xz -5 of 12 MiB in two threads, and back; sums
# group: compressors
# packages: xz-utils
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() { need xz; lines "$(sized 12 4)" >input; }

work() {
    made=made.$$.xz
    trap 'rm -f "$made"' EXIT
    xz "-$(sized 5 2)" -T2 --block-size="$(sized 6 2)MiB" -c input >"$made"
    sum <"$made"
    xz -dc "$made" | sum
}

main "$@"
