#!/bin/bash
# about: Haskell: the copying collector; maps of strings and big integers
# group: runtimes
# packages: ghc
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need ghc
    cat >Main.hs <<'END'
import qualified Data.Map.Strict as M
import Data.Bits
import Data.List (foldl')
import System.Environment

step :: Int -> M.Map String [Int] -> Int -> M.Map String [Int]
step n m i = M.insertWith (\_ old -> x : take 3 old) ('k' : show (x `mod` n)) [x] m
  where x = (i * 2654435761) .&. 0xffffffff

main :: IO ()
main = do
  [a] <- getArgs
  let n = read a
      m = foldl' (step n) M.empty [0 .. 2 * n - 1]
      s = M.foldlWithKey' (\h k v -> (h * 31 + length k + foldl' xor 0 v) `mod` 1000000007) 7 m
      big = product [1 .. 3000 :: Integer]
  print (s, M.size m, big `mod` 1000000000039, sum (map fromIntegral (concat (M.elems m))) :: Integer)
END
    ghc -O -rtsopts -threaded Main.hs -o program >&2
}

work() { ./program "$(sized 100000 30000)" +RTS -N2; }

main "$@"
