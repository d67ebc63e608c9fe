#!/bin/bash
# about: HotSpot with ZGC: two threads, maps of records, byte arrays; CRC of all
# group: runtimes
# packages: openjdk-17-jdk-headless
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

options=(-XX:+UseZGC)
. "$(dirname "${BASH_SOURCE[0]}")/java.inc"

main "$@"
