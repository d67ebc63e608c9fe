/*
 * A library that is there before the agent: its handler runs in a forked child before any that is registered later, and
 * it starts a thread past everybody who might watch for new threads, as allocators do. What its system calls come to is told as
 * ever.
 */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>

#define SIZE (16 * MiB)
static char *memory;
/* For whoever looks for it. */
char *wiped;

static void in_child(void) { check(memory, SIZE, 77, "handler of a library in the child"); }

static void *sleeper(void *argument)
{
	pause();
	return argument;
}

__attribute__((constructor)) static void construct(void)
{
	errno = 0;
	MUST(syscall(SYS_close, -1) == -1 && errno == EBADF);
	wiped = map(16 * PAGE);
	MUST(madvise(wiped, 16 * PAGE, MADV_WIPEONFORK) == 0);
	memory = map(SIZE);
	fill(memory, SIZE, 77);
	MUST(pthread_atfork(NULL, NULL, in_child) == 0);
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
	pthread_t thread;
	for (int k = 0; k < 3; k++)
		MUST(create && create(&thread, NULL, sleeper, NULL) == 0);
}
