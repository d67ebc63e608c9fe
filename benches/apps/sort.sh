#!/bin/bash
# GNU sort with two threads: lines of 100 bytes with random keys, in half of what it has at its peak.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need sort sha256sum

prepare() {
    "$(python)" - "$(sized 1500000 400000)" >input <<'END'
import random, sys
chance = random.Random(7)
for number in range(int(sys.argv[1])):
    key = chance.getrandbits(64)
    print(f"{key:016x} {number:010} {key % 1000003:-<71}")
END
}

work() {
    # In a buffer that holds all of it: sort must not use files of its own instead.
    LC_ALL=C sort -S "$(sized 1G 300M)" --parallel=2 -k1,1 input -o output
    LC_ALL=C sort -c -k1,1 output || wrong "the output is not in order"
    sha256sum <output
    wc -l <output
    rm output
}

main "$(sized 115M 32M)" "$@"
