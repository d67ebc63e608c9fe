#!/bin/bash
# Children that read what their parent had swapped out: of 600 MB, which compress to a half, eight children each read the oldest 100 at
# random, four times over, in 250 MiB. Under the kernel they have one copy of what they only read.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need cc

prepare() {
    cat >children.c <<'EOF'
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS 512
#define CHILDREN 8
#define TIMES 4

static uint64_t state = 88172645463325252u;

static uint64_t chance(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static double ms(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void figure(const char *name, double number)
{
	const char *file = getenv("USWAP_BENCH_FIGURES");
	FILE *figures = file ? fopen(file, "a") : NULL;
	if (figures) {
		fprintf(figures, "%s %.2f\n", name, number);
		fclose(figures);
	}
}

static double read_at_random(const uint64_t *memory, size_t pages)
{
	double begun = ms();
	for (size_t read = 0; read < pages; read++) {
		size_t page = chance() % pages;
		if (memory[page * WORDS + WORDS - 1] != page)
			_exit(2);
	}
	return (ms() - begun) * 1e3 / (double)pages;
}

int main(int count, char **arguments)
{
	size_t pages = (size_t)atol(arguments[count - 2]) << 8, old = (size_t)atol(arguments[count - 1]) << 8;
	int shared = MAP_SHARED | MAP_ANONYMOUS;
	uint64_t *memory = mmap(NULL, pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	double(*us)[TIMES] = mmap(NULL, CHILDREN * sizeof *us, PROT_READ | PROT_WRITE, shared, -1, 0);
	if (memory == MAP_FAILED || us == MAP_FAILED)
		return 1;
	for (size_t page = 0; page < pages; page++) {
		for (int word = 0; word < WORDS / 2; word++)
			memory[page * WORDS + word] = chance();
		memory[page * WORDS + WORDS - 1] = page;
	}
	usleep(500000);
	double begun = ms();
	for (int child = 0; child < CHILDREN; child++) {
		pid_t forked = fork();
		if (forked < 0)
			return 3;
		if (forked == 0) {
			state += (uint64_t)child * 77777;
			for (int time = 0; time < TIMES; time++)
				us[child][time] = read_at_random(memory, old);
			_exit(0);
		}
	}
	int status;
	while (wait(&status) > 0)
		if (status != 0)
			return 4;
	figure("all-children-s", (ms() - begun) / 1e3);
	double first = 0, last = 0;
	for (int child = 0; child < CHILDREN; child++) {
		first += us[child][0] / CHILDREN;
		last += us[child][TIMES - 1] / CHILDREN;
	}
	figure("a-read-the-first-time-us", first);
	figure("a-read-the-last-time-us", last);
	for (size_t page = 0; page < pages; page++)
		if (memory[page * WORDS + WORDS - 1] != page)
			return 2;
	puts("all is there");
	return 0;
}
EOF
    cc -O2 -Wall -Wextra -o children children.c
}

work() { ./children "$(sized 600 150)" "$(sized 100 25)" || wrong "its status is $?"; }

main "$(sized 250M 62M)" "$@"
