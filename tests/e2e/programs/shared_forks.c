/* Forks of processes with shared memory that is swapped out: whoever has it sees what is in it, and who cannot have it dies. */
#include "shared_memory.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <stdatomic.h>
#include <sys/syscall.h>

/* Round libc. */
static pid_t raw_fork(void)
{
	long tid = 0;
	__asm__ volatile("syscall" : "=a"(tid) : "a"(SYS_fork) : "rcx", "r11", "memory");
	MUST(tid >= 0);
	return (pid_t)tid;
}

static long raw_write(int fd, const char *from, size_t len)
{
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_write), "D"(fd), "S"(from), "d"(len) : "rcx", "r11", "memory");
	return result;
}

static void raw_exit(int status)
{
	__asm__ volatile("syscall" : : "a"(SYS_exit_group), "D"(status) : "rcx", "r11", "memory");
}

static void in_a_child(void (*work)(char *), char *m)
{
	pid_t child = forked();
	if (!child) {
		work(m);
		_exit(0);
	}
	end_well(child);
}

static void fill_and_press(char *m)
{
	write_all(m, 0, LEN, 1);
	press();
}

static void check_and_press(char *m)
{
	check_all(m, 0, LEN, 1);
	press();
}

/* A child that nobody has followed has what is there, or has no such memory at all; it never sees zeros. It works in registers. */
static void check_raw(char *m)
{
	enum { HAS_NONE = 7 };
	int status, ends[2];
	MUST(pipe(ends) == 0);
	pid_t child = raw_fork();
	if (!child) {
		for (size_t at = 0; at < LEN; at += 16 * PAGE)
			if (raw_write(ends[1], m + at, 8) != 8)
				raw_exit(HAS_NONE);
		raw_exit(0);
	}
	close(ends[1]);
	uint64_t value = 0;
	for (size_t at = 0; read(ends[0], &value, 8) == 8; at += 16 * PAGE)
		if (value != at * 3 + 1)
			bad("a child of a fork round libc sees %zu in page %zu", (size_t)value, at / PAGE);
	close(ends[0]);
	MUST(waitpid(child, &status, 0) == child);
	if (status != 0 && status != HAS_NONE << 8)
		bad("a child of a fork round libc ended with %#x", status);
}

/* Of a process that has little of its own: nothing else is kept from its children. */
static void raw(void)
{
	char *m = shared(LEN);
	in_a_child(fill_and_press, m);
	for (int round = 0; round < 3; round++) {
		check_raw(m);
		in_a_child(check_and_press, m);
		MUST(madvise(m, LEN, round ? MADV_DOFORK : MADV_DONTFORK) == 0);
		MUST(madvise(m, LEN, MADV_DOFORK) == 0);
	}
}

/* What the program says of forks is so, and changes nothing for those that nobody follows. */
static void advised(void)
{
	int status;
	char *m = filled(LEN, 1);
	press();
	MUST(madvise(m, LEN / 2, MADV_DONTFORK) == 0);
	pid_t child = forked();
	if (!child) {
		check_all(m + LEN / 2, LEN / 2, LEN, 1);
		_exit(AT(m, PAGE) != 1);
	}
	MUST(waitpid(child, &status, 0) == child);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
		bad("a child has what was kept from it: it ended with %#x", status);
	MUST(madvise(m, LEN, MADV_DOFORK) == 0);
	press();
	child = forked();
	if (!child) {
		check_all(m, 0, LEN, 1);
		_exit(0);
	}
	end_well(child);
}

/* The grandchild is alone with it at once, where its parent's parent has given it up as well. */
static void orphans(void)
{
	for (uint64_t round = 0; round < 4; round++) {
		int ends[2];
		char *m = filled(LEN, round), done = 0;
		MUST(pipe(ends) == 0);
		press();
		pid_t child = forked();
		if (!child) {
			if (forked())
				_exit(0);
			usleep(round % 3 * 60000);
			check_all(m, 0, LEN, round);
			write_all(m, 0, LEN, 77);
			_exit(write(ends[1], "+", 1) != 1);
		}
		close(ends[1]);
		if (round % 2)
			munmap(m, LEN);
		end_well(child);
		MUST(read(ends[0], &done, 1) == 1);
		close(ends[0]);
		if (round % 2 == 0) {
			check_all(m, 0, LEN, 77);
			munmap(m, LEN);
		}
	}
}

/* Parents are killed while they fork. */
static void killed(void)
{
	char *m = filled(LEN, 5);
	for (int round = 0; round < 12; round++) {
		int status;
		pid_t parent = forked();
		if (!parent)
			for (;;) {
				pid_t child = forked();
				if (!child) {
					check_all(m, 0, LEN / 2, 5);
					_exit(0);
				}
			}
		usleep(20000 + (useconds_t)round * 5000);
		kill(parent, SIGKILL);
		MUST(waitpid(parent, &status, 0) == parent);
		if (round % 8 == 0)
			press();
		check_all(m, 0, LEN, 5);
	}
}

static atomic_int stop;

static void *remaps(void *unused)
{
	for (uint64_t round = 0; !atomic_load(&stop); round++) {
		char *m = filled(2 * MiB, round), *to = mmap(NULL, 2 * MiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(to != MAP_FAILED);
		MUST(mremap(m, 2 * MiB, 2 * MiB, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		check_all(to, 0, 2 * MiB, round);
		munmap(to, 2 * MiB);
		/* Private memory comes into its place. */
		char *own = mmap(to, 2 * MiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		MUST(own != MAP_FAILED);
		write_all(own, 0, 2 * MiB, round);
		check_all(own, 0, 2 * MiB, round);
		munmap(own, 2 * MiB);
	}
	return unused;
}

/* Another thread maps, moves and unmaps all the time. */
static void threads(void)
{
	pthread_t thread;
	char *m = filled(LEN, 6);
	press();
	MUST(pthread_create(&thread, NULL, remaps, NULL) == 0);
	for (int round = 0; round < 15; round++) {
		pid_t child = forked();
		if (!child) {
			check_all(m, 0, LEN, 6);
			_exit(0);
		}
		end_well(child);
	}
	atomic_store(&stop, 1);
	MUST(pthread_join(thread, NULL) == 0);
	check_all(m, 0, LEN, 6);
}

/* Of a child of one that lets nobody look at it, nobody knows what it has: it ends, or has all. */
static void hidden(void)
{
	int status;
	char *m = filled(LEN, 8);
	press();
	MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
	pid_t child = forked();
	if (!child) {
		check_all(m, 0, LEN, 8);
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child);
	if (status != 0 && !WIFSIGNALED(status))
		bad("a child that could not tell of itself ended with %#x", status);
	/* What it maps from here on stays: who else has it cannot be known. */
	char *other = filled(60 * MiB, 9);
	check_all(m, 0, LEN, 8);
	check_all(other, 0, 60 * MiB, 9);
}

/* Children of children, that have more than their parents. */
static void generations(void)
{
	const uint64_t all = 4;
	char *m = filled(LEN, 7);
	for (uint64_t depth = 1; depth <= all; depth++) {
		pid_t child = forked();
		if (child) {
			end_well(child);
			check_all(m, 0, LEN, 7 + 1000 * all);
			_exit(0);
		}
		char *more = filled(4 * MiB, depth);
		press();
		check_all(m, 0, LEN, 7 + 1000 * (depth - 1));
		write_all(m, 0, LEN, 7 + 1000 * depth);
		check_all(more, 0, 4 * MiB, depth);
	}
}

static const struct test_case CASES[] = {
	{ "raw", raw }, { "advised", advised }, { "orphans", orphans }, { "killed", killed }, { "threads", threads },
	{ "generations", generations }, { "hidden", hidden },
};

int main(int argc, char **argv)
{
	return RUN_CASE(argc, argv, CASES);
}
