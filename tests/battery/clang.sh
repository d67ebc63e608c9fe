#!/bin/bash
# about: clang -O0 on the same source; the program it makes, and its answer
# group: build
# packages: clang g++
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compiler=(clang++ -O0)
. "$(dirname "${BASH_SOURCE[0]}")/cpp.inc"

main "$@"
