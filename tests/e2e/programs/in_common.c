/*
 * What a fork leaves in common.
 *
 *     in_common read MIB COUNT   a parent of MIB forks COUNT children, who read all of it several times, at the same time
 *     in_common write MIB COUNT  the same, and each child and the parent write to each page, at the same time
 *     in_common random MIB COUNT the same as read, each page of what hardly compresses, in no order, for five seconds
 *     in_common churn MIB COUNT  the same as read, by children that take memory and give it back all the time
 *     in_common more MIB COUNT   the same as read, while the parent works in as much memory again, which no child has
 *     in_common orphan MIB COUNT the same as more, but it is a child of each child's that works, after its parent has ended
 *     in_common leave MIB COUNT  COUNT processes of MIB, of which each forks the next and ends: that one reads what it has inherited, unmaps
 *                                it, and fills as much anew
 */
#include "check.h"

static size_t pages;
static uint64_t *memory;
/* Shared by all. */
static volatile int *is_done;

static uint64_t *at(size_t page) { return memory + page * WORDS; }

static uint64_t value(size_t page) { return mix(page) | 1; }

static void check_all(const char *who)
{
	for (size_t k = 0; k < pages; k++)
		if (*at(k) != value(k))
			bad("%s: page %zu is %lx", who, k, (unsigned long)*at(k));
}

static void write_all(uint64_t who)
{
	for (size_t k = 0; k < pages; k++)
		at(k)[7] += who;
}

static void written_by(uint64_t who)
{
	check_all("written");
	for (size_t k = 0; k < pages; k++)
		if (at(k)[7] != who)
			bad("page %zu was written to by %lu, not by %lu", k, (unsigned long)at(k)[7], (unsigned long)who);
}

/* 4 MiB for a moment, forty times. */
static void take_and_give_back(void)
{
	for (int round = 0; round < 40; round++) {
		size_t bytes = 4 * MiB;
		char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(p != MAP_FAILED);
		for (size_t k = 0; k < bytes; k += PAGE)
			p[k] = 1;
		MUST(munmap(p, bytes) == 0);
	}
}

/* In no order, many times. */
static void read_at_random(const uint64_t *p, size_t rounds, uint64_t seed)
{
	for (size_t n = 0; n < rounds * pages; n++) {
		size_t k = mix(seed + n) % pages;
		if (p[k * WORDS] != value(k))
			bad("page %zu is %lx", k, (unsigned long)p[k * WORDS]);
	}
}

/* What fill_in wrote, for five seconds. */
static void read_for_long(uint64_t seed)
{
	time_t end = time(NULL) + 5;
	for (uint64_t n = 0; n % 256 || time(NULL) < end; n++) {
		size_t k = mix(seed + n) % pages, w = n % (WORDS / 2);
		if (at(k)[w] != mix(k << 12 | w))
			bad("page %zu is %lx", k, (unsigned long)at(k)[w]);
	}
}

static void work_in_more(void)
{
	uint64_t *more = (uint64_t *)map(pages * PAGE);
	for (size_t k = 0; k < pages; k++)
		more[k * WORDS] = value(k);
	read_at_random(more, 40, 0);
	*is_done = 1;
}

static void child(const char *what, uint64_t number)
{
	if (strcmp(what, "write") == 0) {
		write_all(number);
		written_by(number);
		return;
	}
	if (strcmp(what, "random") == 0) {
		read_for_long(number << 56);
		return;
	}
	if (strcmp(what, "more") == 0) {
		for (uint64_t round = 1; !*is_done; round++) {
			read_at_random(memory, 1, number << 56 | round << 32);
			usleep(10000);
		}
		return;
	}
	if (strcmp(what, "orphan") == 0) {
		read_at_random(memory, 1, number << 56);
		pid_t self = getpid(), orphan = fork();
		MUST(orphan >= 0);
		if (orphan)
			_exit(0);
		while (getppid() == self)
			usleep(1000);
		work_in_more();
		return;
	}
	for (int round = 0; round < 3; round++) {
		check_all("child");
		if (strcmp(what, "churn") == 0)
			take_and_give_back();
	}
}

/* Half of it is not to be compressed. */
static void fill_in(uint64_t generation)
{
	for (size_t k = 0; k < pages; k++)
		for (size_t w = 0; w < WORDS / 2; w++)
			at(k)[w] = mix(generation << 40 | k << 12 | w);
}

static void check_generation(uint64_t generation)
{
	for (size_t k = 0; k < pages; k++)
		for (size_t w = 0; w < WORDS; w++)
			if (at(k)[w] != (w < WORDS / 2 ? mix(generation << 40 | k << 12 | w) : 0))
				bad("generation %lu: page %zu is %lx", (unsigned long)generation, k, (unsigned long)at(k)[w]);
}

/* Returns in the last of COUNT. */
static void leave_to_others(uint64_t count)
{
	for (uint64_t generation = 1;; generation++) {
		memory = (uint64_t *)map(pages * PAGE);
		fill_in(generation);
		check_generation(generation);
		if (generation == count)
			return;
		pid_t pid = fork();
		MUST(pid >= 0);
		if (pid)
			_exit(0);
		check_generation(generation);
		MUST(munmap(memory, pages * PAGE) == 0);
		/* As a daemon that waits for its first request. */
		sleep(3);
	}
}

/* The first process waits for the last without being the parent of it. */
static int leave(uint64_t count)
{
	int ends[2];
	MUST(pipe(ends) == 0);
	pid_t first = fork();
	MUST(first >= 0);
	if (first == 0) {
		close(ends[0]);
		leave_to_others(count);
		MUST(write(ends[1], "k", 1) == 1);
		_exit(0);
	}
	close(ends[1]);
	char last;
	MUST(read(ends[0], &last, 1) == 1 && last == 'k');
	int status;
	MUST(waitpid(first, &status, 0) == first && status == 0);
	puts("ok leave");
	return 0;
}

int main(int argc, char **argv)
{
	MUST(argc == 4);
	size_t count = strtoul(argv[3], NULL, 10);
	pages = strtoul(argv[2], NULL, 10) * MiB / PAGE;
	if (strcmp(argv[1], "leave") == 0)
		return leave(count);
	memory = (uint64_t *)map(pages * PAGE);
	is_done = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(is_done != MAP_FAILED);
	int is_random = strcmp(argv[1], "random") == 0;
	if (is_random)
		fill_in(0);
	for (size_t k = 0; k < pages && !is_random; k++)
		*at(k) = value(k);
	pid_t pids[64];
	MUST(count <= 64);
	for (size_t k = 0; k < count; k++) {
		pids[k] = fork();
		MUST(pids[k] >= 0);
		if (pids[k] == 0) {
			child(argv[1], k + 1);
			_exit(0);
		}
	}
	if (strcmp(argv[1], "write") == 0) {
		write_all(1000);
		written_by(1000);
	}
	if (strcmp(argv[1], "more") == 0)
		work_in_more();
	while (strcmp(argv[1], "orphan") == 0 && !*is_done)
		usleep(10000);
	for (size_t k = 0; k < count; k++) {
		int status;
		MUST(waitpid(pids[k], &status, 0) == pids[k]);
		if (status)
			bad("child %zu ended with %x", k, status);
	}
	if (is_random)
		check_generation(0);
	else
		check_all("parent");
	printf("ok %s\n", argv[1]);
	return 0;
}
