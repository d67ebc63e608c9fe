/* One program, many cases: `PROGRAM CASE` runs one and prints "ok CASE". */
#ifndef CASES_H
#define CASES_H
#include "check.h"

struct test_case {
	const char *name;
	void (*run)(void);
};

/* What most cases work on. */
static const size_t SIZE = 96 * MiB;

/* Fresh memory that was filled and is swapped out. */
static inline char *swapped(size_t bytes, uint64_t seed, const char *what)
{
	char *p = map(bytes);
	fill(p, bytes, seed);
	push_out(p, bytes, what);
	return p;
}

static inline pid_t forked(void)
{
	fflush(stdout);
	pid_t child = fork();
	MUST(child >= 0);
	return child;
}

static inline int run_case(int argc, char **argv, const struct test_case *cases, size_t count)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t k = 0; argc > 1 && k < count; k++)
		if (!strcmp(argv[1], cases[k].name)) {
			cases[k].run();
			printf("ok %s\n", cases[k].name);
			return 0;
		}
	fprintf(stderr, "no such case; there are:");
	for (size_t k = 0; k < count; k++)
		fprintf(stderr, " %s", cases[k].name);
	fprintf(stderr, "\n");
	return 2;
}

#define RUN_CASE(argc, argv, cases) run_case(argc, argv, cases, sizeof cases / sizeof *cases)
#endif
