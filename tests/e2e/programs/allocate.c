/* Threads that allocate, resize and free, each block checked whole whenever it is met again. Takes any malloc.
 *
 *     allocate SLOTS        slots of each of the four threads, 120000 take about 340 MiB
 */
#include "check.h"
#include <pthread.h>

enum { THREADS = 4 };
static unsigned slots_count;
struct slot {
	unsigned char *p;
	uint32_t n, tag;
};
static uint64_t sums[THREADS];

static void fill_block(struct slot *slot)
{
	for (uint32_t k = 0; k < slot->n; k++)
		slot->p[k] = (unsigned char)(slot->tag * 31 + k);
}

static void check_block(const struct slot *slot, uint32_t n)
{
	for (uint32_t k = 0; k < n; k++)
		if (slot->p[k] != (unsigned char)(slot->tag * 31 + k))
			bad("byte %u of a block of %u", k, slot->n);
}

static void *run(void *argument)
{
	uint64_t me = (uint64_t)(uintptr_t)argument, r = me * 7919 + 1, sum = 0;
	struct slot *slots = calloc(slots_count, sizeof *slots);
	MUST(slots);
	for (int step = 0; step < (int)slots_count * 4; step++) {
		r = mix(r + 1);
		struct slot *slot = &slots[r % slots_count];
		uint32_t n = 1 + ((r >> 24) % 100 ? (r >> 32) % 900 : (r >> 32) % 70000);
		unsigned what = r >> 20 & 15;
		if (slot->p)
			check_block(slot, slot->n);
		if (what < 4) {
			free(slot->p);
			*slot = (struct slot){ 0 };
		} else {
			if (what < 10 && slot->p) {
				uint32_t both = n < slot->n ? n : slot->n;
				slot->p = realloc(slot->p, n);
				MUST(slot->p);
				check_block(slot, both);
			} else {
				free(slot->p);
				if (what == 15)
					MUST(posix_memalign((void **)&slot->p, (size_t)64 << (r >> 16 & 7), n) == 0);
				else
					MUST((slot->p = malloc(n)));
			}
			slot->n = n;
			slot->tag = (uint32_t)(r >> 40);
			fill_block(slot);
		}
		sum = sum * 31 + slot->n + slot->tag;
	}
	for (int k = 0; k < (int)slots_count; k++) {
		check_block(&slots[k], slots[k].n);
		free(slots[k].p);
	}
	free(slots);
	sums[me] = sum;
	return NULL;
}

int main(int argc, char **argv)
{
	MUST(argc == 2 && (slots_count = (unsigned)atoi(argv[1])) > 0);
	pthread_t threads[THREADS];
	uint64_t sum = 0;
	for (uint64_t k = 0; k < THREADS; k++)
		MUST(pthread_create(&threads[k], NULL, run, (void *)k) == 0);
	for (int k = 0; k < THREADS; k++) {
		MUST(pthread_join(threads[k], NULL) == 0);
		sum = sum * 1000003 + sums[k];
	}
	printf("%016lx\n", (unsigned long)sum);
	return 0;
}
