#!/bin/bash
# about: SQLite in memory: insert, two indexes, update, delete; integrity_check and sums
# group: databases
# packages: sqlite3
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() { need sqlite3; }

work() {
    sqlite3 :memory: <<END
.bail on
PRAGMA cache_size=-2000000; PRAGMA temp_store=MEMORY;
CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c INT);
WITH RECURSIVE x(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM x WHERE i<$(sized 400000 150000))
INSERT INTO t SELECT i, printf('row %d %x', i*7919%1000003, i*2654435761), i*48271%2147483647 FROM x;
CREATE INDEX tb ON t(b); CREATE INDEX tc ON t(c);
UPDATE t SET c=c+1 WHERE c%97=0;
DELETE FROM t WHERE a%13=0;
PRAGMA integrity_check;
SELECT count(*), sum(c), sum(length(b)) FROM t;
SELECT sum(a*(rank%1000)) FROM (SELECT a, row_number() OVER (ORDER BY b, a) AS rank FROM t);
END
}

main "$@"
