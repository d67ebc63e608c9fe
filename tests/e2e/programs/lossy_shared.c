/*
 * Shared memory on a store that fails, or has no space.
 *
 *     lossy_shared MIB PROCESSES
 *
 * A parent fills it with what does not compress; its children read all of it, at once and each from another place on, and give each page
 * that they can read a second content, under a lock of its own. What one of them has lost, all have lost, for ever; all the rest is right.
 * Prints how many pages are lost.
 */
#include "check.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static char *volatile faulted;
static char *memory;
static size_t pages;

static void on_bus(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	faulted = info->si_addr;
	siglongjmp(back, 1);
}

/* Its first word says how often a page has been written; `add` is to be added, and it is to be `all` if that is not 0. */
static void look(size_t k, char *gone, char *lock, uint64_t add, uint64_t all)
{
	uint64_t *words = (uint64_t *)(memory + k * PAGE);
	while (__atomic_exchange_n(lock + k, 1, __ATOMIC_ACQUIRE))
		usleep(100);
	if (sigsetjmp(back, 1)) {
		if (((uintptr_t)faulted & ~(PAGE - 1)) != (uintptr_t)words)
			bad("SIGBUS at %p while page %zu at %p was touched", (void *)faulted, k, (void *)words);
		gone[k] = 1;
	} else {
		uint64_t round = *(volatile uint64_t *)words;
		if (gone[k])
			bad("page %zu was lost, and is there again", k);
		if (all && round != all)
			bad("page %zu was written %zu times", k, (size_t)round);
		for (size_t w = 1; w < WORDS; w++)
			if (words[w] != mix(k * WORDS + w + round))
				bad("word %zu of page %zu is wrong", w, k);
		for (size_t w = 1; add && w < WORDS; w++)
			words[w] = mix(k * WORDS + w + round + add);
		words[0] = round + add;
	}
	__atomic_store_n(lock + k, 0, __ATOMIC_RELEASE);
}

/* Until it is swapped, for three seconds at most: on a busy machine all would be over before. Where nothing can leave, nothing does. */
static void wait_until_some_has_left(void)
{
	for (double begun = now(); swaps() && pages_out(memory, pages * PAGE) == 0 && now() - begun < 3;)
		sleep_ms(10);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	pages = strtoul(argv[1], NULL, 10) * MiB / PAGE;
	size_t processes = strtoul(argv[2], NULL, 10), lost = 0;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	/* Too little to be swapped. */
	char *gone = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char *lock = mmap(NULL, pages, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED && gone != MAP_FAILED && lock != MAP_FAILED && pages < MiB);
	struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER };
	MUST(sigaction(SIGBUS, &action, NULL) == 0);
	for (size_t k = 0; k < pages; k++)
		for (size_t w = 1; w < WORDS; w++)
			((uint64_t *)(memory + k * PAGE))[w] = mix(k * WORDS + w);
	wait_until_some_has_left();
	for (size_t child = 0; child < processes; child++)
		if (fork() == 0) {
			for (size_t n = 0; n < pages; n++)
				look((n + child * pages / processes) % pages, gone, lock, 1, 0);
			_exit(0);
		}
	for (size_t child = 0; child < processes; child++) {
		int status;
		MUST(wait(&status) > 0);
		if (status)
			bad("a child ended with %#x", status);
	}
	for (size_t k = 0; k < pages; k++) {
		look(k, gone, lock, 0, processes);
		lost += gone[k];
	}
	printf("lost %zu\n", lost);
	return 0;
}
