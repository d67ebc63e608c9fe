#!/bin/bash
# about: Go with cgo, dynamically linked: eight goroutines, maps, the concurrent collector, C memory; sums
# group: runtimes
# packages: golang-go gcc libc6-dev
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need go gcc
    cat >main.go <<'END'
package main

/*
#include <stdlib.h>
#include <string.h>
static unsigned char *block(int n, int seed) { unsigned char *p = malloc(n); for (int i = 0; i < n; i++) p[i] = (unsigned char)(i * 31 + seed); return p; }
static unsigned long total(unsigned char *p, int n) { unsigned long s = 0; for (int i = 0; i < n; i++) s = s * 31 + p[i]; free(p); return s; }
*/
import "C"

import (
	"fmt"
	"os"
	"strconv"
	"sync"
)

type entry struct {
	x    uint32
	name string
	past uint32
}

func part(turn, n int) uint64 {
	table := map[string]*entry{}
	for i := 0; i < 2*n; i++ {
		x := uint32(i+turn*7) * 2654435761
		key := "k" + strconv.Itoa(int(x)%n)
		var past uint32
		if old := table[key]; old != nil {
			past = old.x ^ x
		}
		table[key] = &entry{x, key + ":" + strconv.Itoa(i), past}
	}
	block := C.block(4<<20, C.int(turn))
	var sum uint64
	for key, e := range table {
		sum += uint64(len(key))*uint64(e.x) + uint64(e.past) + uint64(len(e.name))
	}
	return sum ^ uint64(C.total(block, 4<<20))
}

func main() {
	n, _ := strconv.Atoi(os.Args[1])
	sums := make([]uint64, 8)
	var all sync.WaitGroup
	for t := range sums {
		all.Add(1)
		go func(t int) { defer all.Done(); sums[t] = part(t, n) }(t)
	}
	all.Wait()
	fmt.Println(sums)
}
END
    GOCACHE=$PWD/cache GOFLAGS=-mod=mod CGO_ENABLED=1 go build -o program main.go >&2
    rm -rf cache
}

work() { ./program "$(sized 40000 12000)"; }

main "$@"
