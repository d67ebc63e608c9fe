/* Anonymous shared memory with content that tells where it belongs. */
#include "cases.h"

#define LEN (40 * MiB)
#define AT(m, offset) (*(uint64_t *)((m) + (offset)))

static char *shared(size_t len)
{
	char *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(m != MAP_FAILED);
	return m;
}

static inline void write_all(char *m, size_t from, size_t to, uint64_t key)
{
	for (size_t at = from; at < to; at += PAGE)
		AT(m, at - from) = at * 3 + key;
}

static inline void check_all(char *m, size_t from, size_t to, uint64_t key)
{
	for (size_t at = from; at < to; at += PAGE)
		if (AT(m, at - from) != at * 3 + key)
			bad("page %zu is %zu instead of %zu", at / PAGE, (size_t)AT(m, at - from), (size_t)(at * 3 + key));
}

static inline char *filled(size_t len, uint64_t key)
{
	char *m = shared(len);
	write_all(m, 0, len, key);
	return m;
}

static void end_well(pid_t child)
{
	int status;
	MUST(waitpid(child, &status, 0) == child);
	if (status != 0)
		bad("a child ended with %#x", status);
}

/* On a busy machine a short case is over before anything has left. Of which of these is not for us to say. */
static inline void wait_until_any_has_left(char **all, unsigned count, size_t len)
{
	size_t out = 0;
	for (double begun = now(); swaps() && out == 0; sleep_ms(1)) {
		for (unsigned k = 0; k < count; k++)
			out += pages_out(all[k], len);
		if (now() - begun > 20)
			bad("nothing leaves");
	}
}

static inline void wait_until_some_has_left(char *m, size_t len)
{
	wait_until_any_has_left(&m, 1, len);
}

/* Everything else has to go; and some of this, too, so that it is known that anything does. */
static inline void press(void)
{
	char *m = filled(60 * MiB, 9);
	wait_until_some_has_left(m, 60 * MiB);
	check_all(m, 0, 60 * MiB, 9);
	munmap(m, 60 * MiB);
}
