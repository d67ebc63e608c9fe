#!/bin/bash
# about: Go as it links by default, without a loader
# group: refused
# packages: golang-go
# refused: statically linked
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need go
    printf 'package main\nimport "fmt"\nfunc main() { fmt.Println("hello") }\n' >main.go
    GOCACHE=$PWD/cache CGO_ENABLED=0 go build -o program main.go >&2
    rm -rf cache
}

work() { ./program; }

main "$@"
