/*
 * One mremap over several mappings, which Linux allows since 6.17: their pages, their holes and their protections arrive
 * as they were, whether they are swapped out or not. Where the kernel refuses it, the program says so and has nothing to
 * check. And shared segments that take the place of other memory, which the agent moves there.
 */
#include "cases.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#define SEED 31
#define PIECE (4 * MiB)

/* Eight mappings, one of them not writable, and before the last two a hole of half a piece. */
struct laid_out {
	char *start;
	size_t bytes;
};

static const size_t HOLE_AT = 6 * PIECE, HOLE = PIECE / 2;

static struct laid_out lay_out(void)
{
	struct laid_out it = { NULL, 8 * PIECE + HOLE };
	it.start = map(it.bytes + 2 * PIECE);
	/* Nothing lies right behind it. */
	MUST(munmap(it.start + it.bytes, 2 * PIECE) == 0);
	fill(it.start, it.bytes, SEED);
	for (size_t k = 1; k < 6; k += 2) {
		/* A piece of its own: it becomes one mapping with its neighbours neither before nor after a move. */
		char *piece = it.start + k * PIECE;
		MUST(madvise(piece, PIECE, k == 1 ? MADV_DONTDUMP : MADV_SEQUENTIAL) == 0);
	}
	MUST(mprotect(it.start + 2 * PIECE, PIECE, PROT_READ) == 0);
	MUST(munmap(it.start + HOLE_AT, HOLE) == 0);
	MUST(madvise(it.start + it.bytes - PIECE, PIECE, MADV_RANDOM) == 0);
	return it;
}

static int is_mapped(const char *page)
{
	unsigned char there;
	return mincore((void *)page, PAGE, &there) == 0;
}

static void check_all(const char *start, size_t bytes, const char *what)
{
	for (size_t at = 0; at < bytes; at += PAGE) {
		if (at >= HOLE_AT && at < HOLE_AT + HOLE)
			continue;
		size_t w = wrong_word((const uint64_t *)(start + at), SEED, at / PAGE);
		if (w < WORDS)
			bad("%s: page %zu word %zu is wrong", what, at / PAGE, w);
	}
}

/* Whether the kernel moves several mappings at once; this program stands where nothing is swapped. */
static int kernel_can(int flags)
{
	char *from = map(4 * PAGE), *to = map(4 * PAGE);
	MUST(mprotect(from + 2 * PAGE, 2 * PAGE, PROT_READ) == 0);
	int can = mremap(from, 4 * PAGE, 4 * PAGE, flags, to) == to;
	if (!can)
		printf("this kernel moves one mapping at a time\n");
	return can;
}

static void several(void)
{
	if (!kernel_can(MREMAP_MAYMOVE | MREMAP_FIXED))
		return;
	for (int round = 0; round < 3; round++) {
		struct laid_out it = lay_out();
		char *to = map(it.bytes);
		memset(to, 0xee, it.bytes);
		if (round)
			push_out(it.start, HOLE_AT, "source");
		MUST(mremap(it.start, it.bytes, it.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		check_all(to, it.bytes, "moved");
		for (size_t at = HOLE_AT; at < HOLE_AT + HOLE; at++)
			if (to[at] != (char)0xee)
				bad("what the target had in the hole has changed");
		for (size_t at = 0; at < it.bytes; at += PAGE)
			if (is_mapped(it.start + at))
				bad("page %zu is still mapped at its old place", at / PAGE);
		/* Writable where it was, and one process's own. */
		fill(to, 2 * PIECE, SEED + 1);
		ballast();
		check(to, 2 * PIECE, SEED + 1, "moved and written");
		pid_t child = forked();
		if (child == 0) {
			*(volatile char *)(to + 2 * PIECE) = 1;
			_exit(0);
		}
		if (status_of(child) != 128 + SIGSEGV)
			bad("what was not writable is so after its move");
		MUST(munmap(to, it.bytes) == 0);
	}
}

static void several_left_mapped(void)
{
	if (!kernel_can(MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP))
		return;
	for (int round = 0; round < 3; round++) {
		struct laid_out it = lay_out();
		char *to = map(it.bytes);
		if (round)
			push_out(it.start, HOLE_AT, "source");
		MUST(mremap(it.start, it.bytes, it.bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == to);
		check_all(to, it.bytes, "moved");
		check_zero(it.start, HOLE_AT, "left behind");
		check_zero(it.start + HOLE_AT + HOLE, it.bytes - HOLE_AT - HOLE, "left behind");
		MUST(munmap(to, it.bytes) == 0 && munmap(it.start, it.bytes) == 0);
	}
}

/* What needs no move, and what is refused, over several mappings. */
static void several_in_place(void)
{
	struct laid_out it = lay_out();
	push_out(it.start, HOLE_AT, "source");
	void *grown = mremap(it.start, it.bytes, it.bytes + PIECE, MREMAP_MAYMOVE);
	printf("grown over several: %s\n", grown == MAP_FAILED ? strerror(errno) : "done");
	void *overlap = mremap(it.start, it.bytes, it.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, it.start + PAGE);
	printf("onto itself: %s\n", overlap == MAP_FAILED ? strerror(errno) : "done");
	void *hole = mremap(it.start + HOLE_AT, HOLE, HOLE, MREMAP_MAYMOVE | MREMAP_FIXED, map(HOLE));
	printf("out of a hole: %s\n", hole == MAP_FAILED ? strerror(errno) : "done");
	check_all(it.start, it.bytes, "after what was refused");
	MUST(mremap(it.start, HOLE_AT, 2 * PIECE, MREMAP_MAYMOVE) == it.start);
	if (is_mapped(it.start + 2 * PIECE) || !is_mapped(it.start))
		bad("shrunk over several, and not as it should be");
	check(it.start, 2 * PIECE, SEED, "shrunk");
}

/*
 * Memory that was swapped out is unmapped, the mapping before it grows into its place, and what has grown, just that, is moved
 * away, as fast as a thread can. Linux does not report growth: the reports are those of the old memory's being moved, and of
 * something else's being unmapped in its place. What arrives is zeros, or the process has been ended and has said why.
 */
static void grown_and_moved(void)
{
	for (int round = 0; round < 40; round++) {
		char *start = map(2 * PIECE), *to = map(PIECE);
		fill(start, 2 * PIECE, SEED);
		push_out_percent(start + PIECE, PIECE, 100, "source");
		MUST(munmap(start + PIECE, PIECE) == 0);
		MUST(mremap(start, PIECE, 2 * PIECE, 0) == start);
		MUST(mremap(start + PIECE, PIECE, PIECE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		for (size_t at = 0; at < PIECE; at += PAGE)
			if (to[at])
				bad("page %zu of what has grown and was moved is not zero", at / PAGE);
		check(start, PIECE, SEED, "before it");
		MUST(munmap(start, PIECE) == 0);
		MUST(munmap(to, PIECE) == 0);
	}
}

static void *waits_for_ever(void *unused)
{
	(void)unused;
	while (pause())
		;
	return NULL;
}

/* The same beside another thread, which might have made any of the calls. */
static void grown_and_moved_beside(void)
{
	pthread_t other;
	MUST(pthread_create(&other, NULL, waits_for_ever, NULL) == 0);
	grown_and_moved();
}

#define RESTLESS 4

static atomic_int restless_end;
static pthread_barrier_t restless_begin;

/* Moves memory to and fro, without a pause. */
static void *moves(void *unused)
{
	(void)unused;
	char *here = map(2 * MiB), *there = here + MiB;
	fill(here, MiB, SEED);
	pthread_barrier_wait(&restless_begin);
	/* All threads have their stacks: nothing else comes to be in the hole. */
	MUST(munmap(there, MiB) == 0);
	while (!restless_end) {
		MUST(mremap(here, MiB, MiB, MREMAP_MAYMOVE | MREMAP_FIXED, there) == there);
		char *was = here;
		here = there;
		there = was;
	}
	check(here, MiB, SEED, "moved to and fro");
	return NULL;
}

/*
 * Linux fills no page while a mremap is under way anywhere in the process. Where threads never stop, faults are served all the
 * same, and soon.
 */
static void restless_by(int count, int looks)
{
	char *start = map(32 * MiB);
	fill(start, 32 * MiB, SEED);
	push_out(start, 32 * MiB, "what is read meanwhile");
	pthread_t threads[RESTLESS];
	pthread_barrier_init(&restless_begin, NULL, count + 1);
	for (int k = 0; k < count; k++)
		MUST(pthread_create(&threads[k], NULL, moves, NULL) == 0);
	pthread_barrier_wait(&restless_begin);
	double begun = now();
	/* What is reported must not pile up while nobody asks for a page. */
	for (int look = 0; look < looks; look++) {
		usleep(500000);
		check_pages(start, (size_t)look * MiB / PAGE, 1, SEED, "looked at meanwhile");
	}
	check(start, 32 * MiB, SEED, "read meanwhile");
	if (now() - begun > 30)
		bad("reading 32 MiB took %.0f s", now() - begun);
	restless_end = 1;
	for (int k = 0; k < count; k++)
		MUST(pthread_join(threads[k], NULL) == 0);
}

static void restless(void)
{
	restless_by(RESTLESS, 0);
}

/* Hardly ever is none under way, and never are two. */
static void restless_alone(void)
{
	restless_by(1, 10);
}

static char *attach(int way, int id, char *at)
{
	switch (way) {
	case 0: return shmat(id, at, SHM_REMAP);
	case 1: return (char *)syscall(SYS_shmat, id, at, SHM_REMAP);
	default: return shmat(id, at + 123, SHM_REMAP | SHM_RND);
	}
}

static void attach_fails(int id, char *at, int flags)
{
	char *attached = shmat(id, at, flags);
	printf("attached: %s\n", attached == (char *)-1 ? strerror(errno) : "yes");
}

/*
 * A segment of System V takes the place of swapped memory, and goes. What comes to be there is zeros, whether the mapping before it
 * grows into the place or something is mapped there; what lies beside it is as it was.
 */
static void attached_over(void)
{
	for (int round = 0; round < 6; round++) {
		int way = round % 3, grows = round < 3;
		char *start = map(16 * PIECE);
		MUST(munmap(start + 3 * PIECE, 13 * PIECE) == 0);
		fill(start, 3 * PIECE, SEED);
		push_out_percent(start, 3 * PIECE, 60, "what is replaced");
		int id = shmget(IPC_PRIVATE, 2 * PIECE - 5, IPC_CREAT | 0600);
		MUST(id >= 0);
		attach_fails(id, start + PIECE + 123, SHM_REMAP);
		attach_fails(id, NULL, SHM_REMAP);
		attach_fails(id, (char *)123, SHM_REMAP | SHM_RND);
		attach_fails(id, start + PIECE, 0);
		attach_fails(id + 1000, start + PIECE, SHM_REMAP);
		check(start, PIECE, SEED, "after what was refused");
		MUST(attach(way, id, start + PIECE) == start + PIECE);
		MUST(shmctl(id, IPC_RMID, NULL) == 0);
		check_zero(start + PIECE, 2 * PIECE, "a fresh segment");
		fill(start + PIECE, 2 * PIECE, SEED + 1);
		pid_t child = forked();
		if (child == 0) {
			check(start + PIECE, 2 * PIECE, SEED + 1, "shared with the child");
			fill(start + PIECE, 2 * PIECE, SEED + 2);
			_exit(0);
		}
		must_succeed(child, "child");
		check(start + PIECE, 2 * PIECE, SEED + 2, "written by the child");
		check(start, PIECE, SEED, "before it");
		MUST(shmdt(start + PIECE) == 0);
		if (is_mapped(start + PIECE))
			bad("the segment is still there");
		if (grows)
			MUST(mremap(start, PIECE, 3 * PIECE, 0) == start);
		else {
			MUST(mmap(start + PIECE, 4 * PIECE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start + PIECE);
			start[4 * PIECE] = 1;
		}
		ballast();
		check_zero(start + PIECE, 2 * PIECE, "after the segment");
		check(start, PIECE, SEED, "before it");
		MUST(munmap(start, 5 * PIECE) == 0);
	}
	/* A hole at the very place, where the kernel would put the next thing. */
	int id = shmget(IPC_PRIVATE, 2 * PIECE, IPC_CREAT | 0600);
	char *hole = map(4 * PIECE);
	MUST(munmap(hole, 4 * PIECE) == 0);
	MUST(shmat(id, hole + PIECE, SHM_REMAP | SHM_RDONLY) == hole + PIECE);
	MUST(shmctl(id, IPC_RMID, NULL) == 0);
	check_zero(hole + PIECE, 2 * PIECE, "read only");
	if (is_mapped(hole) || is_mapped(hole + 3 * PIECE) || shmdt(hole + PIECE))
		bad("the hole is not as it was");
}

/* Where pages of `part` are by now that are the `page`th of all. */
static void check_moved(const char *part, size_t page, size_t pages)
{
	for (size_t k = 0; k < pages; k++)
		if (wrong_word((const uint64_t *)(part + k * PAGE), SEED, page + k) < WORDS)
			bad("page %zu is wrong where it was moved", page + k);
}

/*
 * One thread calls as fast as it can, on memory that is swapped out: the kernel's reports alone do not tell which call came first, but
 * one thread makes one call after the other.
 */
static void by_one_thread(void)
{
	enum { PART = 16, STEP = 2 * PART };
	size_t bytes = 4 * PIECE, pages = bytes / PAGE;
	for (int way = 0; way < 3; way++) {
		char *start = map(bytes), *place = map(bytes);
		fill(start, bytes, SEED);
		push_out(start, bytes, "source");
		MUST(munmap(place, bytes) == 0);
		for (size_t page = 0; page < pages; page += STEP) {
			char *from = start + page * PAGE, *to = place + page * PAGE;
			int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
			if (way == 0) {
				MUST(madvise(from, 4 * PAGE, MADV_DONTNEED) == 0);
				MUST(mremap(from, PART * PAGE, PART * PAGE, flags | MREMAP_DONTUNMAP, to) == to);
				MUST(madvise(from + 5 * PAGE, PAGE, MADV_DONTNEED) == 0);
			} else if (way == 1) {
				MUST(mremap(from, PART * PAGE, PART * PAGE, flags, to) == to);
				MUST(mremap(from + PART * PAGE, 4 * PAGE, 4 * PAGE, flags, to) == to);
				MUST(munmap(to + 4 * PAGE, PAGE) == 0);
				MUST(mremap(to, 4 * PAGE, 4 * PAGE, flags, from) == from);
			} else {
				MUST(mremap(from + 4 * PAGE, 4 * PAGE, 4 * PAGE, flags, to) == to);
				MUST(munmap(from + 4 * PAGE, PART * PAGE) == 0);
				MUST(mremap(from, 4 * PAGE, 8 * PAGE, 0) == from);
				MUST(mremap(from + 4 * PAGE, 4 * PAGE, 4 * PAGE, flags, to + PART * PAGE) == to + PART * PAGE);
			}
		}
		for (size_t page = 0; page < pages; page += STEP) {
			const char *from = start + page * PAGE, *to = place + page * PAGE;
			if (way == 0) {
				check_zero(from, PART * PAGE, "left");
				check_zero(to, 4 * PAGE, "discarded before it was moved");
				check_moved(to + 4 * PAGE, page + 4, PART - 4);
			} else if (way == 1) {
				check_moved(from, page + PART, 4);
				check_moved(to + 5 * PAGE, page + 5, PART - 5);
				check_moved(from + (PART + 4) * PAGE, page + PART + 4, PART - 4);
			} else {
				check_moved(from, page, 4);
				check_moved(to, page + 4, 4);
				check_zero(to + PART * PAGE, 4 * PAGE, "what has grown");
				check_moved(from + (PART + 4) * PAGE, page + PART + 4, PART - 4);
			}
		}
		MUST(munmap(start, bytes) == 0 && munmap(place, bytes) == 0);
	}
}

/* Memory that is made smaller, and larger again by moves, and that children are to have. */
static void advised_and_grown(void)
{
	const size_t bytes = 128 * MiB;
	for (int round = 0; round < 4; round++) {
		char *m = map(bytes);
		fill(m, bytes, SEED);
		size_t len = bytes;
		for (; len > PAGE; len /= 2)
			MUST(mremap(m, len, len / 2, 0) == m);
		for (; len < bytes; len *= 2) {
			char *to = map(2 * len + PAGE);
			MUST(munmap(to, 2 * len + PAGE) == 0);
			char *grown = mremap(m, len, 2 * len, MREMAP_MAYMOVE | MREMAP_FIXED, to);
			if (grown == MAP_FAILED)
				bad("%zu bytes cannot grow: %m", len);
			m = mremap(grown, 2 * len, 2 * len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
			if (m == MAP_FAILED)
				bad("%zu bytes cannot move: %m", 2 * len);
			MUST(munmap(grown, 2 * len) == 0);
			if (mix(len + (size_t)round) % 2)
				MUST(madvise(m, 2 * len, MADV_DOFORK) == 0);
			check_zero(m + PAGE, 2 * len - PAGE, "what has grown");
		}
		check(m, PAGE, SEED, "the first page");
		MUST(munmap(m, bytes) == 0);
	}
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "several", several },
		{ "several-dontunmap", several_left_mapped },
		{ "several-in-place", several_in_place },
		{ "grown-and-moved", grown_and_moved }, { "grown-and-moved-beside", grown_and_moved_beside },
		{ "restless", restless }, { "restless-alone", restless_alone },
		{ "attached-over", attached_over },
		{ "by-one-thread", by_one_thread },
		{ "advised-and-grown", advised_and_grown },
	};
	return RUN_CASE(argc, argv, cases);
}
