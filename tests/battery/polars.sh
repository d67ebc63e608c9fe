#!/bin/bash
# about: Polars in two threads: join, group_by, sort, strings; sums
# group: analysis
# packages: python3 python3-venv
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    venv polars
    cat >program.py <<'END'
import hashlib, sys, polars as pl
n = int(sys.argv[1])
frame = pl.DataFrame({"id": pl.arange(0, n, eager=True)}).with_columns(x=(pl.col("id") * 2654435761) % 4294967296)
frame = frame.with_columns(key=pl.col("x") % 5003, value=pl.col("x") % 1009, name=pl.format("name {}", pl.col("x") % 20011))
other = frame.group_by("key").agg(pl.col("value").sum().alias("sum"), pl.len().alias("count"))
merged = frame.join(other, on="key").sort(["name", "id"])
groups = merged.group_by("name").agg(pl.col("sum").max(), pl.col("value").sum().alias("total")).sort("name")
digest = hashlib.sha256(",".join(map(str, merged["id"].to_list())).encode())
digest.update(groups.write_csv().encode())
print(digest.hexdigest(), merged.shape, groups.shape)
END
}

work() { POLARS_MAX_THREADS=2 python program.py "$(sized 600000 150000)"; }

main "$@"
