#!/bin/bash
# about: Guile: the Boehm collector, which scans all memory; trees, a hash table, strings
# group: runtimes
# packages: guile-3.0
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need guile
    cat >program.scm <<'END'
(define n (string->number (cadr (command-line))))
(define table (make-hash-table))
(do ((i 0 (+ i 1))) ((= i (* 2 n)))
  (let* ((x (modulo (* i 2654435761) 4294967296)) (key (string-append "k" (number->string (modulo x n)))))
    (hash-set! table key (cons x (hash-ref table key '())))))
(define (tree d v) (if (= d 0) v (cons (tree (- d 1) (* 2 v)) (tree (- d 1) (+ 1 (* 2 v))))))
(define (check t) (if (pair? t) (modulo (+ (* 3 (check (car t))) (* 7 (check (cdr t))) 1) 1000000007) (modulo t 1000000007)))
(define long (tree 18 1))
(gc)
(define sum (hash-fold (lambda (k v s) (modulo (+ s (* (string-length k) (apply logxor v))) 1000000007)) 0 table))
(format #t "~a ~a ~a~%" sum (check long) (hash-count (const #t) table))
END
    guild compile -o program.go program.scm >&2 || true
}

work() { guile --no-auto-compile program.scm "$(sized 120000 40000)"; }

main "$@"
