/*
 * Touches fresh memory at a given rate, then reads it all once.
 *
 *     touch fresh MIB THREADS MIB_PER_SECOND WORDS     WORDS written per page: 1 (compresses to nothing) to 512 (random)
 *     touch heap  MIB 1 MIB_PER_SECOND WORDS           the same, of a heap that grows by 128 KiB at a time
 *     touch fork  MIB CHILDREN MIB_PER_SECOND WORDS    forks while big; parent and children rewrite all of it
 *     touch churn MIB ROUNDS MIB_PER_SECOND WORDS      first maps, touches and unmaps 64 small mappings ROUNDS times
 *     touch wave  MIB ROUNDS MIB_PER_SECOND WORDS      grows and gives back, again and again
 */
#include "check.h"
#include <pthread.h>

static size_t mib, count, rate, words;
static int grows;

static uint64_t value(size_t page, size_t word, uint64_t seed) { return mix(page * 512 + word + seed * 0x9e3779b9u) | 1; }

static void touch(char *p, size_t mibs, size_t rate_here, uint64_t seed)
{
	/* A stall is not caught up on: the rate is an upper bound, at each moment. */
	double next = now();
	for (size_t m = 0; m < mibs; m++) {
		for (size_t k = 0; k < MiB / PAGE; k++) {
			uint64_t *page = (uint64_t *)(p + m * MiB + k * PAGE);
			if (grows && k % 32 == 0)
				MUST(sbrk(32 * PAGE) == page);
			for (size_t w = 0; w < words; w++)
				page[w] = value(m * 256 + k, w, seed);
		}
		double t = now();
		next = (next > t - 0.002 ? next : t) + 1.0 / (double)rate_here;
		if (next > t + 0.001)
			sleep_ms((long)((next - t) * 1000));
	}
}

static void verify(const char *p, size_t mibs, uint64_t seed)
{
	for (size_t k = 0; k < mibs * MiB / PAGE; k++) {
		const volatile uint64_t *page = (const volatile uint64_t *)(p + k * PAGE);
		size_t w = k % words;
		if (page[w] != value(k, w, seed) || (words < WORDS && page[WORDS - 1]))
			bad("page %zu word %zu is %lx", k, w, (unsigned long)page[w]);
	}
}

/* Mappings of their own, each between two that cannot be accessed. */
static void churn(size_t rounds)
{
	enum { PIECES = 64, PIECE = 256 * 1024 };
	for (size_t k = 0; k < rounds; k++) {
		char *p = mmap(NULL, PIECES * PIECE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(p != MAP_FAILED);
		for (size_t piece = 0; piece < PIECES; piece++) {
			MUST(mprotect(p + piece * PIECE, PIECE / 2, PROT_READ | PROT_WRITE) == 0);
			p[piece * PIECE] = 1;
		}
		sleep_ms(10);
		MUST(munmap(p, PIECES * PIECE) == 0);
	}
}

struct job {
	char *p;
	uint64_t seed;
};

static void *touch_part(void *argument)
{
	struct job *job = argument;
	job->p = map(mib / count * MiB);
	touch(job->p, mib / count, rate / count, job->seed);
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc != 6)
		return 2;
	mib = strtoul(argv[2], NULL, 10);
	count = strtoul(argv[3], NULL, 10);
	rate = strtoul(argv[4], NULL, 10);
	words = strtoul(argv[5], NULL, 10);
	double from = now();
	if (!strcmp(argv[1], "fresh")) {
		pthread_t threads[64];
		struct job jobs[64];
		for (size_t k = 0; k < count; k++) {
			jobs[k].seed = k;
			MUST(pthread_create(&threads[k], NULL, touch_part, &jobs[k]) == 0);
		}
		for (size_t k = 0; k < count; k++)
			MUST(pthread_join(threads[k], NULL) == 0);
		fprintf(stderr, "%.0f MiB/s\n", (double)mib / (now() - from));
		for (size_t k = 0; k < count; k++)
			verify(jobs[k].p, mib / count, jobs[k].seed);
	} else if (!strcmp(argv[1], "heap")) {
		/* Nothing else in this program uses brk from here on: malloc is not called. */
		grows = 1;
		MUST(sbrk((intptr_t)(PAGE - (uintptr_t)sbrk(0) % PAGE)) != (void *)-1);
		char *p = sbrk(0);
		touch(p, mib, rate, 0);
		verify(p, mib, 0);
	} else if (!strcmp(argv[1], "fork")) {
		char *p = map(mib * MiB);
		touch(p, mib, rate, 100);
		pid_t children[64];
		for (size_t k = 0; k < count; k++) {
			children[k] = fork();
			MUST(children[k] >= 0);
			if (!children[k]) {
				verify(p, mib, 100);
				touch(p, mib, rate / (count + 1), k);
				verify(p, mib, k);
				_exit(0);
			}
		}
		touch(p, mib, rate / (count + 1), 101);
		for (size_t k = 0; k < count; k++)
			must_succeed(children[k], "child");
		verify(p, mib, 101);
	} else if (!strcmp(argv[1], "churn")) {
		/* Near its budget, so that memory is adopted. */
		char *p = map(mib / 5 * MiB), *q = map(mib * MiB);
		touch(p, mib / 5, rate, 0);
		churn(count);
		touch(q, mib, rate, 1);
		verify(p, mib / 5, 0);
		verify(q, mib, 1);
	} else if (!strcmp(argv[1], "wave")) {
		for (size_t k = 0; k < count; k++) {
			char *p = map(mib * MiB);
			touch(p, mib, rate, k);
			verify(p, mib, k);
			MUST(munmap(p, mib * MiB) == 0);
		}
	} else {
		return 2;
	}
	printf("touched %zu MiB\n", mib);
	return 0;
}
