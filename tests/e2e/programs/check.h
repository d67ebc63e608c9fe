/*
 * What the test programs share: memory that can be checked, and pressure that pushes it out.
 *
 * Content is a function of (seed, page, word), so that every process of a tree can check any page without having
 * seen who wrote it. Four kinds of page alternate, because each takes another way through a swapper: random
 * words (do not compress), repeating words (compress), a lone word in zeros, and all zeros.
 *
 * `push_out` makes sure that a test means something: under uswap (USWAP_E2E_SWAPS=1) it does not return before
 * mincore(2) says that a good part of the range is not mapped, and fails when that takes too long.
 */
#ifndef CHECK_H
#define CHECK_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define WORDS (PAGE / 8)
#define MiB ((size_t)1 << 20)

/* Says what is wrong and ends the process at once; exit handlers could touch the memory in question. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void bad(const char *format, ...)
{
	char line[512];
	va_list list;
	va_start(list, format);
	int n = snprintf(line, sizeof line, "BAD pid %d: ", (int)getpid());
	n += vsnprintf(line + n, sizeof line - (size_t)n - 1, format, list);
	va_end(list);
	if (n > (int)sizeof line - 2)
		n = sizeof line - 2;
	line[n++] = '\n';
	if (write(2, line, (size_t)n) < 0)
		_exit(98);
	_exit(99);
}

#define MUST(condition)                                                                              \
	do {                                                                                         \
		errno = 0;                                                                           \
		if (!(condition))                                                                    \
			bad("%s:%d: %s: %s", __FILE_NAME__, __LINE__, #condition, strerror(errno)); \
	} while (0)

#ifndef __FILE_NAME__
#define __FILE_NAME__ __FILE__
#endif

static inline uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static inline uint64_t word_of(uint64_t seed, size_t page, size_t word)
{
	uint64_t base = mix(seed * 0x9e3779b97f4a7c15ull + page);
	switch (page & 3) {
	case 0: return mix(base + word);
	case 1: return base + (word & 15);
	case 2: return word == (base & (WORDS - 1)) ? base | 1 : 0;
	default: return 0;
	}
}

static inline void fill_page(uint64_t *words, uint64_t seed, size_t page)
{
	for (size_t w = 0; w < WORDS; w++)
		words[w] = word_of(seed, page, w);
}

/* The first wrong word of a page, or WORDS. */
static inline size_t wrong_word(const uint64_t *words, uint64_t seed, size_t page)
{
	for (size_t w = 0; w < WORDS; w++)
		if (((const volatile uint64_t *)words)[w] != word_of(seed, page, w))
			return w;
	return WORDS;
}

/* Pages of which no word is like another, and which do not compress. */
static inline uint64_t random_word(uint64_t seed, size_t page, size_t w) { return mix(mix(seed << 32 | page) + w); }

static inline void fill_random(uint64_t *words, uint64_t seed, size_t page)
{
	for (size_t w = 0; w < WORDS; w++)
		words[w] = random_word(seed, page, w);
}

static inline void check_random(const volatile uint64_t *words, uint64_t seed, size_t page)
{
	for (size_t w = 0; w < WORDS; w++)
		if (words[w] != random_word(seed, page, w))
			bad("page %zu word %zu is %016lx, must be %016lx", page, w, (unsigned long)words[w],
			    (unsigned long)random_word(seed, page, w));
}

static inline void fill(void *start, size_t bytes, uint64_t seed)
{
	for (size_t p = 0; p < bytes / PAGE; p++)
		fill_page((uint64_t *)((char *)start + p * PAGE), seed, p);
}

static inline void check_pages(const void *start, size_t from, size_t to, uint64_t seed, const char *what)
{
	for (size_t p = from; p < to; p++) {
		const uint64_t *words = (const uint64_t *)((const char *)start + p * PAGE);
		size_t w = wrong_word(words, seed, p);
		if (w < WORDS)
			bad("%s: page %zu word %zu at %p is %016lx, must be %016lx", what, p, w, (void *)(words + w),
			    (unsigned long)words[w], (unsigned long)word_of(seed, p, w));
	}
}

static inline void check(const void *start, size_t bytes, uint64_t seed, const char *what)
{
	check_pages(start, 0, bytes / PAGE, seed, what);
}

static inline void check_zero(const void *start, size_t bytes, const char *what)
{
	for (size_t w = 0; w < bytes / 8; w++)
		if (((const volatile uint64_t *)start)[w])
			bad("%s: word %zu of %zu is %016lx, must be zero", what, w, bytes / 8,
			    (unsigned long)((const uint64_t *)start)[w]);
}

static inline void *map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(p != MAP_FAILED);
	return p;
}

static inline size_t env_number(const char *name, size_t otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

static inline int swaps(void) { return env_number("USWAP_E2E_SWAPS", 0) != 0; }

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void sleep_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };
	while (nanosleep(&t, &t) && errno == EINTR)
		;
}

/* Pages of the range that the page table does not map: swapped out, or in the swap cache. */
static inline size_t pages_out(const void *start, size_t bytes)
{
	static unsigned char residency[1024];
	size_t out = 0;
	for (size_t p = 0; p < bytes / PAGE; p += sizeof residency) {
		size_t n = bytes / PAGE - p < sizeof residency ? bytes / PAGE - p : sizeof residency;
		MUST(mincore((char *)start + p * PAGE, n * PAGE, residency) == 0);
		for (size_t k = 0; k < n; k++)
			out += !(residency[k] & 1);
	}
	return out;
}

/* Memory whose only job is to be hotter than everything else. It belongs to one process: a fork starts anew. */
static inline void ballast(void)
{
	static char *memory;
	static pid_t owner;
	static unsigned round;
	size_t bytes = env_number("USWAP_E2E_BALLAST_MIB", 96) * MiB;
	if (!memory || owner != getpid()) {
		memory = map(bytes);
		owner = getpid();
	}
	round++;
	for (size_t p = 0; p < bytes / PAGE; p++) {
		uint64_t *words = (uint64_t *)(memory + p * PAGE);
		words[0] = mix(p + round);
		words[p % WORDS] = words[0] ^ round;
	}
}

/* Pressure until `percent` of the range is out. Without uswap: one round, so that timing is alike. */
static inline void push_out_percent(const void *start, size_t bytes, unsigned percent, const char *what)
{
	double from = now();
	size_t pages = bytes / PAGE, out = 0;
	do {
		ballast();
		out = pages_out(start, bytes);
		if (!swaps() || out * 100 >= pages * percent)
			return;
	} while (now() - from < 30);
	bad("%s: only %zu of %zu pages were swapped out in 30 s of pressure", what, out, pages);
}

static inline void push_out(const void *start, size_t bytes, const char *what)
{
	push_out_percent(start, bytes, 40, what);
}

/* Waits for a child and says how it ended, as a shell would. */
static inline int status_of(pid_t child)
{
	int status;
	MUST(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline void must_succeed(pid_t child, const char *what)
{
	int status = status_of(child);
	if (status)
		bad("%s: child %d ended with status %d", what, (int)child, status);
}
#endif
