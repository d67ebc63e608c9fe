/* The compressed pool is compacted while it is used: what is in it stays what it was, here and in children. */
#include "cases.h"

/* Words of the page that do not compress; the others are zeros. So each page has another length in the pool. */
static size_t dense_words(uint64_t seed, size_t page) { return 1 + mix(seed * 31 + page) % 300; }

static uint64_t uneven_word(uint64_t seed, size_t page, size_t word)
{
	return word < dense_words(seed, page) ? mix(seed * 0x9e3779b97f4a7c15ull + page * WORDS + word) : 0;
}

static void fill_uneven(char *start, size_t page, uint64_t seed)
{
	for (size_t w = 0; w < WORDS; w++)
		((uint64_t *)(start + page * PAGE))[w] = uneven_word(seed, page, w);
}

static void check_uneven(const char *start, size_t page, uint64_t seed, const char *what)
{
	const volatile uint64_t *words = (const volatile uint64_t *)(start + page * PAGE);
	for (size_t w = 0; w < WORDS; w++)
		if (words[w] != uneven_word(seed, page, w))
			bad("%s: page %zu word %zu is %016lx, must be %016lx", what, page, w, (unsigned long)words[w],
			    (unsigned long)uneven_word(seed, page, w));
}

/* What a page should be: of which fill, or zeros. */
static uint64_t seeds[96 * MiB / PAGE];
static const size_t PAGES = 96 * MiB / PAGE;

static char *filled(void)
{
	char *p = map(SIZE);
	for (size_t page = 0; page < PAGES; page++)
		fill_uneven(p, page, seeds[page] = 1);
	push_out(p, SIZE, "pages of many lengths");
	return p;
}

static void check_all(const char *p, const char *what)
{
	for (size_t page = 0; page < PAGES; page++) {
		if (seeds[page])
			check_uneven(p, page, seeds[page], what);
		else
			check_zero(p + page * PAGE, PAGE, what);
	}
}

/* Seven of ten pages go, here and there. */
static void discard_most(char *p, uint64_t round)
{
	for (size_t page = 0; page < PAGES; page++)
		if (mix(round * PAGES + page) % 10 < 7) {
			MUST(madvise(p + page * PAGE, PAGE, MADV_DONTNEED) == 0);
			seeds[page] = 0;
		}
}

static void refill(char *p, uint64_t seed)
{
	for (size_t page = 0; page < PAGES; page++)
		if (!seeds[page])
			fill_uneven(p, page, seeds[page] = seed);
	push_out(p, SIZE, "pages that were filled again");
}

static void compact(void)
{
	char *p = filled();
	for (uint64_t round = 1; round <= 2; round++) {
		discard_most(p, round);
		/* While the engine compacts. */
		for (size_t page = 0; page < PAGES; page += 8)
			if (seeds[page])
				check_uneven(p, page, seeds[page], "while it is compacted");
		sleep_ms(500);
		check_all(p, "after compaction");
		refill(p, round + 1);
	}
	check_all(p, "in the end");
}

/* The child has its parent's objects, of before the fork; the parent compacts what came after it. */
static void compact_fork(void)
{
	char *p = filled();
	pid_t child = forked();
	if (!child) {
		for (int round = 0; round < 3; round++) {
			sleep_ms(300);
			for (size_t page = (size_t)round; page < PAGES; page += 3)
				check_uneven(p, page, 1, "a child of one that compacts");
		}
		check_all(p, "a child of one that compacts");
		_exit(0);
	}
	for (uint64_t round = 1; round <= 3; round++) {
		discard_most(p, round);
		sleep_ms(200);
		refill(p, round + 1);
	}
	discard_most(p, 4);
	sleep_ms(300);
	check_all(p, "a parent that compacts");
	must_succeed(child, "a child of one that compacts");
	discard_most(p, 5);
	sleep_ms(300);
	check_all(p, "a parent whose child has ended");
}

/* A parent has filled its pool before it forks, and then rests. What its child takes leaves the pool too little, and nothing of it may be lost. */
static void inherited(void)
{
	size_t pages = 80 * MiB / PAGE, words = 48 * MiB / 8;
	char *p = map(pages * PAGE);
	for (size_t page = 0; page < pages; page++)
		fill_uneven(p, page, 7);
	sleep_ms(500);
	pid_t child = forked();
	if (!child) {
		uint64_t *own = map(words * 8);
		for (uint64_t round = 0; round < 3; round++)
			for (size_t word = 0; word < words; word++)
				own[word] = mix(word + round);
		for (size_t page = 0; page < pages; page++)
			check_uneven(p, page, 7, "what a child inherits");
		_exit(0);
	}
	must_succeed(child, "a child of one with a full pool");
	for (size_t page = 0; page < pages; page++)
		check_uneven(p, page, 7, "what a child has inherited");
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "compact", compact },
		{ "compact-fork", compact_fork },
		{ "inherited", inherited },
	};
	return RUN_CASE(argc, argv, cases);
}
