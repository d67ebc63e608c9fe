#!/bin/bash
# about: R: vectors, a matrix product, sort, a data frame aggregated; its own sums
# group: runtimes
# packages: r-base-core
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need Rscript
    cat >program.R <<'END'
n <- as.integer(commandArgs(TRUE)[1])
x <- (as.numeric(seq_len(n)) * 48271) %% 2147483647
o <- order(x)
stopifnot(!is.unsorted(x[o]))
frame <- data.frame(key = x %% 1009, value = x %% 7, name = paste0("n", x %% 50021))
sums <- aggregate(value ~ key, frame, sum)
names <- table(frame$name)
side <- as.integer(sqrt(n / 4))
m <- matrix(x[seq_len(side * side)] %% 100, side)
product <- m %*% t(m)
cat(sprintf("%.0f %.0f %d %.0f %d\n", sum(as.numeric(o) * (seq_len(n) %% 97)), sum(sums$value * sums$key), length(names), sum(product), max(names)))
END
}

work() { Rscript program.R "$(sized 600000 150000)"; }

main "$@"
