/*
 * Memory that lies on swap areas in no order, and comes back while the program works.
 *
 *     returns MIB alone     one process
 *     returns MIB family    the same with two children that were forked when most of it was swapped out
 *     returns MIB heir      one process that was forked when most of it was swapped out, by one that has ended since, and does nothing
 *     returns MIB heir-and-more  the same, and the first process has half as much of its own
 *     returns MIB pieces    one process whose memory is of many mappings side by side, of five pages each
 *
 * Pages are written in a random order, and in that of their addresses where they are in pieces. Then, until there is a file `stop`, pages at random are checked and written
 * anew; a file `sleep` makes the processes pause for as long as it is there. At the end each checks all of its memory.
 */
#include "check.h"

static void work(char *p, size_t pages, unsigned char *seeds, uint64_t chance)
{
	while (access("stop", F_OK)) {
		if (!access("sleep", F_OK)) {
			usleep(2000);
			continue;
		}
		for (int i = 0; i < 20; i++) {
			chance = mix(chance + 1);
			size_t k = chance % pages;
			uint64_t *words = (uint64_t *)(p + k * PAGE);
			check_random(words, seeds[k], k);
			if (chance >> 60 < 4)
				fill_random(words, ++seeds[k], k);
		}
	}
	for (size_t k = 0; k < pages; k++)
		check_random((uint64_t *)(p + k * PAGE), seeds[k], k);
}

/* In a child of its own: fills the memory, forks who has it after that, and ends. */
static void leave_to_heir(char *p, size_t pages, int done)
{
	for (size_t k = 0; k < pages; k++)
		fill_random((uint64_t *)(p + k * PAGE), 0, k);
	pid_t heir = fork();
	MUST(heir >= 0);
	if (heir)
		_exit(0);
	while (access("stop", F_OK))
		usleep(2000);
	for (size_t k = 0; k < pages; k++)
		check_random((uint64_t *)(p + k * PAGE), 0, k);
	MUST(write(done, "!", 1) == 1);
	_exit(0);
}

static int heir(char *p, size_t pages, size_t more)
{
	int done[2];
	MUST(!pipe(done));
	pid_t pid = fork();
	MUST(pid >= 0);
	if (!pid)
		leave_to_heir(p, pages, done[1]);
	close(done[1]);
	must_succeed(pid, "who fills");
	char *own = map((more + 1) * PAGE);
	for (size_t k = 0; k < more; k++)
		fill_random((uint64_t *)(own + k * PAGE), 1, k);
	puts("ready");
	fflush(stdout);
	char byte;
	MUST(read(done[0], &byte, 1) == 1 && read(done[0], &byte, 1) == 0);
	for (size_t k = 0; k < more; k++)
		check_random((uint64_t *)(own + k * PAGE), 1, k);
	/* For what is done when it has ended. */
	usleep(500000);
	puts("ok");
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	size_t pages = strtoul(argv[1], NULL, 10) * MiB / PAGE;
	char *p = map(pages * PAGE);
	if (!strncmp(argv[2], "heir", 4))
		return heir(p, pages, strcmp(argv[2], "heir") ? pages / 2 : 0);
	unsigned char *seeds = calloc(pages, 1);
	MUST(seeds);
	int in_pieces = !strcmp(argv[2], "pieces");
	for (size_t k = 0; k < pages; k++) {
		/* The prime divides no number of pages that is used here: each page once. */
		size_t page = in_pieces ? k : k * 7919 % pages;
		fill_random((uint64_t *)(p + page * PAGE), 0, page);
	}
	if (in_pieces)
		for (size_t k = 0; k + 5 <= pages; k += 10)
			MUST(!madvise(p + k * PAGE, 5 * PAGE, MADV_DONTDUMP));
	int children = strcmp(argv[2], "family") ? 0 : 2;
	pid_t pids[2];
	for (int child = 0; child < children; child++) {
		pids[child] = fork();
		MUST(pids[child] >= 0);
		if (pids[child] == 0) {
			work(p, pages, seeds, (uint64_t)child + 100);
			_exit(0);
		}
	}
	puts("ready");
	fflush(stdout);
	work(p, pages, seeds, 1);
	for (int child = 0; child < children; child++)
		must_succeed(pids[child], "a child");
	puts("ok");
	return 0;
}
