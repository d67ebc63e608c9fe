/*
 * Forks in the very moment in which other threads change the mappings, fork themselves, or hold what a fork waits for; and a
 * child that looks at its parent.
 */
#include "cases.h"
#include <limits.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define SEED 51

/* --- memory that threads move while another forks --- */

#define MOVERS 4
#define REGIONS 4
#define REGION (8 * PAGE)

/* Far from where the kernel and uswap place anything. Each region has two places, and holes around both. */
static char *place(int mover, int region, int which)
{
	size_t number = (size_t)(mover * REGIONS + region) * 2 + (size_t)which;
	return (char *)0x200000000000 + number * 4 * REGION;
}

static volatile int over;
static volatile unsigned long moves;

static void fill_region(char *start, int number)
{
	for (size_t p = 0; p < REGION / PAGE; p++)
		fill_random((uint64_t *)(start + p * PAGE), SEED + (uint64_t)number, p);
}

static void check_region(const char *start, int number)
{
	for (size_t p = 0; p < REGION / PAGE; p++)
		check_random((const uint64_t *)(start + p * PAGE), SEED + (uint64_t)number, p);
}

static int is_mapped(const char *start)
{
	unsigned char there[REGION / PAGE];
	return mincore((void *)start, REGION, there) == 0;
}

static void *moves_on(void *argument)
{
	int mover = (int)(intptr_t)argument, which = 0;
	while (!over) {
		for (int region = 0; region < REGIONS; region++) {
			char *from = place(mover, region, which), *to = place(mover, region, !which);
			MUST(mremap(from, REGION, REGION, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
			moves++;
		}
		which = !which;
		sleep_ms((long)env_number("PAUSE_MS", 8));
	}
	return NULL;
}

static void check_wherever_it_is(void)
{
	for (int mover = 0; mover < MOVERS; mover++)
		for (int region = 0; region < REGIONS; region++) {
			char *first = place(mover, region, 0), *second = place(mover, region, 1);
			if (is_mapped(first) && is_mapped(second))
				bad("region %d of mover %d is at two places", region, mover);
			if (!is_mapped(first) && !is_mapped(second))
				_exit(3);
			check_region(is_mapped(first) ? first : second, mover * REGIONS + region);
		}
}

static void moving(void)
{
	for (int number = 0; number < MOVERS * REGIONS; number++) {
		char *start = place(number / REGIONS, number % REGIONS, 0);
		MUST(mmap(start, REGION, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
		fill_region(start, number);
	}
	for (int number = 0; number < MOVERS * REGIONS; number++)
		push_out_percent(place(number / REGIONS, number % REGIONS, 0), REGION, 100, "what will be moved");
	pthread_t threads[MOVERS];
	for (intptr_t mover = 0; mover < MOVERS; mover++)
		MUST(pthread_create(&threads[mover], NULL, moves_on, (void *)mover) == 0);
	size_t forks = env_number("FORKS", 600), right = 0, ended = 0, lost = 0, missing = 0;
	for (size_t k = 0; k < forks; k++) {
		pid_t child = forked();
		if (!child) {
			check_wherever_it_is();
			_exit(0);
		}
		int status = status_of(child);
		if (status == 99)
			bad("a child has read what is not there (fork %zu)", k);
		right += status == 0;
		ended += status == 128 + SIGKILL;
		lost += status == 128 + SIGBUS;
		missing += status == 3;
		if (status && status != 3 && status != 128 + SIGKILL && status != 128 + SIGBUS)
			bad("a child ended with status %d", status);
	}
	over = 1;
	for (int mover = 0; mover < MOVERS; mover++)
		pthread_join(threads[mover], NULL);
	check_wherever_it_is();
	fprintf(stderr, "of %zu children %zu were right, %zu ended, %zu lost a page, %zu lacked memory; %lu moves\n", forks,
		right, ended, lost, missing, moves);
	if (missing)
		bad("%zu children lacked memory", missing);
	if (lost || right < forks / 2)
		bad("too few children could go on");
}

/* --- memory that takes the place of other memory while its process forks --- */

#define PLACES 1500
#define PLACE (2 * PAGE)

static volatile unsigned char is_shared[MOVERS * PLACES];

/* Far from the regions above. */
static char *place_anew(int number) { return (char *)0x210000000000 + (size_t)number * 2 * PLACE; }

static void *maps_anew(void *argument)
{
	int mover = (int)(intptr_t)argument;
	for (int k = 0; k < PLACES; k++) {
		int number = k * MOVERS + mover;
		char *start = place_anew(number);
		MUST(munmap(start, PLACE) == 0);
		MUST(mmap(start, PLACE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
		start[PAGE] = 7;
		is_shared[number] = 1;
		sleep_ms(2);
	}
	__atomic_add_fetch(&over, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* What a thread maps where adopted memory was a moment ago is no adopted memory, and every child has it. */
static void mapped_anew(void)
{
	for (int number = 0; number < MOVERS * PLACES; number++) {
		char *start = place_anew(number);
		MUST(mmap(start, PLACE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
		fill_random((uint64_t *)start, SEED, (size_t)number);
	}
	/* Pressure that ends: a fork need not wait for it. */
	char *pressure = map(SIZE);
	double from = now();
	for (int is_out = 0; !is_out;) {
		for (size_t p = 0; p < SIZE / PAGE; p++)
			*(uint64_t *)(pressure + p * PAGE) = mix(p);
		is_out = !swaps();
		for (int k = 0; k < 8; k++)
			is_out += pages_out(place_anew(k * MOVERS * PLACES / 8), PAGE) != 0;
		MUST(now() - from < 30);
	}
	MUST(munmap(pressure, SIZE) == 0);
	pthread_t threads[MOVERS];
	for (intptr_t mover = 0; mover < MOVERS; mover++)
		MUST(pthread_create(&threads[mover], NULL, maps_anew, (void *)mover) == 0);
	size_t forks = 0;
	for (int is_last = 0; !is_last; forks++) {
		is_last = over == MOVERS;
		pid_t child = forked();
		if (!child) {
			for (int number = 0; number < MOVERS * PLACES; number++)
				if (is_shared[number] && *(volatile char *)(place_anew(number) + PAGE) != 7)
					bad("place %d has other content", number);
			_exit(0);
		}
		int status = status_of(child);
		if (status)
			bad("a child ended with status %d (fork %zu)", status, forks);
	}
	for (int mover = 0; mover < MOVERS; mover++)
		pthread_join(threads[mover], NULL);
	fprintf(stderr, "%zu forks\n", forks);
}

/* --- a lock that a fork waits for, and whose holder touches more pages than any table has places --- */

#define BLOCK (400 * MiB)

static void mark(char *block)
{
	for (size_t p = 0; p < BLOCK / PAGE; p++)
		for (size_t w = 0; w < WORDS; w++)
			((uint64_t *)(block + p * PAGE))[w] = p + 1;
}

static void check_marks(const char *block, size_t from, size_t step)
{
	for (size_t p = from; p < BLOCK / PAGE; p += step)
		for (size_t w = 0; w < WORDS; w++)
			if (((const volatile uint64_t *)(block + p * PAGE))[w] != p + 1)
				bad("page %zu word %zu is wrong", p, w);
}

static char *volatile block;
static volatile int begin;

static void *reallocates(void *unused)
{
	(void)unused;
	while (!begin)
		sleep_ms(1);
	/* Below the top of the heap: copied as a whole, by who holds the lock of the heap. */
	char *larger = realloc(block, BLOCK + MiB);
	MUST(larger && larger != block);
	block = larger;
	return NULL;
}

static void many_faults(void)
{
	MUST(mallopt(M_MMAP_MAX, 0) && mallopt(M_ARENA_MAX, 1) && mallopt(M_TRIM_THRESHOLD, INT_MAX));
	block = malloc(BLOCK);
	char *above = malloc(100);
	MUST(block && above);
	mark(block);
	push_out_percent(block + PAGE - (uintptr_t)block % PAGE, BLOCK - PAGE, 80, "block");
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, reallocates, NULL) == 0);
	begin = 1;
	sleep_ms(2);
	double from = now();
	pid_t child = forked();
	if (!child) {
		/* Or the old one, which was freed a moment ago: its first words are the heap's then. */
		check_marks(block, 1, 1000);
		_exit(0);
	}
	printf("forked\n");
	fprintf(stderr, "fork took %.2f s\n", now() - from);
	must_succeed(child, "child");
	pthread_join(thread, NULL);
	check_marks(block, 0, 1);
	free(above);
}

/* --- a child that reads all of its parent's mappings, as a debugger may --- */

static size_t read_all_of(pid_t of)
{
	static char buffer[64 * PAGE];
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/%d/maps", (int)of);
	FILE *maps = fopen(path, "r");
	MUST(maps);
	size_t count = 0;
	while (fgets(line, sizeof line, maps)) {
		unsigned long start, end;
		char readable;
		if (sscanf(line, "%lx-%lx %c", &start, &end, &readable) != 3 || readable != 'r' || strstr(line, "[v"))
			continue;
		/* The pool is reserved, and large. */
		if (end - start > 1024 * MiB)
			continue;
		for (unsigned long at = start; at < end; at += sizeof buffer) {
			size_t bytes = end - at < sizeof buffer ? end - at : sizeof buffer;
			struct iovec here = { buffer, bytes }, there = { (void *)at, bytes };
			ssize_t got = process_vm_readv(of, &here, 1, &there, 1, 0);
			MUST(got > 0 || errno == EFAULT || errno == ESRCH);
			count += got > 0 ? (size_t)got : 0;
		}
	}
	fclose(maps);
	return count;
}

static void read_from_outside(void)
{
	char *p = swapped(SIZE, 52, "read from outside");
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	pid_t parent = getpid(), child = forked();
	if (!child) {
		MUST(read_all_of(parent) > SIZE);
		_exit(0);
	}
	int status = 0;
	/* A little at a time: both would else bring in, again and again, what the other one has just pushed out. */
	for (size_t at = 0; waitpid(child, &status, WNOHANG) == 0; at = (at + MiB) % SIZE) {
		check_pages(p, at / PAGE, (at + MiB) / PAGE, 52, "read from outside");
		sleep_ms(5);
	}
	MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	/* By itself, too. */
	MUST(read_all_of(parent) > SIZE);
	check(p, SIZE, 52, "read by itself");
}

/* A parent reads its child as soon as it has it: the child has its memory all the same. */
static void read_at_birth(void)
{
	enum { READ = 2000 };
	char *p = swapped(SIZE, 54, "read at birth"), *copy = map(READ * PAGE);
	for (int k = 0; k < 10; k++) {
		int ends[2];
		MUST(pipe(ends) == 0);
		push_out(p, READ * PAGE, "read at birth");
		pid_t child = forked();
		if (!child) {
			char byte;
			close(ends[1]);
			MUST(read(ends[0], &byte, 1) == 0);
			check(p, SIZE, 54, "of a child that was read at birth");
			_exit(0);
		}
		struct iovec from = { p, READ * PAGE }, to = { copy, READ * PAGE };
		MUST(process_vm_readv(child, &to, 1, &from, 1, 0) > 0);
		close(ends[0]);
		close(ends[1]);
		must_succeed(child, "a child that was read at birth");
	}
}

/* --- forks round libc, while another thread forks by it --- */

static char *seen_by_all;
static volatile unsigned long raw_forks;

static void *forks_round_libc(void *argument)
{
	int by_syscall = argument != NULL;
	while (!over) {
		/* Made in a moment in which nothing is kept from children, it has all; else it ends at once. */
		long child = by_syscall ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : syscall(SYS_fork);
		MUST(child >= 0);
		if (child == 0) {
			check(seen_by_all, SIZE, 53, "child of a fork round libc");
			_exit(0);
		}
		if (status_of((pid_t)child) == 99)
			bad("a child of a fork round libc has read what is not there");
		raw_forks++;
	}
	return NULL;
}

static void raw_beside(void)
{
	seen_by_all = swapped(SIZE, 53, "seen by all");
	pthread_t threads[2];
	for (intptr_t k = 0; k < 2; k++)
		MUST(pthread_create(&threads[k], NULL, forks_round_libc, (void *)k) == 0);
	for (int k = 0; k < 100; k++) {
		pid_t child = forked();
		if (!child)
			_exit(0);
		must_succeed(child, "child");
	}
	over = 1;
	for (int k = 0; k < 2; k++)
		pthread_join(threads[k], NULL);
	check(seen_by_all, SIZE, 53, "parent");
	fprintf(stderr, "%lu forks round libc\n", raw_forks);
}

/* --- forks round libc of threads that are not back for long, or never --- */

static int fork_news[2];

/* Signals are to come in the child as they did in who made it. */
static void check_signals(const char *where)
{
	sigset_t mask;
	MUST(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
	for (int number = 1; number < NSIG; number++)
		if (number != 32 && number != 33 && sigismember(&mask, number) != (number == SIGUSR2))
			bad("signal %d is%s held back %s", number, number == SIGUSR2 ? " not" : "", where);
}

static int sleeps_long(void *unused)
{
	(void)unused;
	check_signals("in the child");
	pid_t self = getpid();
	MUST(write(fork_news[1], &self, sizeof self) == sizeof self);
	sleep_ms(30000);
	_exit(0);
}

/* Its child has memory of its own, and yet it sleeps in the kernel until that has ended. */
static void *is_held_up(void *argument)
{
	static char stack[16 * PAGE] __attribute__((aligned(16)));
	sigset_t mask;
	MUST(sigemptyset(&mask) == 0 && sigaddset(&mask, SIGUSR2) == 0);
	MUST(pthread_sigmask(SIG_SETMASK, &mask, NULL) == 0);
	long child = -1;
	pid_t tid = 0;
	struct clone_args how = { .flags = CLONE_VFORK, .exit_signal = SIGCHLD };
	switch ((intptr_t)argument) {
	case 0: child = clone(sleeps_long, stack + sizeof stack, CLONE_VFORK | SIGCHLD, NULL); break;
	case 1: child = syscall(SYS_clone, CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, 0, &tid, 0, 0); break;
	case 2: child = syscall(SYS_clone3, &how, sizeof how); break;
	}
	MUST(child >= 0);
	if (child == 0)
		sleeps_long(NULL);
	check_signals("in the parent");
	MUST(status_of((pid_t)child) == 128 + SIGKILL);
	return NULL;
}

static void must_fork_at_once(const char *what)
{
	double from = now();
	pid_t child = forked();
	if (!child)
		_exit(0);
	if (now() - from > 2)
		bad("a fork beside %s took %.1f s", what, now() - from);
	must_succeed(child, what);
}

static void held_up(void)
{
	for (intptr_t how = 0; how < 3; how++) {
		pthread_t thread;
		pid_t other;
		MUST(pipe(fork_news) == 0);
		MUST(pthread_create(&thread, NULL, is_held_up, (void *)how) == 0);
		MUST(read(fork_news[0], &other, sizeof other) == sizeof other);
		must_fork_at_once("one whose thread is held up");
		/* Another one of its kind, too. */
		long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		MUST(child >= 0);
		if (child == 0)
			_exit(0);
		must_succeed((pid_t)child, "child of a fork round libc");
		MUST(kill(other, SIGKILL) == 0);
		MUST(pthread_join(thread, NULL) == 0);
		MUST(close(fork_news[0]) == 0 && close(fork_news[1]) == 0);
		must_fork_at_once("none");
	}
}

static void *is_ended(void *unused)
{
	(void)unused;
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof *code, code };
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	bad("the filter has not ended the thread");
}

static void ended_in_fork(void)
{
	pthread_t thread;
	/* The agent has its threads, and a file table of their own. */
	sleep_ms(300);
	MUST(pthread_create(&thread, NULL, is_ended, NULL) == 0);
	MUST(pthread_join(thread, NULL) == 0);
	must_fork_at_once("one whose thread has been ended");
	must_fork_at_once("none");
}

static sigjmp_buf way_out;

static void leaves(int signal)
{
	(void)signal;
	siglongjmp(way_out, 1);
}

static void *is_interrupted(void *unused)
{
	(void)unused;
	while (!over) {
		if (sigsetjmp(way_out, 1))
			continue;
		if (!begin) {
			sigset_t mask;
			MUST(sigemptyset(&mask) == 0 && sigaddset(&mask, SIGUSR1) == 0);
			begin = 1;
			MUST(pthread_sigmask(SIG_UNBLOCK, &mask, NULL) == 0);
		}
		if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0)
			_exit(0);
	}
	return NULL;
}

static void left_by_a_jump(void)
{
	sigset_t mask;
	MUST(sigemptyset(&mask) == 0 && sigaddset(&mask, SIGUSR1) == 0);
	MUST(pthread_sigmask(SIG_BLOCK, &mask, NULL) == 0);
	MUST(signal(SIGUSR1, leaves) != SIG_ERR);
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, is_interrupted, NULL) == 0);
	while (!begin)
		sleep_ms(1);
	for (int k = 0; k < 500; k++) {
		struct timespec pause = { 0, 20000 * (k % 50) };
		nanosleep(&pause, NULL);
		MUST(pthread_kill(thread, SIGUSR1) == 0);
	}
	over = 1;
	MUST(pthread_join(thread, NULL) == 0);
	while (waitpid(-1, NULL, 0) > 0)
		;
	must_fork_at_once("one that was left by a jump");
}

/* --- children that are killed before their agent has said hello --- */

/* Each ledger of what a child may still read is shared memory. */
static size_t shared_mappings(void)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	MUST(maps);
	size_t count = 0;
	while (fgets(line, sizeof line, maps))
		count += strstr(line, "/dev/zero") != NULL;
	fclose(maps);
	return count;
}

static void killed_early(void)
{
	char *p = swapped(SIZE, 54, "of a parent whose children are killed");
	size_t before = shared_mappings();
	/* Another child, which lives all the time. */
	pid_t other = forked();
	if (!other) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		pause();
		_exit(0);
	}
	for (int k = 0; k < 100; k++) {
		pid_t child = forked();
		if (!child)
			_exit(0);
		MUST(kill(child, SIGKILL) == 0);
		MUST(waitpid(child, NULL, 0) == child);
	}
	size_t most = shared_mappings();
	double from = now();
	while (shared_mappings() > before + 4) {
		if (now() - from > 40)
			bad("%zu of %zu mappings are left of children that are dead", shared_mappings() - before, most - before);
		sleep_ms(100);
	}
	fprintf(stderr, "%zu mappings, gone after %.1f s\n", most - before, now() - from);
	check(p, SIZE, 54, "parent");
	MUST(kill(other, SIGKILL) == 0 && waitpid(other, NULL, 0) == other);
}

/* Forks while its agent is about to join. */
static void joins_late(void)
{
	sleep_ms(300);
	double from = now();
	pid_t child = forked();
	if (!child)
		_exit(0);
	must_succeed(child, "child");
	printf("%s\n", now() - from < 2 ? "forked in time" : "held up");
	/* Long enough for it to be said what it waits for. */
	sleep_ms(3000);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "moving", moving },
		{ "mapped-anew", mapped_anew },
		{ "many-faults", many_faults },
		{ "read-from-outside", read_from_outside },
		{ "read-at-birth", read_at_birth },
		{ "joins-late", joins_late },
		{ "raw-beside", raw_beside },
		{ "killed-early", killed_early },
		{ "held-up", held_up },
		{ "ended-in-fork", ended_in_fork },
		{ "left-by-a-jump", left_by_a_jump },
	};
	return RUN_CASE(argc, argv, cases);
}
