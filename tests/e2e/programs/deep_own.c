/* A library with an mmap of its own, for the sake of which it is opened with RTLD_DEEPBIND. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int calls;

void *mmap(void *start, size_t bytes, int protection, int flags, int fd, off_t offset)
{
	calls++;
	return (void *)syscall(SYS_mmap, start, bytes, protection, flags, fd, offset);
}

void *plugin_shared(size_t bytes)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

int own_calls(void) { return calls; }
