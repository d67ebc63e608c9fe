#!/bin/bash
# make -j8 of a C++ program of templates and containers, in a third of what the tree has at its peak.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need make g++ sha256sum

prepare() {
    local units number
    units=$(sized 32 8)
    mkdir source
    for ((number = 0; number < units; number++)); do
        cat >"source/unit$number.cc" <<END
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>
template <int N> struct Step { static long of(long x) { return Step<N - 1>::of(x * $((number + 3)) + N) % 1000003; } };
template <> struct Step<0> { static long of(long x) { return x; } };
long unit$number() {
    std::map<std::string, std::vector<long>> table;
    std::unordered_map<long, std::function<long(long)>> steps;
    steps[0] = [](long x) { return Step<$(sized 200 20)>::of(x); };
    for (long i = 0; i < 1000; i++) table[std::to_string(i % 37)].push_back(steps[0](i));
    long sum = 0;
    for (auto &entry : table) {
        std::sort(entry.second.begin(), entry.second.end());
        for (long value : entry.second) sum = (sum * 31 + value) % 1000003;
    }
    return sum;
}
END
    done
    {
        echo '#include <cstdio>'
        for ((number = 0; number < units; number++)); do echo "long unit$number();"; done
        echo 'int main() { long sum = 0;'
        for ((number = 0; number < units; number++)); do echo "sum += unit$number();"; done
        echo 'std::printf("%ld\n", sum); }'
    } >source/main.cc
    cat >source/Makefile <<'END'
flags := FLAGS
objects := $(patsubst %.cc,%.o,$(wildcard *.cc))
program: $(objects)
	g++ -o $@ $(sort $^)
%.o: %.cc
	g++ $(flags) -frandom-seed=$< -c $< -o $@
END
    sed -i "s/FLAGS/$(sized '-O2 -g' -O0)/" source/Makefile
}

work() {
    # A copy, for each run starts from nothing; its place must not change, for it stands in the debug information.
    rm -rf build
    cp -r source build
    make -C build -s -j8 >&2
    build/program
    sha256sum <build/program
    rm -rf build
}

main "$(sized 290M 200M)" "$@"
