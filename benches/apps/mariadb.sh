#!/bin/bash
# MariaDB with a buffer pool of twice what it may use, all of the data in it, and sysbench: reads only, so that each run
# begins with the same data.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need mariadbd mariadb-install-db mariadb-admin mariadb sysbench

rows=$(sized 350000 50000)
events=$(sized 4000 300)
socket=

# serve OPTIONS...: starts the server in the background, and waits until it answers.
serve() {
    socket=$(mktemp -u /tmp/uswap-bench-mariadb.XXXXXX)
    mariadbd --no-defaults --user="$(id -un)" --datadir="$PWD/mysql" --socket="$socket" --skip-networking \
        --skip-log-bin --innodb-flush-method=O_DIRECT --pid-file="$PWD/mysql.pid" --log-error="$PWD/mysql.log" "$@" &
    server=$!
    trap 'kill -KILL "$server" 2>/dev/null; rm -f "$socket"' EXIT
    local tries=0
    until mariadb-admin --no-defaults -S "$socket" ping >/dev/null 2>&1; do
        ((++tries < 900)) && kill -0 "$server" || wrong "mariadbd does not answer: $(tail -n 1 mysql.log)"
        sleep 0.1
    done
}

stop() {
    mariadb-admin --no-defaults -S "$socket" shutdown
    wait "$server" || wrong "mariadbd ends with status $?"
    trap - EXIT
}

load() {
    sysbench oltp_read_only --db-driver=mysql --mysql-socket="$socket" --mysql-user="$(id -un)" --mysql-db=bench \
        --tables=4 --table-size="$rows" --threads=4 --rand-seed=5 --rand-type=uniform "$@"
}

prepare() {
    mariadb-install-db --no-defaults --user="$(id -un)" --auth-root-authentication-method=socket \
        --auth-root-socket-user="$(id -un)" --datadir="$PWD/mysql" --skip-test-db >install.log 2>&1 ||
        wrong "mariadb-install-db: $(tail -n 1 install.log)"
    serve --innodb-buffer-pool-size=256M --innodb-flush-log-at-trx-commit=0
    mariadb --no-defaults -S "$socket" -e 'CREATE DATABASE bench'
    load prepare >prepare.log 2>&1 || wrong "sysbench prepare: $(tail -n 1 prepare.log)"
    stop
}

work() {
    serve --innodb-buffer-pool-size="$(sized 400M 96M)" --read-only
    # Reads all of the data into the buffer pool.
    sums() { mariadb --no-defaults -S "$socket" -N -e "CHECKSUM TABLE $(echo bench.sbtest{1..4} | tr ' ' ,)"; }
    sums
    load --events="$events" --time=0 run >run.log || wrong "sysbench: $(tail -n 1 run.log)"
    figure transactions/s "$(awk '/transactions:/ { print substr($3, 2) }' run.log)"
    figure "p95, ms" "$(awk '/95th percentile:/ { print $3 }' run.log)"
    awk '/transactions:|ignored errors:/ { print $1, $2, /ignored/ ? $3 : "" }' run.log
    sums
    stop
}

main "$(sized 220M 96M)" "$@"
