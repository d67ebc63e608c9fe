/*
 * Signals around forks, threads that are gone before their maker knows of them, and what libc and the kernel look at where
 * the program's own memory may be swapped out.
 */
#include "cases.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>

#define HELD (64 * MiB)

/* --- a handler that forks, in a thread that forks --- */

static char *memory;
static volatile sig_atomic_t bad_children, handler_forks;

/* The pages that lie in a range. */
static void push_out_part(const char *start, size_t bytes, const char *what)
{
	uintptr_t first = ((uintptr_t)start + PAGE - 1) / PAGE * PAGE, end = ((uintptr_t)start + bytes) / PAGE * PAGE;
	push_out((void *)first, end - first, what);
}

static int child_of(pid_t child)
{
	int status;
	pid_t ended;
	while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR)
		;
	return ended == child ? status : -1;
}

/* Once: a handler that takes longer than until its next signal would leave the thread no time. */
static void signal_soon(void)
{
	MUST(setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 0 }, { 0, 2000 + mix((uint64_t)handler_forks) % 8000 } }, NULL) == 0);
}

static void forks_too(int signal)
{
	(void)signal;
	int errno_before = errno;
	pid_t child = fork();
	if (child == 0) {
		check(memory, HELD / 16, 61, "child of a handler");
		_exit(0);
	}
	if (child > 0) {
		handler_forks++;
		if (child_of(child) != 0)
			bad_children++;
	}
	signal_soon();
	errno = errno_before;
}

static void handler_forks_too(void)
{
	memory = map(HELD);
	fill(memory, HELD, 61);
	push_out(memory, HELD, "before the forks");
	struct sigaction action = { .sa_handler = forks_too, .sa_flags = SA_RESTART };
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	signal_soon();
	for (double from = now(); now() - from < 4;) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0)
			_exit(0);
		if (child_of(child) != 0)
			bad_children++;
	}
	MUST(signal(SIGALRM, SIG_IGN) != SIG_ERR);
	MUST(bad_children == 0 && handler_forks > 0);
	fprintf(stderr, "%d forks by the handler\n", (int)handler_forks);
}

/* --- a handler that runs in a child before anything else does --- */

/* Its first word is the handler's, the rest must stay. */
static _Alignas(4096) volatile uint64_t data[16 * WORDS];

static void stops(int signal)
{
	(void)signal;
	for (int page = 0; page < 16; page++)
		data[(size_t)page * WORDS] = 1;
}

static void handler_in_the_child(void)
{
	char *big = map(HELD);
	fill(big, HELD, 62);
	struct sigaction action = { .sa_handler = stops };
	MUST(sigaction(SIGTERM, &action, NULL) == 0);
	for (size_t w = 0; w < 16 * WORDS; w++)
		data[w] = w % WORDS ? w : 0;
	push_out((void *)data, sizeof data, "before the forks");
	for (int n = 0; n < 60; n++) {
		if (n % 20 == 19)
			push_out((void *)data, sizeof data, "again");
		pid_t child = fork();
		MUST(child >= 0);
		if (child > 0) {
			MUST(kill(child, SIGTERM) == 0);
			MUST(child_of(child) == 0);
			continue;
		}
		for (double from = now(); !data[0] && now() - from < 10;)
			sched_yield();
		for (size_t w = 0; w < 16 * WORDS; w++)
			if (data[w] != (w % WORDS ? w : 1))
				_exit(1);
		_exit(0);
	}
}

/* --- handlers for forks that keep the signal mask --- */

static sigset_t saved_mask;

static void blocks_all(void)
{
	sigset_t all;
	sigfillset(&all);
	MUST(pthread_sigmask(SIG_BLOCK, &all, &saved_mask) == 0);
}

static void sets_again(void) { MUST(pthread_sigmask(SIG_SETMASK, &saved_mask, NULL) == 0); }

static void is_unmasked(const char *who)
{
	sigset_t now_blocked;
	MUST(pthread_sigmask(SIG_BLOCK, NULL, &now_blocked) == 0);
	for (int signal = 1; signal < 65; signal++)
		if (sigismember(&now_blocked, signal) == 1)
			bad("signal %d is blocked in the %s", signal, who);
}

static void masks_of_handlers_nest(void)
{
	char *big = map(HELD);
	fill(big, HELD, 67);
	for (int round = 0; round < 2; round++) {
		push_out(big, HELD, "before the fork");
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0) {
			is_unmasked("child");
			_exit(0);
		}
		is_unmasked("parent");
		MUST(child_of(child) == 0);
		MUST(pthread_atfork(blocks_all, sets_again, sets_again) == 0);
	}
}

/* --- threads that are gone at once, with where their identity was --- */

static void *unmaps(void *identity)
{
	pthread_detach(pthread_self());
	munmap(identity, PAGE);
	return NULL;
}

static void thread_gone_at_once(void)
{
	for (int n = 0; n < 20000; n++) {
		pthread_t *thread = map(PAGE);
		void *volatile same = thread;
		if (pthread_create(thread, NULL, unmaps, same) != 0) {
			munmap(thread, PAGE);
			sleep_ms(1);
		}
	}
}

/* More than may be made at a time, with all that a thread can end by. */
static void *ends(void *how)
{
	switch ((intptr_t)how % 3) {
	case 0:
		pthread_exit(how);
	case 1:
		for (;;)
			pause();
	default:
		return how;
	}
}

static void threads_end_in_all_ways(void)
{
	pthread_attr_t small;
	MUST(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 64 << 10) == 0);
	for (int round = 0; round < 20; round++) {
		pthread_t threads[60];
		for (intptr_t k = 0; k < 60; k++)
			MUST(pthread_create(&threads[k], &small, ends, (void *)k) == 0);
		for (intptr_t k = 0; k < 60; k++) {
			void *result;
			if (k % 3 == 1)
				MUST(pthread_cancel(threads[k]) == 0);
			MUST(pthread_join(threads[k], &result) == 0);
			MUST(result == (k % 3 == 1 ? PTHREAD_CANCELED : (void *)k));
		}
	}
}

/* --- guards over a hole --- */

static void guards_over_a_hole(void)
{
	enum { INSTALL = 102, REMOVE = 103 };
	char *p = map(HELD);
	fill(p, HELD, 63);
	push_out(p, HELD, "before the guards");
	MUST(munmap(p + HELD / 2, PAGE) == 0);
	if (madvise(p, HELD, INSTALL) == 0 || errno != ENOMEM) {
		/* Linux before 6.13 has no guards. */
		MUST(errno == EINVAL);
		return;
	}
	MUST(madvise(p, HELD / 2, REMOVE) == 0);
	check_zero(p, HELD / 2, "where the guards were");
}

/* --- a mapping that lies low --- */

static void low_mapping_keeps_its_size(void)
{
	char *low = mmap((void *)0x100000000, MiB, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	MUST(low == (char *)0x100000000);
	char *target = map(MiB);
	fill(low, MiB, 64);
	MUST(mremap(low, MiB, MiB, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
	check(target, MiB, 64, "moved");
	unsigned char there;
	MUST(mincore(low, PAGE, &there) != 0 && errno == ENOMEM);
	MUST(mincore(low + 2 * MiB, PAGE, &there) != 0 && errno == ENOMEM);
}

/* --- streams whose flags and locks lie on different pages --- */

static void *waits(void *unused)
{
	pause();
	return unused;
}

static void streams_in_swapped_memory(void)
{
	enum { STREAMS = 400 };
	static FILE *streams[STREAMS];
	static char *between[STREAMS];
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, waits, NULL) == 0);
	for (int k = 0; k < STREAMS; k++) {
		size_t bytes = 3000 + (size_t)k * 16 % 2000;
		between[k] = malloc(bytes);
		memset(between[k], 'a' + k % 26, bytes);
		MUST(between[k] && (streams[k] = fopen("/dev/null", "r")));
	}
	push_out_part(between[0], (size_t)(between[STREAMS - 1] - between[0]), "the streams");
	for (int n = 0; n < 5; n++) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child > 0) {
			MUST(child_of(child) == 0);
			continue;
		}
		for (int k = 0; k < STREAMS; k++) {
			size_t bytes = 3000 + (size_t)k * 16 % 2000;
			for (size_t at = 0; at < bytes; at++)
				if (between[k][at] != 'a' + k % 26)
					_exit(2);
			if (fgetc(streams[k]) != EOF || !feof(streams[k]))
				_exit(3);
		}
		_exit(0);
	}
}

/* --- another network, and an environment in the heap --- */

static void environment_in_the_heap(void)
{
	size_t bytes = 12000;
	char *value = malloc(bytes + 1);
	memset(value, 'x', bytes);
	value[bytes] = 0;
	MUST(setenv("PATH", value, 1) == 0);
	const char *kept = getenv("PATH");
	push_out_part(kept, bytes, "the environment");
	MUST(unshare(CLONE_NEWNET) == 0);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		const char *found = getenv("PATH");
		_exit(!found || strcmp(found, value) != 0);
	}
	MUST(child_of(child) == 0);
}

/* --- another pid namespace --- */

/* A fork waits for who has the list of streams. */
static ssize_t writes_slowly(void *cookie, const char *text, size_t bytes)
{
	(void)text;
	*(volatile int *)cookie = 1;
	sleep_ms(400);
	return (ssize_t)bytes;
}

static volatile int is_writing;

static void *flushes_all(void *stream)
{
	MUST(fputs("text", stream) != EOF && fflush(NULL) == 0);
	return NULL;
}

static void slow_fork_in_a_pid_namespace(void)
{
	memory = map(HELD);
	fill(memory, HELD, 65);
	push_out(memory, HELD, "before the fork");
	MUST(unshare(CLONE_NEWPID) == 0);
	pid_t first = fork();
	MUST(first >= 0);
	if (first == 0) {
		push_out(memory, HELD, "in the namespace");
		FILE *stream = fopencookie((void *)&is_writing, "w", (cookie_io_functions_t){ .write = writes_slowly });
		pthread_t thread;
		MUST(stream && pthread_create(&thread, NULL, flushes_all, stream) == 0);
		while (!is_writing)
			sleep_ms(1);
		pid_t child = fork();
		if (child == 0) {
			check(memory, HELD, 65, "in the child");
			_exit(0);
		}
		_exit(child < 0 || child_of(child) != 0 || pthread_join(thread, NULL) != 0);
	}
	MUST(child_of(first) == 0);
}

/* What a child is asked about by a number that means another process, or none, where its maker is. */
static void child_of_another_namespace_keeps_what_it_has(void)
{
	memory = map(HELD);
	fill(memory, HELD, 66);
	push_out(memory, HELD, "before the forks");
	MUST(unshare(CLONE_NEWPID) == 0);
	pid_t init = fork();
	MUST(init >= 0);
	if (init == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	for (int n = 0; n < 3; n++) {
		int go[2];
		MUST(pipe(go) == 0);
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0) {
			char word;
			MUST(read(go[0], &word, 1) == 1);
			check(memory, HELD, 66 + (uint64_t)n, "in the child");
			_exit(0);
		}
		for (int round = 1; round < 3; round++)
			fill(memory, HELD, 66 + (uint64_t)n + (uint64_t)(round == 1 ? 100 : 1));
		push_out(memory, HELD, "written anew");
		sleep_ms(300);
		MUST(write(go[1], "g", 1) == 1);
		MUST(child_of(child) == 0);
		close(go[0]);
		close(go[1]);
	}
	MUST(kill(init, SIGKILL) == 0);
	child_of(init);
}

/*
 * A key is for all of a group: for a process as it is before its fork, or for it and its child. The group of a process that forks gets
 * one at some moment of the fork; nobody of it lives on.
 */
static void key_while_forking(void)
{
	for (int round = 0; round < 12; round++) {
		int said[2];
		MUST(pipe(said) == 0);
		pid_t leader = forked();
		if (leader == 0) {
			MUST(setpgid(0, 0) == 0 && signal(SIGINT, SIG_DFL) != SIG_ERR);
			char *held = map(HELD);
			fill(held, HELD, 70);
			push_out(held, HELD, "before the key");
			MUST(write(said[1], "F", 1) == 1);
			pid_t child = fork();
			if (child == 0) {
				sleep_ms(1500);
				MUST(write(said[1], "L", 1) == 1);
				_exit(0);
			}
			child_of(child);
			_exit(0);
		}
		close(said[1]);
		char word = 0;
		MUST(read(said[0], &word, 1) == 1 && word == 'F');
		struct timespec moment = { .tv_nsec = round * 900000 };
		nanosleep(&moment, NULL);
		MUST(kill(-leader, SIGINT) == 0);
		if (read(said[0], &word, 1) == 1)
			bad("a child lives on after a key, %.1f ms after the fork began", round * 0.9);
		int status;
		MUST(waitpid(leader, &status, 0) == leader);
		MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
		close(said[0]);
	}
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "handler-forks", handler_forks_too },
		{ "handler-in-the-child", handler_in_the_child },
		{ "masks", masks_of_handlers_nest },
		{ "thread-gone", thread_gone_at_once },
		{ "thread-ends", threads_end_in_all_ways },
		{ "guards-over-a-hole", guards_over_a_hole },
		{ "low-mapping", low_mapping_keeps_its_size },
		{ "streams", streams_in_swapped_memory },
		{ "environment", environment_in_the_heap },
		{ "key-while-forking", key_while_forking },
		{ "slow-fork", slow_fork_in_a_pid_namespace },
		{ "namespace-child", child_of_another_namespace_keeps_what_it_has },
	};
	return RUN_CASE(argc, argv, cases);
}
