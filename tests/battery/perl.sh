#!/bin/bash
# about: Perl: hashes of arrays, sorted; SHA-256
# group: runtimes
# packages: perl
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need perl
    cat >program.pl <<'END'
use strict; use warnings; use Digest::SHA;
my $n = shift; my %table;
for my $i (0 .. $n * 2 - 1) {
    my $x = ($i * 2654435761) & 0xffffffff; my $key = 'k' . $x % $n;
    $table{$key} = [$x, "$key:$i", $table{$key} ? $table{$key}[0] ^ $x : 0];
}
my $sum = Digest::SHA->new(256);
$sum->add($_, $table{$_}[1], $table{$_}[2]) for sort keys %table;
print $sum->hexdigest, ' ', scalar(keys %table), "\n";
END
}

work() { perl program.pl "$(sized 120000 40000)"; }

main "$@"
