/* Programs that become another user and execute the next. */
#include "cases.h"
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/resource.h>

extern char **environ;

static char self[4096];
static const uid_t NOBODY = 65534;

static void become_nobody(void)
{
	gid_t group = NOBODY;
	MUST(setgroups(1, &group) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 && setresuid(NOBODY, NOBODY, NOBODY) == 0);
}

static int is_managed(void)
{
	char line[4096];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	MUST(maps);
	while (fgets(line, sizeof line, maps))
		found |= strstr(line, "uswap-agent") != NULL;
	fclose(maps);
	return found;
}

/* What is executed: `USERS managed HOW DEPTH`. As nobody, with three descriptors, and managed if anything is. */
static void managed(const char *how, int depth)
{
	MUST(geteuid() == NOBODY && getegid() == NOBODY);
	if (swaps() && !is_managed())
		bad("%s: unmanaged", how);
	int fd = open("/dev/null", O_RDONLY);
	if (fd != 3)
		bad("%s: the next descriptor is %d", how, fd);
	close(fd);
	char command[5000];
	snprintf(command, sizeof command, "exec %s managed %s-system %d", self, how, depth - 1);
	if (depth && system(command))
		bad("%s: system", how);
}

/* Ways to execute a program with the program's environment, in a process of its own that has become nobody. */
static int execute(int way, char **argv)
{
	pid_t child;
	char command[5000], text[8], *environment[] = { "USWAP_E2E_SWAPS=1", NULL, NULL };
	if (!swaps())
		environment[0] = "A=b";
	snprintf(command, sizeof command, "%s managed %s 1", argv[0], argv[2]);
	switch (way) {
	case 0: return execv(argv[0], argv);
	case 1: return execve(argv[0], argv, environ);
	case 2: return execve(argv[0], argv, environment);
	case 3: return execvp(argv[0], argv);
	case 4: return execvpe(argv[0], argv, environment);
	case 5: return execl(argv[0], argv[0], argv[1], argv[2], argv[3], (char *)NULL);
	case 6: return execlp(argv[0], argv[0], argv[1], argv[2], argv[3], (char *)NULL);
	case 7: return execle(argv[0], argv[0], argv[1], argv[2], argv[3], (char *)NULL, environment);
	case 8:
		/* More arguments than registers. */
		return execle(argv[0], argv[0], argv[1], argv[2], argv[3], "4", "5", "6", "7", "8", (char *)NULL, environment);
	case 9: return fexecve(open(argv[0], O_RDONLY | O_CLOEXEC), argv, environment);
	case 10:
		MUST(posix_spawn(&child, argv[0], NULL, NULL, argv, environment) == 0);
		exit(status_of(child));
	case 11:
		MUST(posix_spawnp(&child, argv[0], NULL, NULL, argv, environ) == 0);
		exit(status_of(child));
	case 12:
		child = vfork();
		if (!child) {
			execv(argv[0], argv);
			_exit(127);
		}
		exit(status_of(child));
	case 13: exit(system(command) != 0);
	case 14:;
		FILE *pipe = popen(command, "r");
		MUST(pipe && !fgets(text, sizeof text, pipe));
		exit(pclose(pipe) != 0);
	case 15:
		close_range(3, ~0U, 0);
		return execv(argv[0], argv);
	default:
		unsetenv("LD_PRELOAD");
		return execl(argv[0], argv[0], argv[1], argv[2], argv[3], (char *)NULL);
	}
}

static void all_ways(void)
{
	for (int way = 0; way <= 16; way++) {
		char how[16];
		snprintf(how, sizeof how, "way-%d", way);
		char *argv[] = { self, "managed", how, "1", NULL };
		pid_t child = forked();
		if (!child) {
			become_nobody();
			execute(way, argv);
			bad("%s: %s", how, strerror(errno));
		}
		must_succeed(child, how);
	}
}

/* Memory that is swapped out in every process: one that becomes nobody, its children, and what they execute. */
static void swapping(void)
{
	char *p = swapped(SIZE, 1, "root");
	char *argv[] = { self, "swap", NULL };
	pid_t child = forked();
	if (!child) {
		become_nobody();
		check(p, SIZE, 1, "nobody");
		fill(p, SIZE, 2);
		push_out(p, SIZE, "nobody");
		child = forked();
		if (!child) {
			check(p, SIZE, 2, "nobody's child");
			execv(self, argv);
			_exit(127);
		}
		must_succeed(child, "nobody's child");
		check(p, SIZE, 2, "nobody");
		_exit(0);
	}
	must_succeed(child, "nobody");
	check(p, SIZE, 1, "root");
}

static void swap(void)
{
	MUST(geteuid() == NOBODY);
	check(swapped(SIZE, 3, "nobody's program"), SIZE, 3, "nobody's program");
}

/* An exec that fails leaves nothing behind. */
static void failing(void)
{
	become_nobody();
	for (int k = 0; k < 4; k++)
		MUST(execl("/nonexistent/program", "x", (char *)NULL) == -1 && errno == ENOENT);
	MUST(execl("/proc/self/maps", "x", (char *)NULL) == -1 && errno == EACCES);
	/* Nothing has been left open. */
	int fd = open("/dev/null", O_RDONLY);
	MUST(fd == 3);
	/* No descriptors at all. */
	struct rlimit none = { 3, 3 };
	MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
	MUST(execl("/nonexistent/program", "x", (char *)NULL) == -1 && errno == ENOENT);
}

/* What is swapped out stays readable in the child of a process that has left its network namespace. */
static void network(void)
{
	char *p = swapped(SIZE, 4, "before unshare");
	MUST(unshare(CLONE_NEWNET) == 0);
	pid_t child = forked();
	if (!child) {
		check(p, SIZE, 4, "child");
		fill(p, SIZE, 5);
		push_out(p, SIZE, "child");
		check(p, SIZE, 5, "child, rewritten");
		execl(self, self, "swap-more", (char *)NULL);
		_exit(127);
	}
	must_succeed(child, "child in another network");
	check(p, SIZE, 4, "parent");
}

/* The anchor cannot be seen in a /proc of another pid namespace, and the socket not in another network. */
static void own_proc(void)
{
	MUST(unshare(CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWNS) == 0);
	pid_t child = fork();
	MUST(child >= 0);
	if (!child) {
		MUST(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
		MUST(mount("proc", "/proc", "proc", 0, NULL) == 0);
		sleep_ms(400);
		_exit(0);
	}
	must_succeed(child, "child with a /proc of its own");
}

/* All of them are one line of /proc/self/status. */
static void many_groups(void)
{
	gid_t groups[500];
	for (unsigned k = 0; k < 500; k++)
		groups[k] = 1000000000 + k;
	MUST(setgroups(500, groups) == 0);
	execl(self, self, "swap-more", (char *)NULL);
	bad("execl: %s", strerror(errno));
}

static void swap_more(void)
{
	check(swapped(SIZE, 6, "program"), SIZE, 6, "program in another network");
}

/* exec and posix_spawn are no cancellation points, whatever is asked and looked at for them. */
static void *executes_when_cancelled(void *way)
{
	static char *argv[] = { "echo", "executed", NULL };
	volatile pid_t child = 0;
	pid_t spawned;
	MUST(pthread_cancel(pthread_self()) == 0);
	switch (*(int *)way) {
	case 0:
		child = fork();
		break;
	case 1:
		child = vfork();
		break;
	default:
		MUST(posix_spawn(&spawned, "/bin/echo", NULL, NULL, argv, environ) == 0);
		child = spawned;
	}
	if (!child) {
		execv("/bin/echo", argv);
		_exit(99);
	}
	MUST(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	must_succeed(child, "who executes");
	return &self;
}

static void cancelled(void)
{
	for (int user = 0; user < 2; user++) {
		for (int way = 0; way < 3; way++) {
			pthread_t thread;
			void *result;
			MUST(pthread_create(&thread, NULL, executes_when_cancelled, &way) == 0);
			MUST(pthread_join(thread, &result) == 0 && result == &self);
		}
		if (!user)
			become_nobody();
	}
}

/* In a /proc of one's own the agent's path is another process's, and what is there is not for the loader. */
static void anothers_path(void)
{
	int pid = 4000, number = 3, ends[2], ready[2];
	char text[16] = "", *preload = getenv("LD_PRELOAD");
	if (preload)
		MUST(sscanf(preload, "/proc/%d/fd/%d", &pid, &number) == 2);
	MUST(pipe(ends) == 0 && pipe(ready) == 0 && write(ends[1], "for nobody else", 15) == 15);
	MUST(unshare(CLONE_NEWPID | CLONE_NEWNS) == 0);
	pid_t init = fork();
	if (!init) {
		MUST(mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
		MUST(mount("proc", "/proc", "proc", 0, NULL) == 0);
		int last = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);
		MUST(last >= 0 && dprintf(last, "%d", pid - 1) > 0);
		pid_t other = fork();
		if (!other) {
			MUST(dup2(ends[0], number) == number && write(ready[1], "!", 1) == 1);
			pause();
			_exit(1);
		}
		MUST(other == pid && read(ready[0], text, 1) == 1);
		pid_t child = fork();
		if (!child) {
			execl("/bin/echo", "echo", "executed", NULL);
			_exit(99);
		}
		alarm(20);
		must_succeed(child, "who executes");
		_exit(0);
	}
	must_succeed(init, "the first in its namespace");
	MUST(read(ends[0], text, sizeof text) == 15 && !memcmp(text, "for nobody else", 15));
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "all-ways", all_ways }, { "swapping", swapping }, { "swap", swap }, { "failing", failing },
		{ "network", network }, { "own-proc", own_proc },
		{ "cancelled", cancelled }, { "anothers-path", anothers_path },
		{ "many-groups", many_groups }, { "swap-more", swap_more },
	};
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	MUST(length > 0);
	if (argc >= 4 && !strcmp(argv[1], "managed")) {
		if (argc != 4 && !(argc == 9 && !strcmp(argv[8], "8")))
			bad("%s: %d arguments", argv[2], argc);
		managed(argv[2], atoi(argv[3]));
		return 0;
	}
	return RUN_CASE(argc, argv, cases);
}
