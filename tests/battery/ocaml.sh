#!/bin/bash
# about: OCaml: maps, a hash table of byte strings, compaction
# group: runtimes
# packages: ocaml-nox
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need ocamlopt
    cat >program.ml <<'END'
module M = Map.Make(String)
let () =
  let n = int_of_string Sys.argv.(1) in
  let m = ref M.empty and h = Hashtbl.create 1000 in
  for i = 0 to 2 * n - 1 do
    let x = (i * 2654435761) land 0xffffffff in
    m := M.update (Printf.sprintf "k%d" (x mod n)) (function None -> Some [x] | Some l -> Some (x :: l)) !m;
    if i land 3 = 0 then Hashtbl.replace h (x mod n) (Bytes.make (32 + x mod 300) (Char.chr (x land 127)))
  done;
  Gc.compact ();
  let s = M.fold (fun k l a -> List.fold_left (fun a v -> (a * 31 + v) land 0x3fffffffffff) (a + String.length k) l) !m 7 in
  let t = Hashtbl.fold (fun k b a -> (a + k * Bytes.length b + Char.code (Bytes.get b (k mod 32))) land 0x3fffffffffff) h 0 in
  Printf.printf "%x %x %d\n" s t (M.cardinal !m)
END
    ocamlopt program.ml -o program >&2
}

work() { ./program "$(sized 200000 60000)"; }

main "$@"
