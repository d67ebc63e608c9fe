/* A library to be opened with RTLD_DEEPBIND: it finds libc's functions before those of libraries that were there before. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CONSTRUCTED ((size_t)160 << 20)

static void *constructed;

void *plugin_shared(size_t bytes)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

int plugin_advise(void *start, size_t bytes, int advice) { return madvise(start, bytes, advice); }
pid_t plugin_fork(void) { return fork(); }
void *plugin_constructed(void) { return constructed; }

/* Where a relocation of data, not of a call, has put the function. */
void *(*const plugin_mmap)(void *, size_t, int, int, int, off_t) = mmap;

__attribute__((constructor)) static void construct(void)
{
	if (getenv("DEEP_CONSTRUCTS"))
		constructed = plugin_shared(CONSTRUCTED);
}
