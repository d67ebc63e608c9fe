#!/bin/bash
# about: SBCL: a moving collector with write barriers; trees, a hash table, strings
# group: runtimes
# packages: sbcl
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need sbcl
    cat >program.lisp <<'END'
(defun tree (d v) (if (= d 0) v (cons (tree (1- d) (* 2 v)) (tree (1- d) (1+ (* 2 v))))))
(defun check (tr) (if (consp tr) (mod (+ (* 3 (check (car tr))) (* 7 (check (cdr tr))) 1) 1000000007) (mod tr 1000000007)))
(let* ((n (parse-integer (sb-ext:posix-getenv "N"))) (long (tree (- (integer-length n) 1) 1)) (h (make-hash-table :test 'equal)) (s 0))
  (dotimes (i (* 4 n)) (let ((x (mod (* i 2654435761) 4294967296))) (push x (gethash (format nil "k~d" (mod x n)) h))))
  (dotimes (r 30) (setf s (mod (+ (* s 31) (check (tree 15 r))) 1000000007)))
  (maphash (lambda (k v) (setf s (mod (+ s (* (length k) (reduce #'logxor v))) 1000000007))) h)
  (gc :full t)
  (format t "~d ~d ~d~%" s (check long) (hash-table-count h)))
END
}

work() { N=$(sized 120000 100000) sbcl --dynamic-space-size 2GB --noinform --non-interactive --load program.lisp; }

main "$@"
