/* Anonymous shared memory that is swapped behaves as it does in memory: each case presses all of it out, and looks at it again. */
#include "shared_memory.h"
#include <sys/uio.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/syscall.h>

static void moves(void)
{
	char *m = filled(LEN, 1), *room = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	press();
	check_all(m, 0, LEN, 1);
	press();
	MUST(mremap(m, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
	m = room;
	check_all(m, 0, LEN, 1);
	MUST(mremap(m, LEN, LEN / 2, 0) == m);
	press();
	MUST((m = mremap(m, LEN / 2, LEN, MREMAP_MAYMOVE)) != MAP_FAILED);
	press();
	check_all(m, 0, LEN, 1);
	/* Another mapping of the same memory. */
	char *alias = mremap(m, 0, LEN, MREMAP_MAYMOVE);
	MUST(alias != MAP_FAILED && alias != m);
	press();
	check_all(alias, 0, LEN, 1);
	write_all(alias, 0, LEN, 2);
	press();
	check_all(m, 0, LEN, 2);
	munmap(m, LEN);
	press();
	check_all(alias, 0, LEN, 2);
	munmap(alias + LEN / 4, LEN / 4);
	press();
	check_all(alias, 0, LEN / 4, 2);
	check_all(alias + LEN / 2, LEN / 2, LEN, 2);
}

static void advice(void)
{
	char *m = filled(LEN, 3);
	press();
	MUST(mprotect(m, LEN, PROT_READ) == 0);
	check_all(m, 0, LEN, 3);
	MUST(mprotect(m, LEN, PROT_NONE) == 0);
	press();
	MUST(mprotect(m, LEN, PROT_READ | PROT_WRITE) == 0);
	check_all(m, 0, LEN, 3);
	press();
	MUST(madvise(m, LEN, MADV_DONTNEED) == 0);
	check_all(m, 0, LEN, 3);
	MUST(msync(m, LEN, MS_SYNC) == 0);
	press();
	MUST(mlock(m, MiB) == 0);
	press();
	check_all(m, 0, MiB, 3);
	MUST(munlock(m, MiB) == 0);
	press();
	MUST(madvise(m, LEN / 2, MADV_REMOVE) == 0);
	for (size_t at = 0; at < LEN / 2; at += PAGE)
		MUST(AT(m, at) == 0);
	press();
	for (size_t at = 0; at < LEN / 2; at += PAGE)
		MUST(AT(m, at) == 0);
	check_all(m + LEN / 2, LEN / 2, LEN, 3);
	/* Where it may not be written to at this moment, too. */
	const int ways[] = { PROT_READ, PROT_NONE };
	for (int way = 0; way < 2; way++) {
		write_all(m, 0, LEN, 3);
		press();
		MUST(mprotect(m, LEN / 2, ways[way]) == 0);
		MUST(madvise(m, LEN / 2, MADV_REMOVE) == 0);
		MUST(mprotect(m, LEN / 2, PROT_READ | PROT_WRITE) == 0);
		for (size_t at = 0; at < LEN / 2; at += PAGE)
			MUST(AT(m, at) == 0);
		check_all(m + LEN / 2, LEN / 2, LEN, 3);
	}
	/* And beyond its end. */
	char *longer = mremap(m, LEN, LEN + MiB, MREMAP_MAYMOVE);
	MUST(longer != MAP_FAILED);
	MUST(madvise(longer, LEN + MiB, MADV_REMOVE) == 0);
	for (size_t at = 0; at < LEN; at += PAGE)
		MUST(AT(longer, at) == 0);
}

/* The kernel makes huge pages where it may, of which parts are to leave. */
static void huge(void)
{
	size_t len = 60 * MiB;
	char *asked = shared(len), *m = shared(len);
	MUST(madvise(asked, len, MADV_HUGEPAGE) == 0 || errno == EINVAL);
	for (uint64_t round = 0; round < 3; round++) {
		write_all(m, 0, len, round);
		write_all(asked, 0, len, 10 + round);
		press();
		check_all(m, 0, len, round);
		check_all(asked, 0, len, 10 + round);
	}
}

/* Several mappings before it is known; of each some has to leave, as neither half and what fits make up the whole. */
static void parted(void)
{
	size_t len = 120 * MiB, middle = len / 2;
	char *m = shared(len);
	MUST(mprotect(m + middle, PAGE, PROT_READ) == 0);
	write_all(m, 0, middle, 1);
	write_all(m + middle + PAGE, middle + PAGE, len, 1);
	wait_until_some_has_left(m, middle);
	wait_until_some_has_left(m + middle + PAGE, len - middle - PAGE);
	check_all(m, 0, middle, 1);
	check_all(m + middle + PAGE, middle + PAGE, len, 1);
	MUST(AT(m, middle) == 0);
}

/* The file that is mapped at an address, as root can open it; of this process or of another. */
static int mapped_file(pid_t of, const void *at)
{
	char name[64], line[512];
	snprintf(name, sizeof name, "/proc/%d/maps", of);
	FILE *maps = fopen(name, "r");
	MUST(maps);
	unsigned long start = 0, end = 0;
	while (fgets(line, sizeof line, maps) && sscanf(line, "%lx-%lx", &start, &end) == 2)
		if (start <= (unsigned long)at && (unsigned long)at < end)
			break;
	fclose(maps);
	snprintf(name, sizeof name, "/proc/%d/map_files/%lx-%lx", of, start, end);
	int file = open(name, O_RDWR | O_CLOEXEC);
	MUST(file >= 0);
	return file;
}

/* What some of has left is mapped once more: by the process itself, and by number by a child that has none of it. */
static void opened(void)
{
	for (int by_child = 0; by_child < 2; by_child++) {
		char *m = filled(LEN, 1);
		wait_until_some_has_left(m, LEN);
		pid_t self = getpid(), child = by_child ? fork() : 0;
		MUST(child >= 0);
		if (child) {
			end_well(child);
		} else {
			int file = mapped_file(self, m);
			if (by_child)
				MUST(munmap(m, LEN) == 0);
			int writes = PROT_READ | PROT_WRITE;
			char *again = by_child ? (char *)syscall(SYS_mmap, NULL, LEN, writes, MAP_SHARED, file, 0)
					       : mmap(NULL, LEN, writes, MAP_SHARED, file, 0);
			MUST(again != MAP_FAILED);
			check_all(again, 0, LEN, 1);
			write_all(again, 0, LEN / 2, 2);
			press();
			check_all(again, 0, LEN / 2, 2);
			if (by_child)
				_exit(0);
			MUST(munmap(again, LEN) == 0 && close(file) == 0);
		}
		check_all(m, 0, LEN / 2, 2);
		check_all(m + LEN / 2, LEN / 2, LEN, 1);
		MUST(munmap(m, LEN) == 0);
	}
}

/* A child that is forked in the moment in which the server comes: its mapping is known as its parent's is. */
static void forked_at_once(void)
{
	size_t len = 16 * MiB;
	int ends[2];
	MUST(pipe(ends) == 0);
	char *own = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(own != MAP_FAILED);
	memset(own, 1, len);
	char *m = filled(len, 1), any;
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		close(ends[1]);
		MUST(read(ends[0], &any, 1) == 0);
		check_all(m, 0, len, 1);
		_exit(0);
	}
	sleep_ms(300);
	press();
	wait_until_some_has_left(m, len);
	MUST(close(ends[1]) == 0);
	end_well(child);
	check_all(m, 0, len, 1);
}

/* A part shows other pages of the same memory from now on, by libc's function and by number. */
static void reordered(void)
{
	size_t part = LEN / 4, from = LEN / 2;
	for (int by_number = 0; by_number < 2; by_number++) {
		char *m = filled(LEN, 1);
		wait_until_some_has_left(m, LEN);
		MUST((by_number ? syscall(SYS_remap_file_pages, m, part, 0, from / PAGE, 0)
				: remap_file_pages(m, part, 0, from / PAGE, 0)) == 0);
		for (size_t at = 0; at < part; at += PAGE)
			if (AT(m, at) != AT(m, from + at))
				bad("page %zu shows another than page %zu", at / PAGE, (from + at) / PAGE);
		check_all(m + part, part, LEN, 1);
		write_all(m, from, from + part, 2);
		press();
		check_all(m + from, from, from + part, 2);
		MUST(munmap(m, LEN) == 0);
	}
}

/* Files that are opened for direct I/O by number: by open, openat, openat2 and fcntl. */
static int open_directly(int way, const char *path)
{
	struct { uint64_t flags, mode, resolve; } how = { O_RDONLY | O_DIRECT, 0, 0 };
	switch (way) {
	case 0:
		return (int)syscall(SYS_open, path, O_RDONLY | O_DIRECT);
	case 1:
		return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECT);
	case 2:
		return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
	}
	int file = open(path, O_RDONLY);
	MUST(file >= 0 && syscall(SYS_fcntl, file, F_SETFL, O_DIRECT) == 0);
	return file;
}

static void direct(void)
{
	enum { READERS = 4, PAGES_AT_ONCE = 8 };
	size_t part = 30 * MiB;
	char path[] = "direct-XXXXXX", *m = filled(READERS * part, 1);
	int file = mkstemp(path);
	MUST(file >= 0);
	for (size_t at = 0; at < MiB; at += sizeof(uint64_t)) {
		uint64_t word = at | 1;
		MUST(pwrite(file, &word, sizeof word, (off_t)at) == sizeof word);
	}
	MUST(fsync(file) == 0);
	pid_t readers[READERS];
	for (int reader = 0; reader < READERS; reader++) {
		readers[reader] = forked();
		if (readers[reader])
			continue;
		int fd = open_directly(reader, path);
		MUST(fd >= 0);
		char *own = m + (size_t)reader * part;
		uint64_t random = (uint64_t)reader + 1;
		for (double begun = now(); now() - begun < 2;) {
			size_t page = (random = mix(random)) % (part / PAGE - PAGES_AT_ONCE), from = mix(random) % (MiB / PAGE - PAGES_AT_ONCE);
			char *to = own + page * PAGE;
			if (pread(fd, to, PAGES_AT_ONCE * PAGE, (off_t)(from * PAGE)) != PAGES_AT_ONCE * PAGE)
				bad("cannot read: %m");
			for (size_t at = 0; at < PAGES_AT_ONCE * PAGE; at += sizeof(uint64_t))
				if (AT(to, at) != ((from * PAGE + at) | 1))
					bad("word %zu is %zu instead of %zu", at, (size_t)AT(to, at), (from * PAGE + at) | 1);
		}
		_exit(0);
	}
	for (int reader = 0; reader < READERS; reader++)
		end_well(readers[reader]);
	unlink(path);
}

/* The kernel writes to pages that it has looked up before: none may leave from then on. */
static void written_by_the_kernel(void)
{
	char *m = filled(LEN, 1);
	wait_until_some_has_left(m, LEN);
	uint64_t word = 7;
	struct iovec here = { &word, sizeof word }, there = { m + 8, sizeof word };
	MUST(process_vm_writev(getpid(), &here, 1, &there, 1, 0) == sizeof word);
	check_all(m, 0, LEN, 1);
	char *more = filled(LEN, 2);
	for (int round = 0; round < 20; round++, sleep_ms(20))
		check_all(more, 0, LEN, 2);
	if (swaps() && pages_out(m, LEN) + pages_out(more, LEN) > 0)
		bad("%zu pages have left", pages_out(m, LEN) + pages_out(more, LEN));
	MUST(AT(m, 8) == 7);
}

static void forks(void)
{
	char *m = filled(LEN, 4);
	for (int round = 0; round < 20; round++) {
		pid_t child = forked();
		if (!child) {
			check_all(m, 0, LEN / 2, 4);
			write_all(m + LEN / 2, LEN / 2, LEN, 4 + (uint64_t)round);
			_exit(0);
		}
		end_well(child);
		if (round % 4 == 0)
			press();
		check_all(m, 0, LEN / 2, 4);
		check_all(m + LEN / 2, LEN / 2, LEN, 4 + (uint64_t)round);
	}
	pid_t child = forked();
	if (!child)
		execlp("true", "true", NULL);
	end_well(child);
	press();
	check_all(m, 0, LEN / 2, 4);
}

/* Many that are given up at once, at the same place. */
static void many(void)
{
	char *m = filled(LEN, 5);
	for (uint64_t round = 0; round < 200; round++) {
		char *other = filled(2 * MiB, round);
		check_all(other, 0, 2 * MiB, round);
		munmap(other, 2 * MiB);
	}
	check_all(m, 0, LEN, 5);
}

/* The kernel reads and writes it, and waits on words in it. */
static void kernel(void)
{
	char *m = filled(LEN, 6), page[PAGE];
	int ends[2], *word = (int *)(m + 5 * PAGE + 64), zero = open("/dev/zero", O_RDONLY);
	*word = 0;
	pid_t child = forked();
	if (!child) {
		while (!__atomic_load_n(word, __ATOMIC_SEQ_CST))
			syscall(SYS_futex, word, FUTEX_WAIT, 0, NULL, NULL, 0);
		_exit(0);
	}
	usleep(50000);
	press();
	__atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
	MUST(syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0) == 1);
	end_well(child);
	press();
	MUST(read(zero, m, 4 * MiB) == (ssize_t)(4 * MiB));
	press();
	for (size_t at = 0; at < 4 * MiB; at += PAGE)
		MUST(AT(m, at) == 0);
	check_all(m + 4 * MiB, 4 * MiB, LEN, 6);
	MUST(pipe(ends) == 0);
	press();
	MUST(write(ends[1], m + 5 * MiB, PAGE) == (ssize_t)PAGE && read(ends[0], page, PAGE) == (ssize_t)PAGE);
	MUST(AT(page, 0) == 5 * MiB * 3 + 6);
}

static void add(uint64_t *m, size_t words, uint64_t seed, long count)
{
	for (long i = 0; i < count; i++) {
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		__atomic_fetch_add(&m[(seed >> 20) % words], 1ULL << 40, __ATOMIC_RELAXED);
	}
}

static uint64_t sum(uint64_t *m, size_t words)
{
	uint64_t all = 0;
	for (size_t i = 0; i < words; i++) {
		all += m[i] >> 40;
		if ((m[i] & ((1ULL << 40) - 1)) != i * 7)
			bad("word %zu is wrong", i);
	}
	return all;
}

static uint64_t *numbered(size_t words)
{
	uint64_t *m = (uint64_t *)shared(words * 8);
	for (size_t i = 0; i < words; i++)
		m[i] = i * 7;
	return m;
}

/* No addition of several processes is lost. */
static void sums(void)
{
	size_t words = 80 * MiB / 8;
	uint64_t *m = numbered(words);
	pid_t children[4];
	for (int k = 0; k < 4; k++)
		if (!(children[k] = forked())) {
			add(m, words, (uint64_t)k, 10000);
			_exit(0);
		}
	for (int k = 0; k < 4; k++)
		end_well(children[k]);
	MUST(sum(m, words) == 40000);
}

/* Whoever is killed holds up nobody. */
static void killed(void)
{
	size_t words = 80 * MiB / 8;
	uint64_t *m = numbered(words);
	pid_t children[4];
	for (int k = 0; k < 4; k++)
		if (!(children[k] = forked()))
			for (uint64_t seed = (uint64_t)k;; seed++)
				add(m, words, seed, 1000);
	for (int round = 0; round < 60; round++) {
		usleep(50000);
		int k = round * 7 % 4, status;
		kill(children[k], SIGKILL);
		MUST(waitpid(children[k], &status, 0) == children[k] && status == SIGKILL);
		if (!(children[k] = forked()))
			for (uint64_t seed = (uint64_t)round * 100;; seed++)
				add(m, words, seed, 1000);
	}
	for (int k = 0; k < 4; k++) {
		kill(children[k], SIGKILL);
		MUST(waitpid(children[k], NULL, 0) == children[k]);
	}
	MUST(sum(m, words) > 0);
}

/* Who is stopped holds up nobody, and goes on. */
static void stopped(void)
{
	char *m = filled(LEN, 7);
	pid_t child = forked();
	if (!child)
		for (int round = 0;; round++)
			check_all(m, 0, LEN, 7);
	for (int round = 0; round < 10; round++) {
		usleep(100000);
		MUST(kill(child, SIGSTOP) == 0);
		press();
		check_all(m, 0, LEN, 7);
		MUST(kill(child, SIGCONT) == 0);
	}
	kill(child, SIGKILL);
	int status;
	MUST(waitpid(child, &status, 0) == child && status == SIGKILL);
}

/* No more than it takes for the server to begin. */
static void little(void)
{
	char *m = filled(60 * MiB, 8);
	wait_until_some_has_left(m, 60 * MiB);
	check_all(m, 0, 60 * MiB, 8);
}

static const struct test_case CASES[] = {
	{ "moves", moves }, { "advice", advice }, { "forks", forks }, { "many", many }, { "kernel", kernel },
	{ "sums", sums }, { "killed", killed }, { "stopped", stopped },
	{ "little", little }, { "huge", huge }, { "direct", direct }, { "parted", parted }, { "reordered", reordered },
	{ "opened", opened }, { "forked-at-once", forked_at_once },
	{ "written-by-the-kernel", written_by_the_kernel },
};

int main(int argc, char **argv)
{
	return RUN_CASE(argc, argv, CASES);
}
