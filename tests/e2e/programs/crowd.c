/*
 * Processes that need more than their budget has room for.
 *
 *     crowd children MIB COUNT   a parent of MIB forks COUNT children at once, each reads and writes 300 pages of it
 *     crowd shared MIB ROUNDS    four processes share MIB, each works in 4 MiB of its own as well, and rests at the end
 *     crowd threads MIB COUNT    COUNT threads fill MIB together as fast as they can
 *     crowd holds MIB MS         fills MIB and holds it for so long
 *     crowd stay MIB COUNT       a parent of MIB forks COUNT children, who stay until all have been forked; each works or is killed
 *     crowd sleeper MIB COUNT    one has MIB and sleeps while another fills as much and reads it COUNT times
 */
#include "check.h"
#include <pthread.h>
#include <signal.h>

static size_t pages;
static uint64_t *memory;

static uint64_t *at(uint64_t *p, size_t page) { return p + page * WORDS; }

static uint64_t value(size_t page) { return mix(page) | 1; }

static void write_all(uint64_t *p, size_t count)
{
	for (size_t k = 0; k < count; k++)
		*at(p, k) = value(k);
}

static void ended_well(pid_t pid)
{
	int status;
	MUST(waitpid(pid, &status, 0) == pid);
	if (status)
		bad("child %d ended with %x", (int)pid, status);
}

static int child(size_t number)
{
	uint64_t random = number + 1;
	for (int k = 0; k < 300; k++) {
		random = mix(random + (uint64_t)k);
		size_t page = random % pages;
		if (*at(memory, page) != value(page))
			bad("child %zu: page %zu is %lx", number, page, (unsigned long)*at(memory, page));
		at(memory, page)[100] += number;
	}
	return 0;
}

static void children(size_t count)
{
	pid_t pids[1024];
	write_all(memory, pages);
	for (size_t k = 0; k < count; k++) {
		pids[k] = fork();
		MUST(pids[k] >= 0);
		if (pids[k] == 0)
			_exit(child(k));
	}
	for (size_t k = 0; k < count; k++)
		ended_well(pids[k]);
	for (size_t k = 0; k < pages; k++)
		if (*at(memory, k) != value(k) || at(memory, k)[100])
			bad("page %zu of the parent has changed", k);
}

static int sharer(size_t number, size_t rounds)
{
	enum { OWN = 1024 };
	uint64_t *own = (uint64_t *)map(OWN * PAGE);
	uint64_t random = number + 1;
	for (size_t k = number; k < pages; k += 4)
		*at(memory, k) = value(k);
	write_all(own, OWN);
	for (size_t k = 0; k < rounds; k++) {
		random = mix(random + k);
		__atomic_fetch_add(&at(memory, random % pages)[200], 1, __ATOMIC_RELAXED);
		uint64_t *page = at(own, random / pages % OWN);
		if (*page != value(random / pages % OWN))
			bad("sharer %zu: an own page is %lx", number, (unsigned long)*page);
		page[7]++;
	}
	// Each asks about once a second who else has what it has: all stay until all know.
	usleep(1500 * 1000);
	return 0;
}

static void shared(size_t rounds)
{
	pid_t pids[4];
	uint64_t sum = 0;
	for (size_t k = 0; k < 4; k++) {
		pids[k] = fork();
		MUST(pids[k] >= 0);
		if (pids[k] == 0)
			_exit(sharer(k, rounds));
	}
	for (size_t k = 0; k < 4; k++)
		ended_well(pids[k]);
	for (size_t k = 0; k < pages; k++) {
		if (*at(memory, k) != value(k))
			bad("shared page %zu is %lx", k, (unsigned long)*at(memory, k));
		sum += at(memory, k)[200];
	}
	if (sum != 4 * rounds)
		bad("%lu additions of %zu", (unsigned long)sum, 4 * rounds);
}

static size_t part;

static void *fill_part(void *p)
{
	memset(p, 42, part * PAGE);
	return NULL;
}

static void threads(size_t count)
{
	pthread_t ids[64];
	part = pages / count;
	for (size_t k = 0; k < count; k++)
		MUST(pthread_create(&ids[k], NULL, fill_part, at(memory, k * part)) == 0);
	for (size_t k = 0; k < count; k++)
		MUST(pthread_join(ids[k], NULL) == 0);
	for (size_t k = 0; k < count * part; k++)
		if (at(memory, k)[k % WORDS] != 0x2a2a2a2a2a2a2a2a)
			bad("page %zu", k);
}

static const double PATIENCE = 40;

/* All of them at a time, and none may wait for ever, be it inside of fork. */
static void stay(size_t count)
{
	pid_t pids[1024];
	int gate[2], status;
	char nothing;
	size_t killed = 0;
	write_all(memory, pages);
	MUST(pipe(gate) == 0);
	for (size_t k = 0; k < count; k++) {
		pids[k] = fork();
		MUST(pids[k] >= 0);
		if (pids[k] == 0) {
			close(gate[1]);
			MUST(read(gate[0], &nothing, 1) == 0);
			_exit(child(k));
		}
	}
	sleep_ms(1000);
	close(gate[1]);
	double from = now();
	for (size_t k = 0; k < count; k++) {
		pid_t ended;
		while ((ended = waitpid(pids[k], &status, WNOHANG)) == 0 && now() - from < PATIENCE)
			sleep_ms(10);
		if (ended != pids[k])
			bad("child %zu has not ended", k);
		if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
			bad("child %zu ended with %x", k, status);
		killed += status != 0;
	}
	printf("%zu killed\n", killed);
}

/* Half of each page does not compress. */
static void fill_half(uint64_t *p, size_t page, size_t seed)
{
	for (size_t word = 0; word < WORDS / 2; word++)
		at(p, page)[word] = mix(seed << 40 | page << 10 | word);
}

static void fill_by_halves(uint64_t *p, size_t seed)
{
	for (size_t k = 0; k < pages; k++)
		fill_half(p, k, seed);
}

static void check_half(uint64_t *p, size_t page, size_t seed)
{
	if (at(p, page)[7] != mix(seed << 40 | page << 10 | 7))
		bad("page %zu of %zu is %lx", page, seed, (unsigned long)at(p, page)[7]);
}

static void check_halves(uint64_t *p, size_t seed)
{
	for (size_t k = 0; k < pages; k++)
		check_half(p, k, seed);
}

static void sleeper(size_t count)
{
	pid_t worker = fork();
	MUST(worker >= 0);
	uint64_t *own = (uint64_t *)map(pages * PAGE);
	if (worker == 0) {
		/* When the other one sleeps. */
		sleep_ms(1500);
		fill_by_halves(own, 2);
		for (size_t k = 0; k < count; k++)
			check_halves(own, 2);
		_exit(0);
	}
	fill_by_halves(own, 1);
	ended_well(worker);
	check_halves(own, 1);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	size_t count = strtoul(argv[3], NULL, 10);
	pages = strtoul(argv[2], NULL, 10) * MiB / PAGE;
	int kind = strcmp(argv[1], "shared") ? MAP_PRIVATE : MAP_SHARED;
	memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED);
	if (strcmp(argv[1], "children") == 0)
		children(count);
	else if (strcmp(argv[1], "shared") == 0)
		shared(count);
	else if (strcmp(argv[1], "threads") == 0)
		threads(count);
	else if (strcmp(argv[1], "stay") == 0)
		stay(count);
	else if (strcmp(argv[1], "sleeper") == 0)
		sleeper(count);
	else {
		write_all(memory, pages);
		sleep_ms((long)count);
	}
	printf("ok %s\n", argv[1]);
	return 0;
}
