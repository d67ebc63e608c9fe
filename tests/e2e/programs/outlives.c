/*
 * A process that has its memory in common with the one that made it, and outlives that one: a child of vfork that has not
 * executed its program yet, or one made by clone with CLONE_VM. The first process, which has no such memory, says what became
 * of it: "right", "WRONG", or "ended" when it said nothing.
 */
#include "cases.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>

static const size_t COMMON = 32 * MiB;
static char *common;
static int answer;

static void wait_until_alone(pid_t maker)
{
	double from = now();
	while (getppid() == maker)
		if (now() - from > 20)
			_exit(3);
		else
			sleep_ms(5);
	/* Whoever has to notice had time to. */
	sleep_ms(200);
}

static void say(const char *text)
{
	if (write(answer, text, strlen(text)) < 0)
		_exit(4);
}

static void look_at_all(pid_t maker)
{
	wait_until_alone(maker);
	for (size_t k = 0; k < COMMON / PAGE; k++)
		if (wrong_word((uint64_t *)(common + k * PAGE), 1, k) < WORDS) {
			say("WRONG\n");
			_exit(1);
		}
	say("right\n");
	_exit(0);
}

static int other_process(void *maker)
{
	look_at_all((pid_t)(size_t)maker);
	return 0;
}

/* Runs `maker` in a process of its own, and passes on what was said. */
static void run(void (*maker)(void))
{
	int ends[2];
	char text[64] = "ended\n";
	MUST(pipe(ends) == 0);
	pid_t child = forked();
	if (!child) {
		close(ends[0]);
		answer = ends[1];
		common = swapped(COMMON, 1, "common");
		maker();
		_exit(5);
	}
	close(ends[1]);
	ssize_t count = read(ends[0], text, sizeof text - 1);
	if (count > 0)
		text[count] = 0;
	status_of(child);
	fputs(text, stdout);
}

static void make_other(void)
{
	/* Used a moment ago, so that it is not swapped out. */
	static char stack[256 << 10] __attribute__((aligned(64)));
	memset(stack, 1, sizeof stack);
	MUST(clone(other_process, stack + sizeof stack, CLONE_VM | SIGCHLD, (void *)(size_t)getpid()) > 0);
}

static void cloned(void)
{
	make_other();
	_exit(0);
}

static void cloned_killed(void)
{
	make_other();
	raise(SIGKILL);
}

/* The maker is killed while it waits for its child to execute something. */
static void kill_later(void)
{
	pid_t maker = getpid(), killer = forked();
	if (!killer) {
		close(answer);
		sleep_ms(200);
		kill(maker, SIGKILL);
		_exit(0);
	}
}

static void vforked(void)
{
	kill_later();
	pid_t maker = getpid(), child = vfork();
	if (!child)
		look_at_all(maker);
}

/* A child that needs nothing of what is swapped out goes on. */
static void vforked_executes(void)
{
	kill_later();
	dup2(answer, 1);
	pid_t maker = getpid(), child = vfork();
	if (!child) {
		wait_until_alone(maker);
		execl("/bin/echo", "echo", "right", NULL);
		_exit(6);
	}
}

static void run_cloned(void) { run(cloned); }
static void run_cloned_killed(void) { run(cloned_killed); }
static void run_vforked(void) { run(vforked); }
static void run_vforked_executes(void) { run(vforked_executes); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "cloned", run_cloned },
		{ "cloned-killed", run_cloned_killed },
		{ "vforked", run_vforked },
		{ "vforked-executes", run_vforked_executes },
	};
	return RUN_CASE(argc, argv, cases);
}
