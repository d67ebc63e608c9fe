#!/bin/bash
# about: pandas: a frame with strings; merge, groupby, pivot, sort; a hash of the result
# group: analysis
# packages: python3 python3-venv
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    venv pandas
    cat >program.py <<'END'
import hashlib, sys, numpy as np, pandas as pd
n = int(sys.argv[1])
x = (np.arange(n, dtype=np.uint64) * 2654435761) & 0xffffffff
frame = pd.DataFrame({"id": np.arange(n), "key": x % 5003, "name": ["name %d" % (v % 20011) for v in x], "value": x % 1009})
other = frame.groupby("key")["value"].agg(["sum", "count", "max"]).reset_index()
merged = frame.merge(other, on="key").sort_values(["name", "id"])
pivot = merged.pivot_table(index="name", columns=merged["id"] % 5, values="value", aggfunc="sum", fill_value=0)
digest = hashlib.sha256(pd.util.hash_pandas_object(merged, index=False).values.tobytes())
digest.update(pivot.to_csv().encode())
print(digest.hexdigest(), merged.shape, pivot.shape)
END
}

work() { python program.py "$(sized 250000 60000)"; }

main "$@"
