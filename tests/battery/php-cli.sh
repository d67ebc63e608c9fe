#!/bin/bash
# about: PHP: arrays of arrays and strings, sorted; sha256
# group: runtimes
# packages: php-cli
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need php
    cat >program.php <<'END'
<?php
ini_set('memory_limit', '-1');
$n = (int) $argv[1];
$table = [];
for ($i = 0; $i < $n * 2; $i++) {
    $x = ($i * 2654435761) & 0xffffffff;
    $key = 'k' . ($x % $n);
    $table[$key] = [$x, "$key:$i", isset($table[$key]) ? $table[$key][0] ^ $x : 0];
}
ksort($table, SORT_STRING);
$hash = hash_init('sha256');
foreach ($table as $key => $entry) hash_update($hash, $key . $entry[1] . $entry[2]);
$objects = [];
foreach ($table as $key => $entry) { $o = new stdClass; $o->name = strrev($key); $o->value = $entry[0]; $objects[] = $o; }
usort($objects, fn($a, $b) => $a->value <=> $b->value);
foreach ($objects as $o) hash_update($hash, $o->name);
echo hash_final($hash), ' ', count($objects), "\n";
END
}

work() { php program.php "$(sized 120000 75000)"; }

main "$@"
