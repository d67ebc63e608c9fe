/*
 * A library that needs another one, and opens one more that only its own RUNPATH leads to: the loader looks at who has called dlopen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

void *plugin_shared(size_t bytes);

static void *opened;

void *caller_shared(size_t bytes) { return plugin_shared(bytes); }

/* Not the last that it does: that would be a jump, and its caller the loader's caller. */
void *caller_open(const char *name, int mode)
{
	void *volatile library = dlopen(name, mode);
	return library;
}

void *caller_open_in(const char *name, int mode)
{
	void *volatile library = dlmopen(LM_ID_BASE, name, mode);
	return library;
}

void *caller_opened(void) { return opened; }

__attribute__((constructor)) static void construct(void)
{
	if (getenv("DEEP_CALLS"))
		opened = dlopen("deep_found.so", RTLD_NOW | RTLD_DEEPBIND);
}
