#!/bin/bash
# about: NumPy: sorts, a matrix product of whole numbers, in place and out of place; sums
# group: analysis
# packages: python3 python3-venv
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    venv numpy
    cat >program.py <<'END'
import hashlib, sys, numpy as np
n = int(sys.argv[1])
x = (np.arange(n, dtype=np.uint64) * 2654435761) & 0xffffffff
order = np.argsort(x, kind="stable")
assert (np.diff(x[order].astype(np.int64)) >= 0).all()
side = int((n // 16) ** 0.5)
m = (x[: side * side] % 100).astype(np.float64).reshape(side, side)
product = m @ m.T
parts = [x[i::7].copy() for i in range(7)]
for part in parts: part.sort()
digest = hashlib.sha256(order.tobytes())
for part in parts: digest.update(part.tobytes())
print(digest.hexdigest(), int(product.sum()), int(np.bincount((x % 1009).astype(int)).max()))
END
}

work() { OPENBLAS_NUM_THREADS=2 python program.py "$(sized 2500000 600000)"; }

main "$@"
