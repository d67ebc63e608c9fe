#!/bin/bash
# MariaDB with a buffer pool of twice what it may use, all of the data in it, and sysbench.
#
# LOAD    oltp_read_write, each run on a fresh copy of the data, or oltp_read_only [oltp_read_write]
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need mariadbd mariadb-install-db mariadb-admin mariadb sysbench

rows=$(sized 350000 50000)
events=$(sized 4000 300)
LOAD=${LOAD:-oltp_read_write}
export LOAD
socket=
data=mysql

# serve OPTIONS...: starts the server in the background, and waits until it answers.
serve() {
    socket=$(mktemp -u /tmp/uswap-bench-mariadb.XXXXXX)
    mariadbd --no-defaults --user="$(id -un)" --datadir="$PWD/$data" --socket="$socket" --skip-networking \
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
    sysbench "$LOAD" --db-driver=mysql --mysql-socket="$socket" --mysql-user="$(id -un)" --mysql-db=bench \
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

sql() { mariadb --no-defaults -S "$socket" -N -e "$1"; }

# Goes through all of the data, so that it is in the buffer pool, and prints what must be the same everywhere.
sums() { sql "CHECKSUM TABLE $(echo bench.sbtest{1..4} | tr ' ' ,)"; }

# The same of data that transactions in any order have changed.
check() {
    sql "CHECK TABLE $(echo bench.sbtest{1..4} | tr ' ' ,) EXTENDED"
    local table
    for table in bench.sbtest{1..4}; do
        sql "SELECT COUNT(*), SUM(k > 0), SUM(LENGTH(c)), SUM(LENGTH(pad)) FROM $table"
    done
}

# A copy of the data, which does not stand in the page cache.
copy() {
    rm -rf "$data"
    cp -r mysql "$data"
    find "$data" -type f -size +1M -exec dd if={} of={} oflag=nocache conv=notrunc,fdatasync count=0 status=none \;
}

work() {
    local options=(--innodb-buffer-pool-size="$(sized 400M 96M)")
    case $LOAD in
    oltp_read_only) options+=(--read-only) ;;
    oltp_read_write) data=copy && copy && options+=(--innodb-flush-log-at-trx-commit=0) ;;
    *) wrong "LOAD is '$LOAD': oltp_read_write or oltp_read_only" ;;
    esac
    serve "${options[@]}"
    sums
    load --events="$events" --time=0 run >run.log || wrong "sysbench: $(tail -n 1 run.log)"
    figure transactions/s "$(awk '/transactions:/ { print substr($3, 2) }' run.log)"
    figure "p95, ms" "$(awk '/95th percentile:/ { print $3 }' run.log)"
    awk '/transactions:/ { print $1, $2 }' run.log
    if [[ $LOAD == oltp_read_only ]]; then
        # A transaction that writes may meet another, and is tried again.
        awk '/ignored errors:/ { print $1, $2, $3 }' run.log
        sums
    else
        check
    fi
    stop
}

main "$(sized 220M 96M)" "$@"
