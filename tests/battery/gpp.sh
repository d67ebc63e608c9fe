#!/bin/bash
# about: g++ -O0 on templates and containers; the program it makes, and its answer
# group: build
# packages: g++
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

compiler=(g++ -O0 -frandom-seed=1)
. "$(dirname "${BASH_SOURCE[0]}")/cpp.inc"

main "$@"
