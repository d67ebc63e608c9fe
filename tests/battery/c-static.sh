#!/bin/bash
# about: C, linked with -static
# group: refused
# packages: gcc libc6-dev
# refused: statically linked
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need gcc
    printf '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n' >main.c
    gcc -static -o program main.c
}

work() { ./program; }

main "$@"
