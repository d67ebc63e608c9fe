/*
 * Robust mutexes in shared memory that is swapped, and their owners are killed: `robust_shared ROUNDS KIND`, KIND plain or lending (of priority).
 *
 * Each round has four processes that take one of 40 mutexes at random, each in a page of its own, and read pages that have left while
 * they hold it. One of them is killed while the others go on. What a mutex guards are two numbers that are equal.
 */
#include "check.h"
#include <pthread.h>
#include <signal.h>

enum { PAGES = 16000, MUTEXES = 40, APART = PAGES / MUTEXES, PROCESSES = 4, TURNS = 60, READS = 30 };

struct guarded {
	pthread_mutex_t mutex;
	long first, second;
};

static char *memory;
/* In memory that is not large enough to be swapped. */
static volatile long *owners_died;

static struct guarded *guarded(long number) { return (struct guarded *)(memory + (size_t)number * APART * PAGE); }

static void lock(struct guarded *it)
{
	int error = pthread_mutex_lock(&it->mutex);
	if (error == EOWNERDEAD) {
		__atomic_add_fetch(owners_died, 1, __ATOMIC_RELAXED);
		it->second = it->first;
		MUST(pthread_mutex_consistent(&it->mutex) == 0);
	} else if (error) {
		bad("lock: %s", strerror(error));
	}
	if (it->first != it->second)
		bad("torn: %ld, %ld", it->first, it->second);
}

__attribute__((noreturn)) static void work(unsigned seed, int for_ever)
{
	srand(seed);
	for (int turn = 0; turn < TURNS || for_ever; turn++) {
		long number = rand() % MUTEXES;
		struct guarded *it = guarded(number);
		lock(it);
		it->first++;
		for (int k = 0; k < (for_ever ? READS : 3); k++) {
			size_t page = (size_t)number * APART + 1 + (size_t)(rand() % (APART - 1));
			check_pages(memory, page, page + 1, 1, "beside");
		}
		it->second = it->first;
		MUST(pthread_mutex_unlock(&it->mutex) == 0);
	}
	_exit(0);
}

static void round_of(int number)
{
	pid_t children[PROCESSES];
	for (int k = 0; k < PROCESSES; k++) {
		children[k] = fork();
		MUST(children[k] >= 0);
		if (!children[k])
			work((unsigned)(number * PROCESSES + k), k == 0);
	}
	usleep(20000 + (unsigned)rand() % 60000);
	kill(children[0], SIGKILL);
	for (int k = 0; k < PROCESSES; k++) {
		int status = 0;
		double begun = now();
		while (waitpid(children[k], &status, WNOHANG) == 0) {
			if (now() - begun > 30)
				bad("round %d: process %d waits for a mutex whose owner was killed", number, k);
			usleep(5000);
		}
		if (k > 0 && status)
			bad("round %d: process %d ended with %#x", number, k, status);
	}
}

int main(int argc, char **argv)
{
	MUST(argc == 3);
	memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	owners_died = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED && owners_died != MAP_FAILED);
	fill(memory, PAGES * PAGE, 1);
	pthread_mutexattr_t attributes;
	MUST(pthread_mutexattr_init(&attributes) == 0);
	MUST(pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
	MUST(pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0);
	if (!strcmp(argv[2], "lending"))
		MUST(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
	for (long k = 0; k < MUTEXES; k++) {
		memset(guarded(k), 0, PAGE);
		MUST(pthread_mutex_init(&guarded(k)->mutex, &attributes) == 0);
	}
	for (int round = 0; round < atoi(argv[1]); round++)
		round_of(round);
	for (size_t page = 0; page < PAGES; page++)
		if (page % APART)
			check_pages(memory, page, page + 1, 1, "at the end");
	printf("%s\n", *owners_died > 0 ? "ok" : "nobody was killed while he held one");
	return 0;
}
