/*
 * Memory on a store that fails.
 *
 *     lossy MIB ROUNDS die      SIGBUS ends the program
 *     lossy MIB ROUNDS catch    SIGBUS is caught; all pages but the lost ones must be right; prints how many were lost
 *
 * Content does not compress, so that it must go to the swap area.
 */
#include "check.h"
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf back;
static char *volatile faulted;
static void on_bus(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	faulted = info->si_addr;
	siglongjmp(back, 1);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	size_t pages = strtoul(argv[1], NULL, 10) * MiB / PAGE;
	uint64_t rounds = strtoul(argv[2], NULL, 10);
	static unsigned lost;
	volatile size_t k = 0;
	char *p = map(pages * PAGE);
	unsigned char *gone = calloc(pages, 1);
	if (!strcmp(argv[3], "catch")) {
		struct sigaction action = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER };
		MUST(sigaction(SIGBUS, &action, NULL) == 0);
	}
	/* The list of lost pages must not be lost itself. */
	if (mlock(gone, pages) && errno != ENOMEM && errno != EPERM)
		bad("mlock: %s", strerror(errno));
	for (volatile uint64_t round = 0; round < rounds; round++) {
		for (k = 0; k < pages; k++) {
			uint64_t *words = (uint64_t *)(p + k * PAGE);
			if (sigsetjmp(back, 1)) {
				/* Only the page that was touched may be the lost one; it stays lost until replaced. */
				if (((uintptr_t)faulted & ~(PAGE - 1)) != (uintptr_t)(p + k * PAGE))
					bad("SIGBUS at %p while page %zu at %p was touched", (void *)faulted, k,
					    (void *)(p + k * PAGE));
				lost++;
				gone[k] = 1;
				MUST(mmap(p + k * PAGE, PAGE, PROT_READ | PROT_WRITE,
					  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p + k * PAGE);
			}
			if (round && !gone[k])
				check_random(words, round - 1, k);
			fill_random(words, round, k);
			gone[k] = 0;
		}
	}
	printf("lost %u\n", lost);
	return 0;
}
