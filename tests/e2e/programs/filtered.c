/*
 * Processes that have put a seccomp filter on themselves: what is not in a short list fails with EPERM, kill(2) among it, or
 * ends the thread.
 *
 * far: the child of a small process runs as it would. swapped: a child whose memory is partly swapped out, and whose agent can do
 * nothing, must not read zeros. namespace: the same of the first process of a pid namespace, which kill(2) does not end.
 * killed-far, killed: the same where the filter ends the agent's thread, and of a child's child.
 */
#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#define LEN (96 * MiB)

static void filter(unsigned refused)
{
	static const int allowed[] = { SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_clone, SYS_wait4, SYS_mmap, SYS_munmap,
		SYS_mprotect, SYS_brk, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_set_robust_list, SYS_getpid, SYS_gettid, SYS_futex,
		SYS_nanosleep, SYS_clock_nanosleep, SYS_newfstatat, SYS_rseq, SYS_madvise, SYS_sched_yield };
	struct sock_filter code[64];
	unsigned short n = 0;
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) {
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)allowed[i], 0, 1);
		code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	}
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, refused);
	struct sock_fprog program = { n, code };
	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

/* Right, or ended: never another content. */
static void forks(char *memory, int again)
{
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		check(memory, LEN, 1, "in the child");
		if (again)
			forks(memory, 0);
		_exit(0);
	}
	int status;
	MUST(waitpid(child, &status, 0) == child);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		printf("right\n");
	else if (WIFSIGNALED(status) || WEXITSTATUS(status) == 128 + SIGKILL)
		printf("ended\n");
	else
		printf("status %x\n", (unsigned)status);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "far";
	char *memory = map(LEN);
	fill(memory, LEN, 1);
	MUST(setvbuf(stdout, NULL, _IONBF, 0) == 0);
	if (strcmp(what, "far") && strcmp(what, "killed-far"))
		push_out(memory, LEN, "before the filter");
	if (!strcmp(what, "namespace"))
		MUST(unshare(CLONE_NEWPID) == 0);
	int kills = !strncmp(what, "killed", 6);
	filter(kills ? SECCOMP_RET_KILL_THREAD : SECCOMP_RET_ERRNO | EPERM);
	forks(memory, kills);
	printf("ok %s\n", what);
	return 0;
}
