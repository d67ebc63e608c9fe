#!/bin/bash
# about: BEAM: ETS tables and messages of two schedulers; CRC of all
# group: runtimes
# packages: erlang-base
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

prepare() {
    need erlc erl
    cat >battery.erl <<'END'
-module(battery).
-export([main/1]).
value(X) -> {X, list_to_binary([integer_to_list(X) || _ <- lists:seq(1, 1 + X rem 8)]), [X, X + 1, X * 3]}.
fill(T, P, N) -> lists:foreach(fun(I) -> X = (I * 2654435761) rem 4294967296, ets:insert(T, {{P, X rem N}, value(X)}) end, lists:seq(1, N * 2)).
main([A]) ->
  N = list_to_integer(A), T = ets:new(a, [public, set, {write_concurrency, true}]), S = self(),
  [spawn_link(fun() -> fill(T, P, N), S ! done end) || P <- [1, 2]], receive done -> ok end, receive done -> ok end,
  L = lists:sort(ets:tab2list(T)),
  H = lists:foldl(fun({{P, K}, {X, B, Y}}, A0) -> (A0 * 31 + P * K + X + byte_size(B) + erlang:crc32(B) + lists:sum(Y)) rem 1000000000039 end, 7, L),
  io:format("~p ~p~n", [H, length(L)]), halt(0).
END
    erlc battery.erl >&2
}

work() { erl +S 2:2 -noshell -run battery main "$(sized 60000 20000)"; }

main "$@"
