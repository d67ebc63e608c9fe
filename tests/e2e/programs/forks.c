/*
 * Forks in the very moment in which other threads change the mappings, fork themselves, or hold what a fork waits for.
 */
#include "cases.h"
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>

#define SEED 51

/* --- memory that threads move while another forks --- */

#define MOVERS 4
#define REGIONS 4
#define REGION (8 * PAGE)

/* Far from where the kernel and uswap place anything. Each region has two places, and holes around both. */
static char *place(int mover, int region, int which)
{
	size_t number = (size_t)(mover * REGIONS + region) * 2 + (size_t)which;
	return (char *)0x200000000000 + number * 4 * REGION;
}

static volatile int over;
static volatile unsigned long moves;

static void fill_region(char *start, int number)
{
	for (size_t p = 0; p < REGION / PAGE; p++)
		fill_random((uint64_t *)(start + p * PAGE), SEED + (uint64_t)number, p);
}

static void check_region(const char *start, int number)
{
	for (size_t p = 0; p < REGION / PAGE; p++)
		check_random((const uint64_t *)(start + p * PAGE), SEED + (uint64_t)number, p);
}

static int is_mapped(const char *start)
{
	unsigned char there[REGION / PAGE];
	return mincore((void *)start, REGION, there) == 0;
}

static void *moves_on(void *argument)
{
	int mover = (int)(intptr_t)argument, which = 0;
	while (!over) {
		for (int region = 0; region < REGIONS; region++) {
			char *from = place(mover, region, which), *to = place(mover, region, !which);
			MUST(mremap(from, REGION, REGION, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
			moves++;
		}
		which = !which;
		sleep_ms((long)env_number("PAUSE_MS", 8));
	}
	return NULL;
}

static void check_wherever_it_is(void)
{
	for (int mover = 0; mover < MOVERS; mover++)
		for (int region = 0; region < REGIONS; region++) {
			char *first = place(mover, region, 0), *second = place(mover, region, 1);
			if (is_mapped(first) && is_mapped(second))
				bad("region %d of mover %d is at two places", region, mover);
			if (!is_mapped(first) && !is_mapped(second))
				_exit(3);
			check_region(is_mapped(first) ? first : second, mover * REGIONS + region);
		}
}

static void moving(void)
{
	for (int number = 0; number < MOVERS * REGIONS; number++) {
		char *start = place(number / REGIONS, number % REGIONS, 0);
		MUST(mmap(start, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
		fill_region(start, number);
	}
	for (int number = 0; number < MOVERS * REGIONS; number++)
		push_out_percent(place(number / REGIONS, number % REGIONS, 0), REGION, 100, "what will be moved");
	pthread_t threads[MOVERS];
	for (intptr_t mover = 0; mover < MOVERS; mover++)
		MUST(pthread_create(&threads[mover], NULL, moves_on, (void *)mover) == 0);
	size_t forks = env_number("FORKS", 600), right = 0, ended = 0, lost = 0, missing = 0;
	for (size_t k = 0; k < forks; k++) {
		pid_t child = forked();
		if (!child) {
			check_wherever_it_is();
			_exit(0);
		}
		int status = status_of(child);
		if (status == 99)
			bad("a child has read what is not there (fork %zu)", k);
		right += status == 0;
		ended += status == 128 + SIGKILL;
		lost += status == 128 + SIGBUS;
		missing += status == 3;
		if (status && status != 3 && status != 128 + SIGKILL && status != 128 + SIGBUS)
			bad("a child ended with status %d", status);
	}
	over = 1;
	for (int mover = 0; mover < MOVERS; mover++)
		pthread_join(threads[mover], NULL);
	check_wherever_it_is();
	fprintf(stderr, "of %zu children %zu were right, %zu ended, %zu lost a page, %zu lacked memory; %lu moves\n", forks,
		right, ended, lost, missing, moves);
	if (missing)
		bad("%zu children lacked memory", missing);
	if (lost || right < forks / 2)
		bad("too few children could go on");
}

/* --- a lock that a fork waits for, and whose holder touches more pages than any table has places --- */

#define BLOCK (400 * MiB)

static void mark(char *block)
{
	for (size_t p = 0; p < BLOCK / PAGE; p++)
		for (size_t w = 0; w < WORDS; w++)
			((uint64_t *)(block + p * PAGE))[w] = p + 1;
}

static void check_marks(const char *block, size_t step)
{
	for (size_t p = 0; p < BLOCK / PAGE; p += step)
		for (size_t w = 0; w < WORDS; w++)
			if (((const volatile uint64_t *)(block + p * PAGE))[w] != p + 1)
				bad("page %zu word %zu is wrong", p, w);
}

static char *volatile block;
static volatile int begin;

static void *reallocates(void *unused)
{
	(void)unused;
	while (!begin)
		sleep_ms(1);
	/* Below the top of the heap: copied as a whole, by who holds the lock of the heap. */
	char *larger = realloc(block, BLOCK + MiB);
	MUST(larger && larger != block);
	block = larger;
	return NULL;
}

static void many_faults(void)
{
	MUST(mallopt(M_MMAP_MAX, 0) && mallopt(M_ARENA_MAX, 1) && mallopt(M_TRIM_THRESHOLD, INT_MAX));
	block = malloc(BLOCK);
	char *above = malloc(100);
	MUST(block && above);
	mark(block);
	push_out_percent(block + PAGE - (uintptr_t)block % PAGE, BLOCK - PAGE, 80, "block");
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, reallocates, NULL) == 0);
	begin = 1;
	sleep_ms(2);
	double from = now();
	pid_t child = forked();
	if (!child) {
		check_marks(block, 1000);
		_exit(0);
	}
	printf("forked\n");
	fprintf(stderr, "fork took %.2f s\n", now() - from);
	must_succeed(child, "child");
	pthread_join(thread, NULL);
	check_marks(block, 1);
	free(above);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "moving", moving },
		{ "many-faults", many_faults },
	};
	return RUN_CASE(argc, argv, cases);
}
