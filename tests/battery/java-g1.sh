#!/bin/bash
# about: HotSpot with G1GC: two threads, maps of records, byte arrays; CRC of all
# group: runtimes
# packages: openjdk-17-jdk-headless
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options=(-XX:+UseG1GC)
. "$(dirname "${BASH_SOURCE[0]}")/java.inc"

main "$@"
