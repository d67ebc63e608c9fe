#!/bin/bash
# CPython: strings, objects and a dictionary that is looked up at random, in half of what it has at its peak.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need python3

prepare() {
    python >interpreter
    cat >objects.py <<'END'
import os, random, sys, time

n = int(sys.argv[1])
texts = [str(i) for i in range(2 * n)]
assert sum(map(int, texts)) == n * (2 * n - 1), "a text is wrong"

class Point:
    __slots__ = ("x", "y", "name")

    def __init__(self, x):
        self.x, self.y, self.name = x, 3 * x + 1, f"point {x}"

points = {x: Point(x) for x in range(n)}
chance = random.Random(11)
lookups = n // 4
begun = time.monotonic()
total = 0
for _ in range(lookups):
    point = points[int(chance.random() ** 2 * n)]
    assert point.y == 3 * point.x + 1 and point.name == f"point {point.x}", point.x
    total += point.y
took = time.monotonic() - begun
print(total, len(points), len(texts))
if figures := os.environ.get("USWAP_BENCH_FIGURES"):
    with open(figures, "a") as file:
        print("lookups/s", lookups / took, file=file)
END
}

work() { "$(<interpreter)" objects.py "$(sized 1000000 140000)"; }

main "$(sized 190M 32M)" "$@"
