#!/bin/bash
# about: DuckDB in memory, two threads: joins, windows, strings; sums
# group: analysis
# packages: python3 python3-venv
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    venv duckdb
    cat >program.py <<'END'
import sys, duckdb
n = int(sys.argv[1])
db = duckdb.connect(config={"threads": 2})
db.execute(f"create table t as select i as id, (i * 2654435761) % 4294967296 as x, 'name ' || ((i * 2654435761) % 20011) as name from range({n}) r(i)")
db.execute("create table g as select x % 5003 as key, sum(x) as total, count(*) as many from t group by 1")
db.execute("create index ti on t(id)")
db.execute("update t set x = x + 1 where id % 7 = 0")
for question in (
    "select count(*), sum(id * (place % 1009)) from (select id, row_number() over (order by name, x, id) as place from t)",
    "select sum(t.x % 1009 * g.many), count(*) from t join g on t.x % 5003 = g.key",
    "select md5(string_agg(name || ':' || many, ',' order by name)) from (select name, count(*) many from t group by name)",
):
    print(db.execute(question).fetchall())
END
}

work() { python program.py "$(sized 600000 150000)"; }

main "$@"
