/*
 * Threads of one process that double, move and unmap mappings of shared memory at the same time, at addresses that they take from one
 * another, and fork meanwhile. Each owns some pages of each object, which it finds as it left them, whichever mapping shows them.
 */
#include "shared_memory.h"
#include <pthread.h>
#include <stdatomic.h>

#define OBJECTS 3
#define PAGES 2048
#define THREADS 4
#define OWN (PAGES / THREADS)
#define SHOWN 96
#define TURNS 300

static char *objects[OBJECTS];
/* How often a page was written to. */
static uint32_t versions[OBJECTS][PAGES];

struct worker {
	pthread_t thread;
	unsigned number;
	uint64_t chance;
	int forks;
	/* A mapping of some pages of an object. */
	char *shown;
	unsigned object, first;
};

static unsigned below(struct worker *w, unsigned limit)
{
	w->chance = w->chance * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(w->chance >> 33) % limit;
}

static uint64_t content(unsigned object, unsigned page)
{
	return (uint64_t)versions[object][page] << 32 | object << 24 | page;
}

/* One page of what is shown. */
static void use(struct worker *w, unsigned page)
{
	unsigned number = w->first + page;
	volatile uint64_t *word = (volatile uint64_t *)(w->shown + page * PAGE);
	if (*word != content(w->object, number))
		bad("page %u of object %u is %#zx instead of %#zx", number, w->object, (size_t)*word,
		    (size_t)content(w->object, number));
	if (below(w, 2)) {
		versions[w->object][number]++;
		*word = content(w->object, number);
	}
}

static void use_some(struct worker *w)
{
	for (unsigned k = 0; k < 24; k++)
		use(w, below(w, SHOWN));
}

/* Once more, where the kernel likes: often where another thread has just unmapped something. */
static void show(struct worker *w)
{
	w->object = below(w, OBJECTS);
	w->first = w->number * OWN + below(w, OWN - SHOWN);
	w->shown = mremap(objects[w->object] + w->first * PAGE, 0, SHOWN * PAGE, MREMAP_MAYMOVE);
	MUST(w->shown != MAP_FAILED);
}

static void move(struct worker *w)
{
	char *place = mmap(NULL, SHOWN * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(place != MAP_FAILED);
	MUST(mremap(w->shown, SHOWN * PAGE, SHOWN * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place);
	w->shown = place;
}

/* The child sees what there is, and what it writes its parent sees. */
static void fork_one(struct worker *w)
{
	pid_t child = fork();
	MUST(child >= 0);
	unsigned page = below(w, SHOWN);
	if (!child) {
		for (unsigned k = 0; k < SHOWN; k += 5)
			if (*(volatile uint64_t *)(w->shown + k * PAGE) != content(w->object, w->first + k))
				bad("a child's page %u of object %u", w->first + k, w->object);
		versions[w->object][w->first + page]++;
		*(volatile uint64_t *)(w->shown + page * PAGE) = content(w->object, w->first + page);
		_exit(0);
	}
	end_well(child);
	versions[w->object][w->first + page]++;
}

static void *work(void *argument)
{
	struct worker *w = argument;
	show(w);
	for (unsigned turn = 0; turn < TURNS; turn++) {
		use_some(w);
		switch (below(w, w->forks ? 5 : 4)) {
		case 0:
			move(w);
			break;
		case 1:
		case 2:
			munmap(w->shown, SHOWN * PAGE);
			show(w);
			break;
		case 3: {
			/* What is left of it is still there. */
			unsigned half = SHOWN / 2;
			munmap(w->shown + half * PAGE, half * PAGE);
			for (unsigned k = 0; k < half; k += 7)
				use(w, k);
			munmap(w->shown, half * PAGE);
			show(w);
			break;
		}
		default:
			fork_one(w);
		}
	}
	return NULL;
}

/* `early`: while it is still being found out who has what mapped. */
static void crowd(int forks, int early)
{
	static struct worker workers[THREADS];
	for (unsigned k = 0; k < OBJECTS; k++) {
		objects[k] = shared(PAGES * PAGE);
		for (unsigned page = 0; page < PAGES; page++)
			*(volatile uint64_t *)(objects[k] + page * PAGE) = content(k, page);
	}
	if (!early)
		wait_until_any_has_left(objects, OBJECTS, PAGES * PAGE);
	for (unsigned k = 0; k < THREADS; k++) {
		workers[k] = (struct worker){ .number = k, .chance = k + 1, .forks = forks };
		MUST(!pthread_create(&workers[k].thread, NULL, work, &workers[k]));
	}
	for (unsigned k = 0; k < THREADS; k++)
		MUST(!pthread_join(workers[k].thread, NULL));
	if (early)
		wait_until_any_has_left(objects, OBJECTS, PAGES * PAGE);
	for (unsigned k = 0; k < OBJECTS; k++)
		for (unsigned page = 0; page < PAGES; page++)
			if (*(volatile uint64_t *)(objects[k] + page * PAGE) != content(k, page))
				bad("in the end, page %u of object %u", page, k);
}

static void without_forks(void)
{
	crowd(0, 0);
}

static void from_the_first_moment(void)
{
	crowd(0, 1);
}

static void with_forks(void)
{
	crowd(1, 0);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = { { "threads", without_forks },
						  { "early", from_the_first_moment },
						  { "forks", with_forks } };
	return RUN_CASE(argc, argv, cases);
}
