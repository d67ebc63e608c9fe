/* Threads, signals and loaded libraries, with their memory swapped out. */
#include "cases.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <ucontext.h>

/* --- threads --- */

enum { THREADS = 8 };
static size_t part = 12 * MiB;
static char *parts;
static uint64_t sums[THREADS];
static __thread uint64_t local[8192];

static void *random_access(void *argument)
{
	size_t me = (size_t)argument;
	char *mine = parts + me * part;
	uint64_t r = me + 1, version[64] = { 0 };
	fill(mine, part, me);
	for (size_t k = 0; k < 8192; k++)
		local[k] = mix(me * 8192 + k);
	/* Rewrites one of 64 stripes, then reads another, by chance. */
	for (int step = 0; step < 300; step++) {
		r = mix(r + 1);
		size_t stripe = r % 64, other = (r >> 8) % 64, pages = part / PAGE / 64;
		version[stripe]++;
		for (size_t k = 0; k < pages; k++)
			fill_page((uint64_t *)(mine + (stripe * pages + k) * PAGE), me + 1000 * version[stripe], k);
		for (size_t k = 0; k < pages; k++) {
			uint64_t *words = (uint64_t *)(mine + (other * pages + k) * PAGE);
			size_t wrong = version[other] ? wrong_word(words, me + 1000 * version[other], k)
						      : wrong_word(words, me, other * pages + k);
			if (wrong < WORDS)
				bad("thread %zu stripe %zu page %zu", me, other, k);
			sums[me] = sums[me] * 31 + words[wrong % WORDS];
		}
	}
	for (size_t k = 0; k < 8192; k++)
		MUST(local[k] == mix(me * 8192 + k));
	return argument;
}

static void many_threads(void)
{
	pthread_t threads[THREADS];
	uint64_t sum = 0;
	parts = map(THREADS * part);
	for (size_t k = 0; k < THREADS; k++)
		MUST(pthread_create(&threads[k], NULL, random_access, (void *)k) == 0);
	for (size_t k = 0; k < THREADS; k++) {
		void *result;
		MUST(pthread_join(threads[k], &result) == 0 && result == (void *)k);
		sum = sum * 31 + sums[k];
	}
	printf("%016lx\n", (unsigned long)sum);
}

/* All threads read and write the same pages; faults on one page meet. */
static uint64_t *common;
static pthread_barrier_t together;
static void *same_pages(void *argument)
{
	size_t pages = 64 * MiB / PAGE;
	for (int round = 0; round < 3; round++) {
		for (size_t k = 0; k < pages; k++)
			__atomic_add_fetch(common + k * WORDS + k % WORDS, 1, __ATOMIC_RELAXED);
		pthread_barrier_wait(&together);
		if (!argument)
			ballast();
		pthread_barrier_wait(&together);
	}
	return NULL;
}

static void same_page(void)
{
	pthread_t threads[4];
	common = map(64 * MiB);
	pthread_barrier_init(&together, NULL, 4);
	for (size_t k = 0; k < 4; k++)
		MUST(pthread_create(&threads[k], NULL, same_pages, (void *)k) == 0);
	for (size_t k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	for (size_t k = 0; k < 64 * MiB / 8; k++)
		if (common[k] != (k % WORDS == k / WORDS % WORDS ? 12 : 0))
			bad("word %zu is %lu", k, (unsigned long)common[k]);
}

/* Mutexes, condition variables, semaphores and a robust mutex that live in swapped memory. */
struct post_office {
	char before[512 * 1024];
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	sem_t semaphore;
	long turn;
	char after[512 * 1024];
};
static struct post_office *office;

static void *take_turns(void *argument)
{
	long me = (long)argument;
	for (long k = 0; k < 2000; k++) {
		MUST(pthread_mutex_lock(&office->mutex) == 0);
		while (office->turn % 4 != me)
			MUST(pthread_cond_wait(&office->changed, &office->mutex) == 0);
		office->turn++;
		MUST(pthread_cond_broadcast(&office->changed) == 0);
		MUST(pthread_mutex_unlock(&office->mutex) == 0);
	}
	MUST(sem_post(&office->semaphore) == 0);
	return NULL;
}

static void synchronisation(void)
{
	pthread_t threads[4];
	size_t size = (sizeof *office + PAGE - 1) & ~(PAGE - 1);
	office = map(size);
	memset(office->before, 1, sizeof office->before);
	memset(office->after, 2, sizeof office->after);
	pthread_mutex_init(&office->mutex, NULL);
	pthread_cond_init(&office->changed, NULL);
	sem_init(&office->semaphore, 0, 0);
	char *p = swapped(SIZE, 1, "synchronisation");
	for (long k = 0; k < 4; k++)
		MUST(pthread_create(&threads[k], NULL, take_turns, (void *)k) == 0);
	for (int k = 0; k < 6; k++)
		ballast();
	for (int k = 0; k < 4; k++)
		MUST(sem_wait(&office->semaphore) == 0);
	for (int k = 0; k < 4; k++)
		MUST(pthread_join(threads[k], NULL) == 0);
	MUST(office->turn == 8000);
	check(p, SIZE, 1, "synchronisation");
}

static void *to_cancel(void *argument)
{
	for (;;) {
		ballast();
		pthread_testcancel();
	}
	return argument;
}

/* pthread_cancel uses signal 32. Threads are made and ended by the hundred. */
static void *short_life(void *argument)
{
	char *p = argument;
	for (size_t k = 0; k < MiB / PAGE; k++)
		MUST(wrong_word((uint64_t *)(p + k * PAGE), 2, k) == WORDS);
	return malloc(100000);
}

static void cancel(void)
{
	pthread_t thread, many[16];
	void *result;
	char *p = swapped(SIZE, 2, "cancel");
	MUST(pthread_create(&thread, NULL, to_cancel, NULL) == 0);
	sleep_ms(200);
	MUST(pthread_cancel(thread) == 0);
	MUST(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	for (int round = 0; round < 20; round++) {
		for (int k = 0; k < 16; k++)
			MUST(pthread_create(&many[k], NULL, short_life, p) == 0);
		for (int k = 0; k < 16; k++) {
			MUST(pthread_join(many[k], &result) == 0);
			free(result);
		}
	}
	check(p, SIZE, 2, "cancel");
}

/* --- fork in a multi-threaded program --- */

static volatile int stop;
static void *allocate(void *argument)
{
	enum { N = 400 };
	static __thread struct { unsigned char *p; size_t n; } slots[N];
	uint64_t r = (uint64_t)(size_t)argument + 77;
	for (uint64_t step = 0; !stop; step++) {
		r = mix(r + 1);
		size_t k = r % N;
		if (slots[k].p) {
			if (slots[k].p[0] != (unsigned char)k || slots[k].p[slots[k].n - 1] != (unsigned char)slots[k].n)
				bad("slot %zu of an allocating thread", k);
			free(slots[k].p);
		}
		slots[k].n = 1 + (r >> 20) % 120000;
		slots[k].p = malloc(slots[k].n);
		memset(slots[k].p, (int)(unsigned char)slots[k].n, slots[k].n);
		slots[k].p[0] = (unsigned char)k;
		if (slots[k].n == 1)
			slots[k].n = 0, free(slots[k].p), slots[k].p = NULL;
	}
	return NULL;
}

static void fork_threads(void)
{
	pthread_t threads[4];
	char *p = swapped(48 * MiB, 3, "fork beside threads");
	for (size_t k = 0; k < 4; k++)
		MUST(pthread_create(&threads[k], NULL, allocate, (void *)k) == 0);
	for (int round = 0; round < 12; round++) {
		pid_t child = forked();
		if (!child) {
			for (int k = 0; k < 200; k++) {
				char *q = malloc(100000);
				memset(q, k, 100000);
				free(q);
			}
			check(p, 48 * MiB, 3, "child beside threads");
			if (round % 2)
				_exit(0);
			char *argv[] = { "true", NULL };
			execvp("true", argv);
			_exit(127);
		}
		must_succeed(child, "child beside threads");
		if (round % 4 == 0)
			push_out(p, 48 * MiB, "between forks");
	}
	stop = 1;
	for (size_t k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	check(p, 48 * MiB, 3, "parent beside threads");
}

/* --- a thread whose control block has been cold for long when it ends --- */

/* Shared, so that the thread touches nothing that can be swapped out while it waits. */
static volatile int *may_end;

static void *end_untouched(void *argument)
{
	volatile int *flag = may_end;
	while (!*flag)
		;
	/* What libc does at last, without its last touch of the control block. */
	__asm__ volatile("syscall" : : "a"(SYS_exit), "D"(0) : "rcx", "r11", "memory");
	return argument;
}

/* Means something only without restartable sequences, for which the kernel touches the control block all the time. */
static void end_while_cold(void)
{
	may_end = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(may_end != MAP_FAILED);
	for (int round = 0; round < 4; round++) {
		pthread_t thread;
		struct timespec until;
		*may_end = 0;
		/* C11's threads are the same. */
		if (round % 2 == 0)
			MUST(thrd_create(&thread, (thrd_start_t)(void (*)(void))end_untouched, NULL) == thrd_success);
		else
			MUST(pthread_create(&thread, NULL, end_untouched, NULL) == 0);
		/* Its tid, which the kernel clears in the end, lies near the beginning. */
		char *block = (char *)((uintptr_t)thread / PAGE * PAGE);
		for (int pressure = 0; pressure < 5 && !pages_out(block, PAGE); pressure++)
			ballast();
		*may_end = 1;
		/* The join would bring the page in. */
		sleep_ms(200);
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += 10;
		int error = pthread_timedjoin_np(thread, NULL, &until);
		if (error)
			bad("round %d: join of a thread that has ended: %s", round, strerror(error));
	}
	char *p = swapped(32 * MiB, 3, "beside threads that have ended");
	check(p, 32 * MiB, 3, "beside threads that have ended");
}

/* fork by a thread that is not the first; its child is single-threaded and makes threads of its own. */
static void *fork_in_thread(void *argument)
{
	char *p = argument;
	for (int round = 0; round < 5; round++) {
		pid_t child = forked();
		if (!child) {
			pthread_t thread;
			void *result;
			MUST(pthread_create(&thread, NULL, short_life, p) == 0);
			MUST(pthread_join(thread, &result) == 0);
			fill(p, SIZE, 5);
			push_out(p, SIZE, "child of a thread");
			check(p, SIZE, 5, "child of a thread");
			exit(0);
		}
		must_succeed(child, "child of a thread");
	}
	return NULL;
}

static void fork_from_thread(void)
{
	pthread_t thread;
	char *p = swapped(SIZE, 2, "fork from a thread");
	MUST(pthread_create(&thread, NULL, fork_in_thread, p) == 0);
	MUST(pthread_join(thread, NULL) == 0);
	check(p, SIZE, 2, "fork from a thread");
}

/* pthread_atfork handlers of the program, which allocate and read swapped memory. */
static char *at_fork_memory;
static int handlers_run;
static void at_fork(void)
{
	free(malloc(1 << 20));
	for (size_t k = 0; k < SIZE / PAGE; k += 37)
		MUST(wrong_word((uint64_t *)(at_fork_memory + k * PAGE), 4, k) == WORDS);
	handlers_run++;
}

static void fork_handlers(void)
{
	at_fork_memory = swapped(SIZE, 4, "atfork");
	MUST(pthread_atfork(at_fork, at_fork, at_fork) == 0);
	for (int round = 0; round < 5; round++) {
		push_out(at_fork_memory, SIZE, "atfork");
		pid_t child = forked();
		if (!child) {
			MUST(handlers_run == 2 * round + 2);
			check(at_fork_memory, SIZE, 4, "child");
			_exit(0);
		}
		must_succeed(child, "child");
	}
	MUST(handlers_run == 10);
}

/* Blocks SIGUSR2 alone, or all that can be. */
static void *sees_signals(void *all)
{
	sigset_t mask;
	MUST(pthread_sigmask(SIG_BLOCK, NULL, &mask) == 0);
	for (int k = 1; k <= SIGRTMAX; k++) {
		if (k == SIGKILL || k == SIGSTOP || (k >= 32 && k < SIGRTMIN))
			continue;
		if (sigismember(&mask, k) != (all || k == SIGUSR2))
			bad("signal %d is%s blocked in a thread of a handler", k, sigismember(&mask, k) ? "" : " not");
	}
	return NULL;
}

static int threads_seen;

static void make_threads(void)
{
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, sees_signals, NULL) == 0 && pthread_join(thread, NULL) == 0);
	/* As libraries make a thread that is to get no signals. */
	sigset_t all, before;
	sigfillset(&all);
	MUST(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
	MUST(pthread_create(&thread, NULL, sees_signals, &all) == 0);
	MUST(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0 && pthread_join(thread, NULL) == 0);
	/* And by C11's function. */
	thrd_t another;
	MUST(thrd_create(&another, (thrd_start_t)(void *)sees_signals, NULL) == thrd_success);
	MUST(thrd_join(another, NULL) == thrd_success);
	threads_seen++;
}

/* Threads that handlers for forks make have the signals that their maker has outside of the fork. */
static void fork_handlers_make_threads(void)
{
	sigset_t one;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR2);
	MUST(pthread_sigmask(SIG_SETMASK, &one, NULL) == 0);
	MUST(pthread_atfork(make_threads, make_threads, make_threads) == 0);
	char *p = swapped(SIZE, 14, "before the fork");
	for (int round = 0; round < 3; round++) {
		pid_t child = forked();
		if (!child) {
			MUST(threads_seen == 2 * round + 2);
			sees_signals(NULL);
			check(p, SIZE, 14, "child");
			_exit(0);
		}
		must_succeed(child, "child");
		sees_signals(NULL);
	}
	make_threads();
}

/* --- signals --- */

static char *barrier_memory;
static volatile long barrier_hits;
static void on_segv(int signal, siginfo_t *info, void *context)
{
	(void)context;
	char *page = (char *)((uintptr_t)info->si_addr & ~(PAGE - 1));
	if (signal != SIGSEGV || page < barrier_memory || page >= barrier_memory + SIZE || info->si_code != SEGV_ACCERR)
		bad("signal %d code %d at %p", signal, info->si_code, info->si_addr);
	barrier_hits++;
	MUST(mprotect(page, PAGE, PROT_READ | PROT_WRITE) == 0);
}

/* A write barrier as garbage collectors have it: read-only memory, opened page by page in a SIGSEGV handler. */
static void write_barrier(void)
{
	stack_t alternate = { .ss_sp = map(64 * PAGE), .ss_size = 64 * PAGE };
	struct sigaction action = { .sa_sigaction = on_segv, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	MUST(sigaltstack(&alternate, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
	barrier_memory = swapped(SIZE, 6, "write barrier");
	MUST(mprotect(barrier_memory, SIZE, PROT_READ) == 0);
	for (size_t k = 0; k < SIZE / PAGE; k += 8) {
		MUST(wrong_word((uint64_t *)(barrier_memory + k * PAGE), 6, k) == WORDS);
		fill_page((uint64_t *)(barrier_memory + k * PAGE), 7, k);
	}
	MUST(barrier_hits == (long)(SIZE / PAGE / 8));
	MUST(mprotect(barrier_memory, SIZE, PROT_READ | PROT_WRITE) == 0);
	push_out(barrier_memory, SIZE, "write barrier");
	for (size_t k = 0; k < SIZE / PAGE; k++)
		MUST(wrong_word((uint64_t *)(barrier_memory + k * PAGE), k % 8 ? 6 : 7, k) == WORDS);
}

/* The alternate stack itself is swapped out when the signal comes: the kernel writes the frame there. */
static volatile int deep_signals;
static void on_user(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	volatile char frame[200 * 1024];
	for (size_t k = 0; k < sizeof frame; k += 4096)
		frame[k] = (char)k;
	deep_signals += info->si_value.sival_int;
}

static void alternate_stack(void)
{
	size_t size = 32 * MiB;
	char *stack = swapped(size, 8, "alternate stack");
	stack_t alternate = { .ss_sp = stack, .ss_size = size };
	struct sigaction action = { .sa_sigaction = on_user, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	MUST(sigaltstack(&alternate, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	for (int k = 1; k <= 20; k++) {
		push_out(stack + size / 2, size / 2, "alternate stack");
		MUST(sigqueue(getpid(), SIGUSR1, (union sigval){ k }) == 0);
	}
	MUST(deep_signals == 210);
	check(stack, size / 2, 8, "below the alternate stack");
}

static volatile long ticks;
static void on_alarm(int signal)
{
	(void)signal;
	int saved = errno;
	ticks++;
	errno = saved;
}

/* A timer interrupts swapped work a thousand times a second; its handler must run in the program's thread. */
static pthread_t main_thread;
static volatile int wrong_thread;
static void on_profile(int signal)
{
	(void)signal;
	if (!pthread_equal(pthread_self(), main_thread))
		wrong_thread = 1;
	ticks++;
}

static void timers(void)
{
	struct sigaction alarm = { .sa_handler = on_alarm, .sa_flags = SA_RESTART },
			 profile = { .sa_handler = on_profile, .sa_flags = SA_RESTART };
	struct itimerval every = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
	main_thread = pthread_self();
	MUST(sigaction(SIGALRM, &alarm, NULL) == 0 && sigaction(SIGPROF, &profile, NULL) == 0);
	MUST(setitimer(ITIMER_REAL, &every, NULL) == 0 && setitimer(ITIMER_PROF, &every, NULL) == 0);
	for (uint64_t k = 0; k < 4; k++) {
		char *p = swapped(SIZE, 9 + k, "timers");
		check(p, SIZE, 9 + k, "timers");
		MUST(munmap(p, SIZE) == 0);
	}
	MUST(setitimer(ITIMER_REAL, &never, NULL) == 0 && setitimer(ITIMER_PROF, &never, NULL) == 0);
	MUST(ticks > 50 && !wrong_thread);
}

/* A process-directed signal that all threads of the program block stays pending; sigwait gets it. */
static void blocked_signals(void)
{
	sigset_t set, pending;
	int got;
	struct sigaction action = { .sa_handler = on_alarm }; /* would count a delivery to a foreign thread */
	MUST(sigaction(SIGTERM, &action, NULL) == 0 && sigaction(SIGUSR2, &action, NULL) == 0);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGUSR2);
	MUST(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	char *p = swapped(SIZE, 13, "blocked signals");
	for (int k = 0; k < 100; k++) {
		MUST(kill(getpid(), SIGTERM) == 0);
		if (k % 25 == 0)
			push_out(p, SIZE, "blocked signals");
		MUST(sigpending(&pending) == 0 && sigismember(&pending, SIGTERM));
		MUST(sigwait(&set, &got) == 0 && got == SIGTERM);
	}
	MUST(ticks == 0);
	/* The mask is inherited as it was, and not ours. */
	sigset_t now_blocked;
	MUST(pthread_sigmask(SIG_BLOCK, NULL, &now_blocked) == 0);
	for (int k = 1; k < 32; k++)
		MUST(sigismember(&now_blocked, k) == (k == SIGTERM || k == SIGUSR2));
	check(p, SIZE, 13, "blocked signals");
}

/* siglongjmp out of handlers, deep in swapped work; SIGCHLD; ignored signals. */
static sigjmp_buf back;
static volatile int jumps, children_ended;
static void on_jump(int signal) { (void)signal; jumps++; siglongjmp(back, 1); }
static void on_child(int signal)
{
	(void)signal;
	int saved = errno;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		children_ended++;
	errno = saved;
}

static void jumping(void)
{
	struct sigaction jump = { .sa_handler = on_jump }, child = { .sa_handler = on_child, .sa_flags = SA_RESTART };
	MUST(sigaction(SIGALRM, &jump, NULL) == 0 && sigaction(SIGCHLD, &child, NULL) == 0);
	signal(SIGPIPE, SIG_IGN);
	char *p = swapped(SIZE, 14, "jumping");
	volatile int rounds = 0;
	while (rounds < 100) {
		if (!sigsetjmp(back, 1)) {
			struct itimerval once = { { 0, 0 }, { 0, 500 + rounds * 37 } };
			setitimer(ITIMER_REAL, &once, NULL);
			for (;;)
				check(p, SIZE, 14, "interrupted check");
		}
		rounds++;
	}
	MUST(jumps == 100);
	for (int k = 0; k < 10; k++) {
		pid_t pid = forked();
		if (!pid) {
			MUST(wrong_word((uint64_t *)p, 14, 0) == WORDS);
			_exit(0);
		}
	}
	for (int k = 0; children_ended < 10 && k < 1000; k++)
		sleep_ms(10);
	MUST(children_ended == 10);
	int pair[2];
	MUST(pipe(pair) == 0 && close(pair[0]) == 0 && write(pair[1], p, 1) == -1 && errno == EPIPE);
	check(p, SIZE, 14, "jumping");
}

/* --- libraries loaded late --- */

static void load(void)
{
	char *p = swapped(48 * MiB, 15, "dlopen");
	for (int round = 0; round < 5; round++) {
		void *library = dlopen("./plugin.so", RTLD_NOW | RTLD_LOCAL);
		if (!library)
			bad("dlopen: %s", dlerror());
		size_t (*size)(void) = (size_t (*)(void))dlsym(library, "plugin_size");
		void *(*memory)(void) = (void *(*)(void))dlsym(library, "plugin_memory");
		uint64_t (*local_sum)(void) = (uint64_t (*)(void))dlsym(library, "plugin_local_sum");
		MUST(size && memory && local_sum);
		check_zero(memory(), size(), "plugin's .bss");
		fill(memory(), size(), 16 + (uint64_t)round);
		MUST(local_sum() == 8192u * 8191u / 2);
		push_out(memory(), size(), "plugin's .bss");
		check(memory(), size(), 16 + (uint64_t)round, "plugin's .bss");
		MUST(dlclose(library) == 0);
		push_out(p, 48 * MiB, "between loads");
	}
	check(p, 48 * MiB, 15, "dlopen");
}

/* So many handlers that libc's list of them is in its heap, which is out when it forks; and its own calls fork, too. */
static void nothing(void) {}

static void many_fork_handlers(void)
{
	for (int k = 0; k < 60; k++)
		MUST(pthread_atfork(nothing, nothing, nothing) == 0);
	/* Just below the budget: what is old when the fork makes room is out in the child. */
	size_t size = 58 * MiB;
	char *p = map(size);
	fill(p, size, 21);
	sleep_ms(300);
	int ends[2];
	MUST(pipe(ends) == 0);
	pid_t child = forked();
	if (!child) {
		MUST(daemon(1, 1) == 0);
		check(p, size, 21, "in the daemon");
		MUST(write(ends[1], "!", 1) == 1);
		_exit(0);
	}
	close(ends[1]);
	must_succeed(child, "who makes the daemon");
	char byte;
	MUST(read(ends[0], &byte, 1) == 1);
	MUST(munmap(p, size) == 0);
	p = swapped(SIZE, 20, "of many handlers");
	for (int k = 0; k < 5; k++) {
		child = forked();
		if (!child) {
			check(p, SIZE, 20, "in the child");
			_exit(0);
		}
		must_succeed(child, "child");
		ballast();
	}
}

/* A library whose constructor waits for a thread, which runs while the loader's lock is held. */
static void constructor_waits(void)
{
	alarm(20);
	MUST(dlopen("./waits.so", RTLD_NOW));
	char *p = swapped(SIZE, 24, "of who has loaded it");
	check(p, SIZE, 24, "of who has loaded it");
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "threads", many_threads },	      { "same-page", same_page },
		{ "synchronisation", synchronisation }, { "cancel", cancel },
		{ "end-while-cold", end_while_cold },
		{ "fork-threads", fork_threads },     { "fork-from-thread", fork_from_thread },
		{ "fork-handler-threads", fork_handlers_make_threads },
		{ "fork-handlers", fork_handlers },   { "write-barrier", write_barrier },
		{ "many-fork-handlers", many_fork_handlers },
		{ "constructor-waits", constructor_waits },
		{ "alternate-stack", alternate_stack }, { "timers", timers },
		{ "blocked-signals", blocked_signals }, { "jumping", jumping },
		{ "dlopen", load },
	};
	return RUN_CASE(argc, argv, cases);
}
