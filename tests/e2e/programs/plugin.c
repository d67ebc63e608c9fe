/* A library to be loaded late: a large .bss, a thread-local block, a constructor. */
#include <stddef.h>
#include <stdint.h>

static unsigned char memory[64 * 1024 * 1024] __attribute__((aligned(4096)));
static __thread uint32_t local[8192];
static int constructed;

__attribute__((constructor)) static void construct(void) { constructed = 1; }

size_t plugin_size(void) { return sizeof memory; }
void *plugin_memory(void) { return constructed ? memory : NULL; }
uint64_t plugin_local_sum(void)
{
	uint64_t sum = 0;
	for (uint32_t k = 0; k < 8192; k++)
		local[k] = k;
	for (uint32_t k = 0; k < 8192; k++)
		sum += local[k];
	return sum;
}
