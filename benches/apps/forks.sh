#!/bin/bash
# Fork of a program most of whose memory is swapped out: 900 MB that compress to a half, in 100 MiB. Each child ends at once.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need cc

prepare() {
    cat >forks.c <<'EOF'
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORDS 512
#define FORKS 11

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

static int rising(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;
	return (a > b) - (a < b);
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

int main(int count, char **arguments)
{
	size_t pages = (size_t)atol(arguments[count - 1]) << 8;
	uint64_t *memory = mmap(NULL, pages * WORDS * 8, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return 1;
	for (size_t page = 0; page < pages; page++) {
		for (int word = 0; word < WORDS / 2; word++)
			memory[page * WORDS + word] = chance();
		memory[page * WORDS + WORDS - 1] = page;
	}
	for (int read = 0; read < 2000; read++) {
		size_t page = chance() % pages;
		if (memory[page * WORDS + WORDS - 1] != page)
			return 2;
	}
	usleep(500000);
	double *begun_in_child = mmap(NULL, sizeof *begun_in_child, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (begun_in_child == MAP_FAILED)
		return 1;
	double forked[FORKS], runs[FORKS], ended[FORKS];
	for (int fork_number = 0; fork_number < FORKS; fork_number++) {
		double begun = ms();
		pid_t child = fork();
		if (child < 0)
			return 3;
		if (child == 0) {
			*begun_in_child = ms();
			_exit(0);
		}
		forked[fork_number] = ms() - begun;
		int status;
		if (waitpid(child, &status, 0) != child || status != 0)
			return 4;
		runs[fork_number] = *begun_in_child - begun;
		ended[fork_number] = ms() - begun;
		usleep(200000);
	}
	figure("first-fork-ms", forked[0]);
	qsort(forked + 1, FORKS - 1, sizeof *forked, rising);
	qsort(runs + 1, FORKS - 1, sizeof *runs, rising);
	qsort(ended + 1, FORKS - 1, sizeof *ended, rising);
	figure("fork-ms", forked[FORKS / 2]);
	figure("until-the-child-runs-ms", runs[FORKS / 2]);
	figure("until-the-child-has-ended-ms", ended[FORKS / 2]);
	for (size_t page = 0; page < pages; page++)
		if (memory[page * WORDS + WORDS - 1] != page)
			return 2;
	puts("all is there");
	return 0;
}
EOF
    cc -O2 -Wall -Wextra -o forks forks.c
}

work() { ./forks "$(sized 900 150)" || wrong "its status is $?"; }

main "$(sized 100M 32M)" "$@"
