#!/bin/bash
# about: PyPy: its own collector; dictionaries, lists, objects; sha256
# group: runtimes
# packages: pypy3
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need pypy3
    cat >program.py <<'END'
import hashlib, sys
n = int(sys.argv[1])

class Entry:
    def __init__(self, x, name, past):
        self.x, self.name, self.past = x, name, past

table = {}
for i in range(2 * n):
    x = i * 2654435761 & 0xffffffff
    key = "k%d" % (x % n)
    old = table.get(key)
    table[key] = Entry(x, "%s:%d" % (key, i), old.x ^ x if old else 0)
digest = hashlib.sha256()
for key in sorted(table):
    entry = table[key]
    digest.update(("%s%s%d" % (key, entry.name, entry.past)).encode())
print(digest.hexdigest(), len(table))
END
}

work() { pypy3 program.py "$(sized 200000 60000)"; }

main "$@"
