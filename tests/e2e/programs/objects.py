"""Dicts, bytearrays, lists and a forking multiprocessing pool; prints checksums that depend on every byte.

    objects.py SCALE        about 45 MiB at its peak per unit of SCALE
"""
import gc
import hashlib
import multiprocessing
import sys
import zlib

SCALE = int(sys.argv[1])


def dictionaries():
    table = {f"key-{n}": (n, str(n * 7919 % 1000003), [n % 13] * 3) for n in range(40_000 * SCALE)}
    for n in range(0, 40_000 * SCALE, 7):
        table[f"key-{n}"] = n
    for n in range(0, 40_000 * SCALE, 11):
        table.pop(f"key-{n}", None)
    return table


def blocks():
    rows = []
    for n in range(64 * SCALE):
        row = bytearray(hashlib.shake_128(str(n).encode()).digest(65536))
        row += bytes([n & 255]) * 65536
        rows.append(row)
    for n, row in enumerate(rows):
        row[n % len(row)] ^= 255
    return rows


def numbers():
    return [[(n * 48271 + k) % 2147483647 for k in range(1000)] for n in range(100 * SCALE)]


def digest(part):
    table, rows, lists = DATA
    kind, which = part
    result = hashlib.sha256()
    if kind == "rows":
        for row in rows[which::8]:
            row[0] ^= which  # private to this child
            result.update(row)
            row[0] ^= which
    elif kind == "table":
        for n, key in enumerate(table):
            if n % 8 == which:
                result.update(repr((key, table[key])).encode())
    else:
        for row in lists[which::8]:
            result.update(repr(sum(row)).encode())
    return result.hexdigest()


def main():
    global DATA
    DATA = (dictionaries(), blocks(), numbers())
    parts = [(kind, which) for kind in ("rows", "table", "lists") for which in range(8)]
    here = [digest(part) for part in parts]
    for _ in range(2):
        with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=8) as pool:
            there = pool.map(digest, parts, chunksize=1)
        assert there == here, "a child of the pool saw other data"
        gc.collect()
    table, rows, lists = DATA
    print(len(table), sum(len(row) for row in rows), sum(map(len, lists)))
    print(hashlib.sha256("".join(here).encode()).hexdigest())
    print(zlib.crc32(b"".join(bytes(row) for row in rows)))


main()
