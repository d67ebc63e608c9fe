/*
 * A tree of processes that check and rewrite their memory until SECONDS have passed, while somebody kills.
 *
 *     survivors MIB CHILDREN SECONDS
 *
 * Each child has a child of its own. Every process says "start PID", at the end "done PID", on standard output by
 * one write(2), and "BAD ..." on standard error when a byte is wrong. A child that was killed is no failure.
 */
#include "check.h"
#include <signal.h>

enum { STRIPES = 16 };
static char *memory;
static size_t size;
static uint64_t version[STRIPES];

static void say(const char *what)
{
	char line[64];
	int n = snprintf(line, sizeof line, "%s %d\n", what, (int)getpid());
	if (write(1, line, (size_t)n) != n)
		_exit(97);
}

static void rewrite(size_t stripe, uint64_t seed)
{
	fill(memory + stripe * (size / STRIPES), size / STRIPES, seed);
	version[stripe] = seed;
}

static void check_all(const char *what)
{
	for (size_t s = 0; s < STRIPES; s++)
		check(memory + s * (size / STRIPES), size / STRIPES, version[s], what);
}

static void work(double until)
{
	uint64_t r = (uint64_t)getpid();
	say("start");
	while (now() < until) {
		r = mix(r + 1);
		rewrite(r % STRIPES, r >> 8);
		r = mix(r + 1);
		size_t s = r % STRIPES;
		check(memory + s * (size / STRIPES), size / STRIPES, version[s], "at work");
	}
	check_all("at the end");
	say("done");
}

static void wait_for(pid_t child)
{
	int status = status_of(child);
	if (status && status != 128 + SIGKILL)
		bad("child %d ended with status %d", (int)child, status);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	size = strtoul(argv[1], NULL, 10) * MiB;
	size_t children = strtoul(argv[2], NULL, 10);
	double until = now() + strtod(argv[3], NULL);
	pid_t pids[16];
	memory = map(size);
	for (size_t s = 0; s < STRIPES; s++)
		rewrite(s, s + 1);
	for (size_t k = 0; k < children && k < 16; k++) {
		pids[k] = fork();
		MUST(pids[k] >= 0);
		if (!pids[k]) {
			check_all("child at birth");
			pid_t below = fork();
			MUST(below >= 0);
			work(until);
			if (below)
				wait_for(below);
			_exit(0);
		}
	}
	work(until);
	for (size_t k = 0; k < children && k < 16; k++)
		wait_for(pids[k]);
	return 0;
}
