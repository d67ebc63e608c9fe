/* How processes begin, change and end while their memory is swapped out. */
#include "cases.h"
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <dirent.h>

extern char **environ;
static char **arguments;

/* --- fork --- */

static void fork_simple(void)
{
	char *p = swapped(SIZE, 1, "before fork");
	pid_t child = forked();
	if (!child) {
		check(p, SIZE, 1, "child");
		fill(p, SIZE, 2);
		push_out(p, SIZE, "child");
		check(p, SIZE, 2, "child, rewritten");
		exit(0);
	}
	for (size_t k = 0; k < SIZE / PAGE; k += 3)
		fill_page((uint64_t *)(p + k * PAGE), 3, k);
	ballast();
	must_succeed(child, "child");
	for (size_t k = 0; k < SIZE / PAGE; k++)
		MUST(wrong_word((uint64_t *)(p + k * PAGE), k % 3 ? 1 : 3, k) == WORDS);
}

/* The parent ends first; the child goes on reading what the parent swapped out. */
static void fork_orphan(void)
{
	int report[2];
	char *p = swapped(SIZE, 4, "before fork");
	MUST(pipe(report) == 0);
	pid_t middle = forked();
	if (!middle) {
		push_out(p, SIZE, "middle");
		pid_t grandchild = forked();
		if (grandchild)
			_exit(0);
		while (getppid() == 1 || kill(getppid(), 0))
			break;
		sleep_ms(200);
		check(p, SIZE, 4, "orphan");
		fill(p, SIZE, 5);
		push_out(p, SIZE, "orphan");
		check(p, SIZE, 5, "orphan, rewritten");
		MUST(write(report[1], "done", 4) == 4);
		_exit(0);
	}
	close(report[1]);
	must_succeed(middle, "middle");
	char text[5] = "";
	ssize_t n = read(report[0], text, 4);
	if (n != 4)
		bad("the orphan reported %zd bytes", n);
	MUST(read(report[0], text, 1) == 0);
	check(p, SIZE, 4, "first");
}

/* Many children in a row and several at once, each with a part of its own to change. */
static void fork_many(void)
{
	size_t size = 48 * MiB;
	char *p = swapped(size, 6, "before fork");
	for (int round = 0; round < 8; round++) {
		pid_t children[3];
		for (int c = 0; c < 3; c++) {
			children[c] = forked();
			if (!children[c]) {
				for (size_t k = (size_t)c; k < size / PAGE; k += 3)
					fill_page((uint64_t *)(p + k * PAGE), 100 + (uint64_t)c, k);
				for (size_t k = 0; k < size / PAGE; k++)
					MUST(wrong_word((uint64_t *)(p + k * PAGE),
							k % 3 == (size_t)c ? 100 + (uint64_t)c : 6, k) == WORDS);
				_exit(c);
			}
		}
		for (int c = 0; c < 3; c++)
			MUST(status_of(children[c]) == c);
		check(p, size, 6, "after the children");
		ballast();
	}
}

/* Forks, one after the other, while another thread makes a small process a large one: the first ones come before there is
 * anything to follow, the last ones while most is swapped out. Each child has a child, and each eighth grows by itself. */
static char *growing;
static volatile size_t grown;
static volatile int forks_made;

static void *grow(void *unused)
{
	(void)unused;
	for (size_t k = 0; k < SIZE / PAGE; k++) {
		/* On a busy machine a fork takes long: there is one to each eighth of the memory. */
		while (__atomic_load_n(&forks_made, __ATOMIC_ACQUIRE) < (int)(k * 8 / (SIZE / PAGE)))
			usleep(1000);
		fill_page((uint64_t *)(growing + k * PAGE), 12, k);
		__atomic_store_n(&grown, k + 1, __ATOMIC_RELEASE);
		if (k % 64 == 63)
			usleep(1500);
	}
	return NULL;
}

static void check_grown(size_t pages, size_t step)
{
	for (size_t k = 0; k < pages; k += step)
		if (wrong_word((uint64_t *)(growing + k * PAGE), 12, k) < WORDS)
			bad("page %zu of %zu", k, pages);
}

static void fork_growing(void)
{
	pthread_t thread;
	growing = map(SIZE);
	MUST(!pthread_create(&thread, NULL, grow, NULL));
	int forks = 0;
	for (size_t pages = 0; pages < SIZE / PAGE; forks++) {
		pages = __atomic_load_n(&grown, __ATOMIC_ACQUIRE);
		pid_t child = forked();
		if (!child) {
			pid_t grandchild = forked();
			if (!grandchild) {
				check_grown(pages, 61);
				_exit(3);
			}
			if (forks % 8 == 7) {
				char *own = map(24 * MiB);
				fill(own, 24 * MiB, 13);
				check(own, 24 * MiB, 13, "a child's own");
			}
			check_grown(pages, 17);
			MUST(status_of(grandchild) == 3);
			_exit(4);
		}
		MUST(status_of(child) == 4);
		__atomic_store_n(&forks_made, forks + 1, __ATOMIC_RELEASE);
	}
	MUST(!pthread_join(thread, NULL));
	MUST(forks >= 8);
	check_grown(SIZE / PAGE, 1);
}

/* Copy-on-write through three generations: every process checks every page, changes its seventh of the
 * words' pages, and both parent and child change on after the fork. */
static uint64_t history[8];
static int depth;
static uint64_t owner_seed(size_t page)
{
	for (int d = depth; d > 0; d--)
		if (page % 7 == (size_t)d && history[d])
			return history[d];
	return 7;
}

static void check_generation(const char *p, size_t size, const char *what)
{
	for (size_t k = 0; k < size / PAGE; k++)
		if (wrong_word((const uint64_t *)(p + k * PAGE), owner_seed(k), k) < WORDS)
			bad("generation %d, %s, page %zu", depth, what, k);
}

static void change_generation(char *p, size_t size, uint64_t seed)
{
	history[depth] = seed;
	for (size_t k = (size_t)depth; k < size / PAGE; k += 7)
		fill_page((uint64_t *)(p + k * PAGE), seed, k);
}

static void generations(char *p, size_t size)
{
	for (int k = 0; k < 2; k++) {
		pid_t child = forked();
		if (!child) {
			depth++;
			check_generation(p, size, "at birth");
			change_generation(p, size, (uint64_t)(1000 * depth + k));
			check_generation(p, size, "changed");
			if (depth < 3)
				generations(p, size);
			check_generation(p, size, "at the end");
			_exit(0);
		}
		if (depth)
			change_generation(p, size, (uint64_t)(7000 + 10 * depth + k));
		must_succeed(child, "generation");
		check_generation(p, size, "after a child");
	}
}

static void fork_generations(void)
{
	size_t size = env_number("USWAP_E2E_GENERATIONS_MIB", 48) * MiB;
	char *p = swapped(size, 7, "before fork");
	generations(p, size);
	check_generation(p, size, "end");
}

/* fork(2) by the system call, round libc. The child may see everything, or be stopped; it must not see zeros. */
static void fork_round_libc(char *p)
{
	for (int how = 0; how < 2; how++) {
		fflush(stdout);
		long child = how ? syscall(SYS_fork) : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
		if (child == 0) {
			for (size_t k = 0; k < SIZE / PAGE; k++)
				if (wrong_word((uint64_t *)(p + k * PAGE), 8, k) < WORDS)
					_exit(66);
			_exit(0);
		}
		if (child < 0)
			continue;
		int status = status_of((pid_t)child);
		if (status && status != 128 + SIGSEGV && status != 128 + SIGBUS && status != 128 + SIGKILL)
			bad("the child of a raw clone ended with %d%s", status, status == 66 ? ": it read wrong data" : "");
		check(p, SIZE, 8, "parent");
	}
}

static void raw_fork(void)
{
	fork_round_libc(swapped(SIZE, 8, "before clone(2)"));
}

/* By a child that libc has made, at once and later. */
static void raw_fork_of_child(void)
{
	char *p = swapped(SIZE, 8, "before fork");
	for (int late = 0; late < 2; late++) {
		pid_t child = forked();
		if (!child) {
			usleep(late ? 300000 : 0);
			fork_round_libc(p);
			_exit(0);
		}
		must_succeed(child, "child");
	}
}

/* As a sandbox does it: a child that libc did not make, which forks by libc. */
static void raw_fork_forks(void)
{
	char *p = map(MiB);
	fill(p, MiB, 9);
	fflush(stdout);
	long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	MUST(child >= 0);
	if (child == 0) {
		pid_t grandchild = fork();
		MUST(grandchild >= 0);
		check(p, MiB, 9, "a generation that goes round libc");
		if (!grandchild)
			_exit(0);
		must_succeed(grandchild, "grandchild");
		_exit(0);
	}
	must_succeed((pid_t)child, "child of a raw clone");
	char *q = swapped(SIZE, 10, "after the raw clone");
	child = forked();
	if (!child) {
		check(q, SIZE, 10, "child");
		_exit(0);
	}
	must_succeed((pid_t)child, "child");
	check(q, SIZE, 10, "parent");
}

static void wait_for(const char *path)
{
	for (int k = 0; access(path, F_OK); k++) {
		if (k == 1000)
			bad("%s never came", path);
		sleep_ms(10);
	}
}

/* daemon(3): fork, the parent gone by _exit, a new session, descriptors onto /dev/null. */
static void daemonize(void)
{
	char *p = swapped(SIZE, 9, "before daemon");
	unlink("daemon-done");
	pid_t child = forked();
	if (!child) {
		MUST(daemon(1, 0) == 0);
		check(p, SIZE, 9, "daemon");
		fill(p, SIZE, 10);
		push_out(p, SIZE, "daemon");
		check(p, SIZE, 10, "daemon, rewritten");
		int fd = open("daemon-tmp", O_CREAT | O_WRONLY, 0600);
		MUST(fd >= 0 && rename("daemon-tmp", "daemon-done") == 0);
		_exit(0);
	}
	must_succeed(child, "daemon's parent");
	wait_for("daemon-done");
	check(p, SIZE, 9, "first");
}

/* --- exec, vfork, spawn --- */

static void exec_again(void)
{
	const char *round = getenv("E2E_ROUND");
	int n = round ? atoi(round) : 0;
	char *p = swapped(SIZE, 20 + (uint64_t)n, "exec");
	check(p, SIZE, 20 + (uint64_t)n, "exec");
	push_out(p, SIZE, "exec");
	printf("round %d\n", n);
	if (n == 3)
		return;
	char next[16];
	snprintf(next, sizeof next, "%d", n + 1);
	setenv("E2E_ROUND", next, 1);
	fflush(stdout);
	execv("/proc/self/exe", arguments);
	bad("exec: %s", strerror(errno));
}

static void *exec_thread(void *unused)
{
	exec_again();
	return unused;
}

/* exec from a thread that is not the first: every other thread is gone by it. */
static void exec_from_thread(void)
{
	pthread_t thread;
	if (getenv("E2E_ROUND") && !strcmp(getenv("E2E_ROUND"), "3")) {
		exec_again();
		return;
	}
	MUST(pthread_create(&thread, NULL, exec_thread, NULL) == 0);
	pthread_join(thread, NULL);
}

/* A failed exec leaves the process as it was. */
static void exec_failed(void)
{
	char *p = swapped(SIZE, 30, "failed exec");
	for (int k = 0; k < 20; k++) {
		MUST(execl("/nonexistent/program", "x", NULL) == -1 && errno == ENOENT);
		MUST(execl("/proc/self/maps", "x", NULL) == -1 && errno == EACCES);
	}
	push_out(p, SIZE, "failed exec");
	check(p, SIZE, 30, "failed exec");
}

static void says(const char *what, long result)
{
	printf("%s: %ld %s\n", what, result, result == -1 ? strerror(errno) : "");
}

/* Of what the kernel cannot read it says so. */
static void unreadable_exec(void)
{
	/* Compilers see through what is plain. */
	static char *volatile low = (char *)8, *volatile null;
	char *argv[] = { "true", NULL }, *bad_text[] = { "A=b", low, NULL }, **nowhere = (char **)low;
	char *page = map(2 * PAGE), *p = swapped(SIZE, 43, "unreadable");
	MUST(munmap(page + PAGE, PAGE) == 0);
	/* An environment without an end, and one whose text ends with its page. */
	char **endless = (char **)(page + PAGE) - 1, *at_the_end[] = { strcpy(page + PAGE - 16, "A=b"), NULL };
	*endless = strcpy(page + PAGE - 12, "C=d");
	says("execve", execve("/bin/true", argv, nowhere));
	says("execve", execve("/bin/true", argv, bad_text));
	says("execve", execve("/bin/true", argv, endless));
	says("execve", execve(low, argv, bad_text + 2));
	says("execve", execve(null, argv, environ));
	says("execvpe", execvpe("true", argv, nowhere));
	says("fexecve", fexecve(open("/bin/true", O_RDONLY | O_CLOEXEC), argv, bad_text));
	says("fexecve", fexecve(open("/bin/true", O_RDONLY | O_CLOEXEC), argv, (char **)null));
	pid_t child;
	says("posix_spawn", posix_spawn(&child, "/bin/true", NULL, NULL, argv, nowhere) == EFAULT);
	says("clone3", syscall(435, low, 64));
	says("clone3", syscall(435, null, 64));
	MUST(posix_spawn(&child, "/bin/true", NULL, NULL, argv, at_the_end) == 0);
	must_succeed(child, "with a text at the end of its page");
	check(p, SIZE, 43, "unreadable");
}

static int small_stack_way;

/* As a handler that starts who is to tell of the crash. */
static void on_crash(int signal)
{
	(void)signal;
	char *argv[] = { "echo", "told", NULL }, *few[] = { "A=b", NULL };
	if (execve("/nonexistent/program", argv, few) == 0)
		_exit(1);
	pid_t child = small_stack_way & 1 ? vfork() : fork();
	if (!child) {
		if (small_stack_way < 2)
			execve("/bin/echo", argv, few);
		else if (small_stack_way < 4)
			execve("/bin/echo", argv, environ);
		else
			execvp("echo", argv);
		_exit(127);
	}
	int status;
	_exit(waitpid(child, &status, 0) != child || status);
}

/* The stack of such a handler holds two frames of the kernel's, of which the loader takes one when it binds a function. */
static void exec_on_a_small_stack(void)
{
	size_t size = (2 * (size_t)sysconf(_SC_MINSIGSTKSZ) + 2048) & ~(size_t)15;
	char *p = swapped(SIZE, 44, "small stack"), *guarded = map(PAGE + size);
	MUST(mprotect(guarded, PAGE, PROT_NONE) == 0);
	stack_t stack = { .ss_sp = guarded + PAGE, .ss_size = size };
	struct sigaction action = { .sa_handler = on_crash, .sa_flags = SA_ONSTACK };
	for (small_stack_way = 0; small_stack_way < 6; small_stack_way++) {
		pid_t child = forked();
		if (!child) {
			MUST(sigaltstack(&stack, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
			*(volatile char *)guarded = 1;
			_exit(1);
		}
		must_succeed(child, "crashed");
	}
	check(p, SIZE, 44, "small stack");
}

static void no_env_exec(void)
{
	char *p = swapped(32 * MiB, 31, "empty environment");
	/* uswap may add what it needs; what the program says must arrive, and what it leaves out must not. */
	char *argv[] = { "sh", "-c", "echo $ONLY ${HOME-none} ${TMPDIR-none}", NULL }, *none[] = { "ONLY=this", NULL };
	for (int k = 0; k < 4; k++) {
		pid_t child = forked();
		if (!child) {
			execve("/bin/sh", argv, none);
			_exit(127);
		}
		must_succeed(child, "sh");
	}
	check(p, 32 * MiB, 31, "empty environment");
}

static void spawn(void)
{
	char *p = swapped(SIZE, 32, "spawn");
	char *echo[] = { "echo", "spawned", NULL }, *missing[] = { "no-such-program", NULL };
	for (int k = 0; k < 20; k++) {
		pid_t child;
		fflush(stdout);
		MUST(posix_spawnp(&child, "echo", NULL, NULL, echo, environ) == 0);
		must_succeed(child, "posix_spawnp");
		MUST(posix_spawnp(&child, "no-such-program", NULL, NULL, missing, environ) == ENOENT);
		child = vfork();
		if (!child) {
			execlp("echo", "echo", "vforked", (char *)NULL);
			_exit(127);
		}
		must_succeed(child, "vfork");
		child = vfork();
		if (!child)
			_exit(k);
		MUST(status_of(child) == k);
		if (k % 5 == 0)
			push_out(p, SIZE, "spawn");
	}
	/* File actions, attributes, and the shell. */
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t all;
	sigfillset(&all);
	MUST(posix_spawn_file_actions_init(&actions) == 0 && posix_spawnattr_init(&attributes) == 0);
	MUST(posix_spawn_file_actions_addopen(&actions, 1, "spawn-out", O_CREAT | O_WRONLY | O_TRUNC, 0600) == 0);
	MUST(posix_spawnattr_setsigdefault(&attributes, &all) == 0);
	MUST(posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP) == 0);
	pid_t child;
	MUST(posix_spawnp(&child, "echo", &actions, &attributes, echo, environ) == 0);
	must_succeed(child, "posix_spawn with actions");
	char text[16] = "";
	int fd = open("spawn-out", O_RDONLY);
	MUST(fd >= 0 && read(fd, text, sizeof text - 1) == 8 && !strcmp(text, "spawned\n"));
	close(fd);
	MUST(system("exit 5") == 5 << 8);
	FILE *pipe = popen("echo from popen; exit 3", "r");
	MUST(pipe && fgets(text, sizeof text, pipe) && !strcmp(text, "from popen\n"));
	MUST(pclose(pipe) == 3 << 8);
	check(p, SIZE, 32, "spawn");
}

/* Shared memory that all have counts once, so there is room for what each has for itself. */
static void share(size_t common_bytes, size_t own_bytes, int count)
{
	enum { CHILDREN_MAX = 8 };
	pid_t children[CHILDREN_MAX];
	char *common = mmap(NULL, common_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(common != MAP_FAILED && count <= CHILDREN_MAX);
	fill(common, common_bytes, 40);
	for (int k = 0; k < count; k++) {
		children[k] = forked();
		if (!children[k]) {
			char *own = map(own_bytes);
			fill(own, own_bytes, (uint64_t)k);
			for (double from = now(); now() - from < 5;) {
				check(common, common_bytes, 40, "common");
				check(own, own_bytes, (uint64_t)k, "own");
			}
			_exit(0);
		}
	}
	for (int k = 0; k < count; k++)
		must_succeed(children[k], "child");
}

static void shared_by_all(void)
{
	share(40 * MiB, 4 * MiB, 8);
}

static void little_shared_by_all(void)
{
	share(3 * MiB, 3 * MiB, 6);
}

/* --- descriptors --- */

static void print_descriptors(const char *when)
{
	int fds[8], pair[2];
	fds[0] = open("/dev/null", O_RDONLY);
	MUST(pipe(pair) == 0);
	fds[1] = pair[0];
	fds[2] = pair[1];
	fds[3] = socket(AF_UNIX, SOCK_STREAM, 0);
	fds[4] = epoll_create1(0);
	fds[5] = eventfd(0, 0);
	fds[6] = dup(1);
	fds[7] = fcntl(1, F_DUPFD, 100);
	printf("%s:", when);
	for (int k = 0; k < 8; k++)
		printf(" %d", fds[k]);
	for (int k = 0; k < 8; k++)
		close(fds[k]);
	DIR *directory = opendir("/proc/self/fd");
	int count = 0, highest = 0;
	for (struct dirent *entry; (entry = readdir(directory));) {
		count++;
		if (atoi(entry->d_name) > highest)
			highest = atoi(entry->d_name);
	}
	closedir(directory);
	printf(" of %d, highest %d\n", count, highest);
}

static void descriptors(void)
{
	print_descriptors("start");
	char *p = swapped(SIZE, 40, "descriptors");
	print_descriptors("swapped");
	check(p, SIZE, 40, "descriptors");
	pid_t child = forked();
	if (!child) {
		push_out(p, SIZE, "child");
		print_descriptors("child");
		fflush(stdout);
		_exit(0);
	}
	must_succeed(child, "child");
}

static void close_everything(void)
{
	char *p = map(SIZE);
	int keep;
	for (int how = 0; how < 4; how++) {
		fill(p, SIZE, 41 + (uint64_t)how);
		push_out(p, SIZE, "before closing");
		pid_t child = forked();
		if (!child) {
			if (how == 0) {
				closefrom(3);
			} else if (how == 1) {
				MUST(syscall(SYS_close_range, 3, ~0u, 0) == 0);
			} else if (how == 2) {
				for (int fd = 3; fd < 65536; fd++)
					close(fd);
			} else {
				MUST(syscall(SYS_close_range, 0, ~0u, 2 /* CLOSE_RANGE_UNSHARE */) == 0);
			}
			check(p, SIZE, 41 + (uint64_t)how, "closed");
			fill(p, SIZE, 51 + (uint64_t)how);
			push_out(p, SIZE, "closed");
			check(p, SIZE, 51 + (uint64_t)how, "closed, rewritten");
			keep = open("/dev/null", O_RDONLY);
			_exit(keep == (how == 3 ? 0 : 3) ? 0 : 80 + keep);
		}
		must_succeed(child, "child that closes");
	}
	/* And the first process itself, standard descriptors included; only the status can tell. */
	MUST(syscall(SYS_close_range, 0, ~0u, 0) == 0);
	check(p, SIZE, 44, "all closed");
	fill(p, SIZE, 60);
	push_out(p, SIZE, "all closed");
	check(p, SIZE, 60, "all closed, rewritten");
	_exit(43);
}

/* A pipe ends when the program closes its last writer: nobody else may hold one. */
static void end_of_file(void)
{
	int data[2], early[2];
	char byte;
	MUST(pipe(early) == 0);
	char *p = swapped(SIZE, 61, "end of file");
	MUST(pipe(data) == 0);
	MUST(close(early[1]) == 0 && read(early[0], &byte, 1) == 0);
	pid_t child = forked();
	if (!child) {
		close(data[0]);
		push_out(p, SIZE, "writer");
		MUST(write(data[1], "x", 1) == 1);
		close(data[1]);
		sleep_ms(3000);
		_exit(0);
	}
	close(data[1]);
	double from = now();
	MUST(read(data[0], &byte, 1) == 1);
	from = now();
	MUST(read(data[0], &byte, 1) == 0);
	if (now() - from > 2)
		bad("end-of-file came only with the end of the process");
	must_succeed(child, "writer");
	check(p, SIZE, 61, "end of file");
}

/* --- identity --- */

static volatile int go_on = 1;
static void *churn(void *argument)
{
	size_t size = 16 * MiB;
	char *p = map(size);
	for (uint64_t round = 0; go_on; round++) {
		fill(p, size, 1000 * (uint64_t)(uintptr_t)argument + round);
		check(p, size, 1000 * (uint64_t)(uintptr_t)argument + round, "churning thread");
	}
	return NULL;
}

/* A multi-threaded program gives up root. glibc tells its threads by signal 33. */
static void change_uid(void)
{
	if (geteuid() != 0) {
		puts("not root");
		return;
	}
	pthread_t threads[3];
	char *p = swapped(SIZE, 62, "setuid");
	for (size_t k = 0; k < 3; k++)
		MUST(pthread_create(&threads[k], NULL, churn, (void *)(k + 1)) == 0);
	MUST(setgroups(0, NULL) == 0);
	MUST(setresgid(65534, 65534, 65534) == 0);
	MUST(setresuid(65534, 65534, 65534) == 0);
	MUST(setuid(0) == -1 && geteuid() == 65534);
	for (uint64_t k = 0; k < 3; k++) {
		push_out(p, SIZE, "nobody");
		check(p, SIZE, 62 + k, "nobody");
		fill(p, SIZE, 63 + k);
	}
	go_on = 0;
	for (size_t k = 0; k < 3; k++)
		pthread_join(threads[k], NULL);
	/* The child of a process that may not be dumped, and cannot read its own /proc files. */
	pid_t child = forked();
	if (!child) {
		check(p, SIZE, 65, "nobody's child");
		fill(p, SIZE, 66);
		push_out(p, SIZE, "nobody's child");
		check(p, SIZE, 66, "nobody's child, rewritten");
		_exit(0);
	}
	must_succeed(child, "nobody's child");
}

static void undumpable(void)
{
	MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	char *p = swapped(SIZE, 67, "undumpable");
	pid_t child = forked();
	if (!child) {
		check(p, SIZE, 67, "undumpable child");
		_exit(0);
	}
	must_succeed(child, "undumpable child");
	check(p, SIZE, 67, "undumpable");
}

static void directories(void)
{
	char *p = swapped(SIZE, 68, "chdir");
	MUST(chdir("/") == 0);
	if (geteuid() == 0)
		MUST(chroot("/proc/self") == 0 || errno == EPERM);
	umask(0777);
	for (uint64_t k = 0; k < 3; k++) {
		push_out(p, SIZE, "elsewhere");
		check(p, SIZE, 68 + k, "elsewhere");
		fill(p, SIZE, 69 + k);
	}
	pid_t child = forked();
	if (!child) {
		check(p, SIZE, 71, "child elsewhere");
		fill(p, SIZE, 72);
		push_out(p, SIZE, "child elsewhere");
		check(p, SIZE, 72, "child elsewhere");
		_exit(0);
	}
	must_succeed(child, "child elsewhere");
}

/* --- ways to end; the harness compares the status with that of a run without uswap --- */

static char *end_memory;
static void last_check(void)
{
	check(end_memory, SIZE, 80, "at exit");
	printf("exit handler\n");
}

static void *thread_exits(void *unused)
{
	(void)unused;
	exit(5);
}

static void *outlives_main(void *unused)
{
	sleep_ms(300);
	check(end_memory, SIZE, 80, "after main");
	push_out(end_memory, SIZE, "after main");
	check(end_memory, SIZE, 80, "after main, again");
	printf("last thread\n");
	return unused;
}

/* Nobody ends the process as a whole: with its last thread it is over. */
static void *ends_alone(void *unused)
{
	outlives_main(unused);
	fflush(stdout);
	syscall(SYS_exit, 7);
	return unused;
}

static void end(const char *how)
{
	pthread_t thread;
	end_memory = swapped(SIZE, 80, how);
	struct { const char *name; int signal; } signals[] = {
		{ "term", SIGTERM }, { "kill", SIGKILL }, { "segv", SIGSEGV }, { "int", SIGINT }, { "usr1", SIGUSR1 },
	};
	for (size_t k = 0; k < sizeof signals / sizeof *signals; k++)
		if (!strcmp(how, signals[k].name)) {
			fflush(stdout);
			raise(signals[k].signal);
			sleep_ms(1000);
		}
	if (!strcmp(how, "fault"))
		*(volatile int *)strtoul("8", NULL, 10) = 1;
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "_exit"))
		_exit(7);
	if (!strcmp(how, "exit_group"))
		syscall(SYS_exit_group, 8);
	atexit(last_check);
	if (!strcmp(how, "exit"))
		exit(9);
	if (!strcmp(how, "thread")) {
		MUST(pthread_create(&thread, NULL, thread_exits, NULL) == 0);
		sleep_ms(10000);
	}
	if (!strcmp(how, "pthread_exit")) {
		MUST(pthread_create(&thread, NULL, outlives_main, NULL) == 0);
		pthread_exit(NULL);
	}
	if (!strcmp(how, "alone")) {
		MUST(pthread_create(&thread, NULL, ends_alone, NULL) == 0);
		syscall(SYS_exit, 7);
	}
}

#define END(function, how) static void function(void) { end(how); }
END(end_term, "term")
END(end_kill, "kill")
END(end_segv, "segv")
END(end_int, "int")
END(end_usr1, "usr1")
END(end_fault, "fault")
END(end_abort, "abort")
END(end__exit, "_exit")
END(end_exit_group, "exit_group")
END(end_exit, "exit")
END(end_thread, "thread")
END(end_pthread_exit, "pthread_exit")
END(end_alone, "alone")
END(end_return, "return")

/* What the parent does with its memory right after a fork counts, although the fork is hardly over. */
static void fork_then_discard(void)
{
	size_t size = 24 * MiB, chunk = 16 * PAGE;
	char *p = map(size), *q = map(size);
	fill(p, size, 60);
	push_out_percent(p, size, 60, "before the forks");
	for (size_t at = 0; at < size; at += 2 * chunk) {
		pid_t child = fork();
		MUST(child >= 0);
		if (!child)
			_exit(0);
		MUST(madvise(p + at, chunk, MADV_DONTNEED) == 0);
		MUST(mremap(p + at + chunk, chunk, chunk, MREMAP_MAYMOVE | MREMAP_FIXED, q + at) == q + at);
		check_zero(p + at, chunk, "discarded after a fork");
		for (size_t k = 0; k < chunk / PAGE; k++)
			MUST(wrong_word((uint64_t *)(q + at + k * PAGE), 60, (at + chunk) / PAGE + k) == WORDS);
		must_succeed(child, "child");
	}
}

static void may_have(rlim_t descriptors)
{
	struct rlimit limit;
	MUST(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = descriptors;
	MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void work_on(char *p, const char *what)
{
	check(p, SIZE, 41, what);
	ballast();
	fill(p, SIZE, 42);
	ballast();
	check(p, SIZE, 42, what);
	fill(p, SIZE, 41);
}

/* A process that swaps takes away its own right to open files, as sandboxes do, and so do its children. */
static void no_more_descriptors(void)
{
	struct rlimit before;
	MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
	char *p = swapped(SIZE, 41, "before");
	for (rlim_t limit = 0; limit < 4; limit++) {
		pid_t child = forked();
		if (!child) {
			may_have(limit);
			work_on(p, "child");
			_exit(0);
		}
		must_succeed(child, "child");
	}
	for (rlim_t limit = 0; limit < 4; limit++) {
		may_have(limit);
		work_on(p, "without descriptors");
	}
	/* And has them again: what it forks now takes some. */
	may_have(before.rlim_cur);
	push_out(p, SIZE, "before the last fork");
	pid_t child = forked();
	if (!child) {
		may_have(0);
		work_on(p, "last child");
		_exit(0);
	}
	must_succeed(child, "last child");
	check(p, SIZE, 41, "parent");
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "fork", fork_simple },	    { "fork-orphan", fork_orphan },
		{ "fork-then-discard", fork_then_discard },
		{ "fork-many", fork_many },	    { "fork-growing", fork_growing },
			    { "fork-generations", fork_generations },
		{ "raw-fork", raw_fork },	    { "raw-fork-forks", raw_fork_forks }, { "raw-fork-of-child", raw_fork_of_child },
			    { "daemon", daemonize },
		{ "shared-by-all", shared_by_all }, { "little-shared-by-all", little_shared_by_all },
		{ "exec", exec_again },		    { "exec-from-thread", exec_from_thread },
		{ "exec-unreadable", unreadable_exec }, { "exec-small-stack", exec_on_a_small_stack },
		{ "exec-failed", exec_failed },	    { "exec-empty-environment", no_env_exec },
		{ "spawn", spawn },		    { "no-descriptors", no_more_descriptors }, { "descriptors", descriptors },
		{ "close-everything", close_everything }, { "end-of-file", end_of_file },
		{ "setuid", change_uid },	    { "undumpable", undumpable },
		{ "directories", directories },	    { "end-term", end_term },
		{ "end-kill", end_kill },	    { "end-segv", end_segv },
		{ "end-int", end_int },		    { "end-usr1", end_usr1 },
		{ "end-fault", end_fault },	    { "end-abort", end_abort },
		{ "end-_exit", end__exit },	    { "end-exit_group", end_exit_group },
		{ "end-exit", end_exit },	    { "end-thread", end_thread },
		{ "end-pthread_exit", end_pthread_exit }, { "end-alone", end_alone }, { "end-return", end_return },
	};
	arguments = argv;
	return RUN_CASE(argc, argv, cases);
}
