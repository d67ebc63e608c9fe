/* Advice about memory and fork, given very often. Cases: see main. */
#include "cases.h"
#include <signal.h>
#include <sys/syscall.h>

#define CALLS 5000

static int is_mapped(char *p)
{
	unsigned char residency;
	return mincore(p, PAGE, &residency) == 0;
}

/* The child has what it is to have, and lacks what it is to lack: every third page. In a hole something of libc's or of the
 * engine's may lie, but never what was kept. */
static void see_child(char *p, size_t pages, uint64_t seed)
{
	pid_t child = forked();
	if (!child) {
		for (size_t k = 0; k < pages; k++) {
			char *page = p + k * PAGE;
			int is_here = is_mapped(page) && wrong_word((uint64_t *)page, seed, k) == WORDS;
			int is_empty = (k & 3) == 3;
			if (is_here != (k % 3 != 1) && !(is_here && is_empty))
				bad("page %zu %s in the child", k, is_here ? "is" : "is not");
		}
		_exit(0);
	}
	must_succeed(child, "child");
}

/* As V8 does it: kept from children when reserved, let go when used. Each third page stays kept. */
static void advise_pages(char *p, size_t pages)
{
	for (size_t k = 0; k < pages; k++) {
		MUST(madvise(p + k * PAGE, PAGE, MADV_DONTFORK) == 0);
		if (k % 3 != 1)
			MUST(madvise(p + k * PAGE, PAGE, MADV_DOFORK) == 0);
	}
}

static void many(void)
{
	/* Far below the budget: there is no engine, and its monitor sleeps. */
	size_t pages = CALLS, bytes = CALLS * PAGE;
	char *p = map(bytes);
	fill(p, bytes, 31);
	advise_pages(p, pages);
	see_child(p, pages, 31);
	check(p, bytes, 31, "parent, far below the budget");
	push_out(p, bytes, "advised before it was adopted");
	see_child(p, pages, 31);
	/* All over again, with what is swapped out. */
	MUST(madvise(p, bytes, MADV_DOFORK) == 0);
	for (int round = 0; round < 4; round++)
		advise_pages(p, pages);
	see_child(p, pages, 31);
	check(p, bytes, 31, "parent");
}

/* System calls without libc, whose thread-local data may not be there. */
static inline long raw(long number, long a, long b, long c)
{
	long result;
	register long d __asm__("r10") = 0, e __asm__("r8") = 0;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(d), "r"(e)
			 : "rcx", "r11", "memory");
	return result;
}

/* How a child of clone(2) ends that reads what it finds of `p`, and touches nothing else but its stack: with 66 if `seed`
 * did not make it. */
__attribute__((no_stack_protector)) static int read_in_clone(char *p, uint64_t seed)
{
	long child = raw(SYS_clone, SIGCHLD, 0, 0);
	if (child == 0) {
		int status = 0;
		for (size_t k = 0; k < SIZE / PAGE; k++) {
			unsigned char residency;
			volatile uint64_t *words = (volatile uint64_t *)(p + k * PAGE);
			if (raw(SYS_mincore, (long)words, PAGE, (long)&residency) == 0 && words[0] != word_of(seed, k, 0))
				status = 66;
		}
		for (;;)
			raw(SYS_exit_group, status, 0, 0);
	}
	MUST(child > 0);
	return status_of((pid_t)child);
}

/* What the program lets its children have is kept from forks that go round the hooks: they must not read zeros. */
static void let_go_and_cloned(void)
{
	char *p = swapped(SIZE, 32, "before MADV_DOFORK");
	MUST(madvise(p, SIZE, MADV_DOFORK) == 0);
	push_out(p, SIZE, "after MADV_DOFORK");
	if (read_in_clone(p, 32) == 66)
		bad("the child of a raw clone read wrong data");
	check(p, SIZE, 32, "parent");
}

/* The same round libc's madvise. */
static void let_go_by_syscall(void)
{
	char *p = swapped(SIZE, 33, "before MADV_DOFORK");
	MUST(syscall(SYS_madvise, p, SIZE, MADV_DOFORK) == 0);
	MUST(syscall(SYS_madvise, p, SIZE, 12345) == -1 && errno == EINVAL);
	push_out(p, SIZE, "after MADV_DOFORK");
	if (read_in_clone(p, 33) == 66)
		bad("the child of a raw clone read wrong data");
	check(p, SIZE, 33, "parent");
}

/* To another place: over memory that is mapped for that. */
static char *moved(char *p)
{
	char *to = map(SIZE);
	MUST(mremap(p, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	return to;
}

/* And where it has been moved to meanwhile. */
static void let_go_and_moved(void)
{
	char *p = swapped(SIZE, 34, "before MADV_DOFORK");
	for (int round = 0; round < 20; round++) {
		MUST(madvise(p, SIZE, MADV_DOFORK) == 0);
		p = moved(p);
		usleep(round * 2000);
	}
	push_out(p, SIZE, "after mremap");
	if (read_in_clone(p, 34) == 66)
		bad("the child of a raw clone read wrong data");
	check(p, SIZE, 34, "parent");
}

/* What is kept from children, or given to them, as soon as it has been moved. */
static void moved_and_advised(void)
{
	size_t pages = SIZE / PAGE;
	char *p = swapped(SIZE, 35, "before mremap");
	for (int round = 0; round < 20; round++) {
		p = moved(p);
		if (round % 2) {
			MUST(madvise(p, SIZE, MADV_DOFORK) == 0);
			continue;
		}
		MUST(madvise(p, SIZE, MADV_DONTFORK) == 0);
		for (size_t k = 0; k < pages; k++) {
			if (k % 3 != 1)
				MUST(madvise(p + k * PAGE, PAGE, MADV_DOFORK) == 0);
		}
		see_child(p, pages, 35);
	}
	check(p, SIZE, 35, "parent");
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = { { "many", many }, { "let-go-and-cloned", let_go_and_cloned },
						  { "let-go-by-syscall", let_go_by_syscall },
						  { "let-go-and-moved", let_go_and_moved },
						  { "moved-and-advised", moved_and_advised } };
	return RUN_CASE(argc, argv, cases);
}
