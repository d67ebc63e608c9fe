#!/bin/bash
# about: GNU sort of 60 MB with random keys in two threads; the order, and a sum
# group: compressors
# packages: coreutils
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() { need sort; lines "$(sized 60 30)" >input; }

work() {
    made=made.$$
    trap 'rm -f "$made"' EXIT
    sort -S "$(sized 150M 60M)" --parallel=2 -k3,3 -k1,1n input -o "$made"
    sort -c -k3,3 -k1,1n "$made"
    sum <"$made"
}

main "$@"
