/* Calls that change, lock, move or drop memory, made on memory that is swapped out at that moment. */
#include "cases.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

/* --- access that must trap --- */

static sigjmp_buf trap;
static volatile sig_atomic_t trapped;
static void on_trap(int sig) { trapped = sig; siglongjmp(trap, 1); }

/* The signal that touching the word raises, or 0. */
static int trap_of(volatile uint64_t *word, int write_it)
{
	struct sigaction action = { .sa_handler = on_trap }, segv, bus;
	sigaction(SIGSEGV, &action, &segv);
	sigaction(SIGBUS, &action, &bus);
	trapped = 0;
	if (!sigsetjmp(trap, 1)) {
		uint64_t value = *word;
		if (write_it)
			*word = value;
	}
	sigaction(SIGSEGV, &segv, NULL);
	sigaction(SIGBUS, &bus, NULL);
	return trapped;
}

static void protect(void)
{
	char *p = swapped(SIZE, 1, "mprotect");
	uint64_t *word = (uint64_t *)(p + SIZE / 2);
	MUST(mprotect(p, SIZE, PROT_NONE) == 0);
	MUST(trap_of(word, 0) == SIGSEGV);
	MUST(trap_of((uint64_t *)p, 1) == SIGSEGV);
	MUST(mprotect(p, SIZE, PROT_READ) == 0);
	check(p, SIZE / 2, 1, "after PROT_READ");
	MUST(trap_of(word, 1) == SIGSEGV);
	MUST(mprotect(p, SIZE, PROT_READ | PROT_WRITE) == 0);
	check(p, SIZE, 1, "after PROT_READ|PROT_WRITE");
	push_out(p, SIZE, "mprotect again");
	/* Every other MiB another protection: many small VMAs over swapped pages. */
	for (size_t m = 0; m < SIZE / MiB; m += 2)
		MUST(mprotect(p + m * MiB, MiB, PROT_READ) == 0);
	check(p, SIZE, 1, "striped");
	MUST(trap_of((uint64_t *)(p + 2 * MiB), 1) == SIGSEGV);
	MUST(trap_of((uint64_t *)(p + 3 * MiB), 1) == 0);
	for (size_t m = 0; m < SIZE / MiB; m += 2)
		MUST(mprotect(p + m * MiB, MiB, PROT_READ | PROT_WRITE) == 0);
	fill(p, SIZE, 2);
	push_out(p, SIZE, "rewritten");
	check(p, SIZE, 2, "rewritten");
}

/* As a JIT compiler does it: written, swapped out, made executable, called. */
static void code(void)
{
	char *p = swapped(SIZE, 3, "code");
	/* x86-64: mov eax, edi; add eax, imm32; ret */
	for (size_t k = 0; k < 64; k++) {
		unsigned char function[] = { 0x89, 0xf8, 0x05, (unsigned char)k, 0, 0, 0, 0xc3 };
		memcpy(p + k * MiB, function, sizeof function);
	}
	push_out(p, SIZE, "code");
	MUST(mprotect(p, 64 * MiB, PROT_READ | PROT_EXEC) == 0);
	for (int k = 0; k < 64; k++) {
		int (*function)(int) = (int (*)(int))(void *)(p + (size_t)k * MiB);
		int got = function(1000);
		if (got != 1000 + k)
			bad("function %d returned %d", k, got);
	}
	MUST(mprotect(p, 64 * MiB, PROT_READ | PROT_WRITE) == 0);
	check(p + 64 * MiB, 0, 3, "tail");
	for (size_t k = 64; k < SIZE / MiB; k++)
		MUST(wrong_word((uint64_t *)(p + k * MiB), 3, k * MiB / PAGE) == WORDS);
}

/* As sbcl has its whole heap: executable all the time. */
static void executable(void)
{
	char *p = map(SIZE);
	MUST(mprotect(p, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	for (uint64_t round = 0; round < 3; round++) {
		fill(p, SIZE, 60 + round);
		push_out(p, SIZE, "executable");
		check(p, SIZE, 60 + round, "executable");
	}
	/* Now and then beside other memory, and not executable any more. */
	for (size_t m = 0; m < SIZE / MiB; m += 2)
		MUST(mprotect(p + m * MiB, MiB, PROT_READ | PROT_WRITE) == 0);
	push_out(p, SIZE, "half of it executable");
	check(p, SIZE, 62, "half of it executable");
	unsigned char function[] = { 0x89, 0xf8, 0x05, 7, 0, 0, 0, 0xc3 };
	memcpy(p + MiB, function, sizeof function);
	push_out(p, SIZE, "code");
	MUST(((int (*)(int))(void *)(p + MiB))(1000) == 1007);
}

/* For a run on valgrind, which is slow: less memory, and more than the budget in its own tables. */
static void valgrind(void)
{
	size_t size = 32 * MiB;
	char *p = map(size);
	for (size_t at = 0; at < size; at += 64)
		p[at] = (char)(at >> 12);
	for (int round = 0; round < 2; round++)
		for (size_t at = 0; at < size; at += 64)
			MUST(p[at] == (char)(at >> 12));
	MUST(munmap(p, size) == 0);
}

static void lock(void)
{
	char *p = swapped(SIZE, 4, "mlock");
	size_t part = 8 * MiB;
	MUST(mlock(p, part) == 0);
	MUST(pages_out(p, part) == 0);
	for (int k = 0; k < 6; k++)
		ballast();
	MUST(pages_out(p, part) == 0);
	check(p, SIZE, 4, "while locked");
	MUST(munlock(p, part) == 0);
	push_out(p, SIZE, "munlock");
	check(p, SIZE, 4, "after munlock");
	/* Lock on fault: nothing comes in by itself, what comes in stays. */
	MUST(mlock2(p + SIZE - part, part, MLOCK_ONFAULT) == 0);
	check(p, SIZE, 4, "locked on fault");
	for (int k = 0; k < 6; k++)
		ballast();
	MUST(pages_out(p + SIZE - part, part) == 0);
	MUST(munlock(p + SIZE - part, part) == 0);
	check(p, SIZE, 4, "end");
	/* Memory locked before its first touch. */
	char *q = map(part);
	MUST(mlock(q, part) == 0);
	fill(q, part, 5);
	for (int k = 0; k < 6; k++)
		ballast();
	MUST(pages_out(q, part) == 0);
	check(q, part, 5, "locked from the start");
	/* It grows, and moves for that: what is new is locked as it is touched. */
	char *later = mmap(0, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
	MUST(later != MAP_FAILED);
	fill(later, part, 6);
	ballast();
	for (int k = 0; k < 2; k++) {
		char *from = k ? later : q;
		char *wall = mmap(from + part, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		char *longer = mremap(from, part, 2 * part, MREMAP_MAYMOVE);
		MUST(longer != MAP_FAILED && longer != from);
		check(longer, part, k ? 6 : 5, "locked and moved");
		check_zero(longer + part, part, "grown while locked");
		fill(longer + part, part, 8);
		ballast();
		MUST(pages_out(longer, 2 * part) == 0);
		check(longer + part, part, 8, "written where it has grown");
		if (wall != MAP_FAILED)
			MUST(munmap(wall, PAGE) == 0);
		MUST(munmap(longer, 2 * part) == 0);
	}
}

/* All that is mapped is locked: the program's memory stays, and uswap's own must neither be filled nor get stuck. */
static void lock_all(void)
{
	size_t part = 16 * MiB;
	char *p = swapped(SIZE, 14, "mlockall");
	if (mlockall(MCL_CURRENT | MCL_FUTURE)) {
		puts("not allowed to lock");
		return;
	}
	char *q = map(part);
	fill(q, part, 15);
	check(p, part, 14, "locked");
	sleep_ms(200);
	MUST(pages_out(p, part) == 0 && pages_out(q, part) == 0);
	MUST(munlockall() == 0);
	push_out(p, SIZE, "munlockall");
	check(p, SIZE, 14, "unlocked");
	check(q, part, 15, "unlocked");
}

/* Guards take away what was there, and stay where they are while memory beside them is filled. */
static void guards(void)
{
	size_t at = 8 * MiB, size = 4 * MiB;
	char *p = swapped(SIZE, 16, "guards");
	push_out(p + at, size, "guards");
	if (madvise(p + at, size, MADV_GUARD_INSTALL)) {
		puts("no guards here");
		return;
	}
	ballast();
	MUST(trap_of((uint64_t *)(p + at + 5 * PAGE), 1) == SIGSEGV);
	MUST(madvise(p + at, size, MADV_GUARD_REMOVE) == 0);
	check_zero(p + at, size, "after the guard");
	check(p, at, 16, "below the guard");
	/* Fresh memory, filled from below. */
	for (size_t k = 100; k < at / PAGE; k += 100)
		MUST(madvise(p + k * PAGE, PAGE, MADV_DONTNEED) == 0);
	char *q = map(at);
	*q = 1;
	ballast();
	for (size_t k = 100; k < at / PAGE; k += 100)
		MUST(madvise(q + k * PAGE, PAGE, MADV_GUARD_INSTALL) == 0);
	for (size_t k = 0; k < at / PAGE; k++)
		if (k % 100 || !k)
			fill_page((uint64_t *)(q + k * PAGE), 17, k);
	for (size_t k = 100; k < at / PAGE; k += 100)
		if (trap_of((uint64_t *)(q + k * PAGE), 1) != SIGSEGV)
			bad("the guard at page %zu is gone", k);
}

/* The kernel comes as far as a mapping that it refuses. */
static void guards_in_part(void)
{
	char *p = map(SIZE + 2 * PAGE);
	fill(p, SIZE + 2 * PAGE, 19);
	MUST(mlock(p + SIZE, PAGE) == 0);
	push_out(p, SIZE, "guards in part");
	MUST(madvise(p, SIZE + 2 * PAGE, MADV_GUARD_INSTALL) == -1 && errno == EINVAL);
	MUST(madvise(p + SIZE, PAGE, MADV_GUARD_INSTALL) == -1 && errno == EINVAL);
	/* Linux before 6.13 has none. */
	if (madvise(p, PAGE, MADV_GUARD_INSTALL) == 0) {
		MUST(trap_of((uint64_t *)(p + SIZE / 2), 1) == SIGSEGV);
		MUST(madvise(p, SIZE, MADV_GUARD_REMOVE) == 0);
		check_zero(p, SIZE, "where guards were in part");
	}
	check_pages(p, SIZE / PAGE, SIZE / PAGE + 2, 19, "behind the guards");
}

#define PIDFD_SELF_GROUP (-10001)

extern ssize_t process_madvise(int, const struct iovec *, size_t, int, unsigned) __attribute__((weak));

static ssize_t advise_process(int way, int pidfd, const struct iovec *pieces, size_t count, int advice)
{
	if (way && process_madvise)
		return process_madvise(pidfd, pieces, count, advice, 0);
	return syscall(440, pidfd, pieces, count, advice, 0);
}

/* A process may advise its own memory by process_madvise, too: guards, and what concerns forks. */
static void advise_own_process(void)
{
	size_t size = 4 * MiB;
	char *p = swapped(SIZE, 16, "advised");
	int pidfd = (int)syscall(434, getpid(), 0);
	struct iovec none = { p, 0 };
	if (advise_process(0, pidfd, &none, 1, MADV_GUARD_INSTALL)) {
		puts("this kernel takes no such advice");
		return;
	}
	int by_number = advise_process(0, PIDFD_SELF_GROUP, &none, 1, MADV_NORMAL) == 0;
	for (int way = 0; way < 4; way++) {
		if (way >= 2 && !by_number)
			break;
		int self = way < 2 ? pidfd : PIDFD_SELF_GROUP;
		char *at = p + (size_t)(way + 1) * 16 * MiB;
		struct iovec pieces[] = { { at, size }, { at + size, PAGE } };
		push_out(at, size, "to be guarded");
		MUST(advise_process(way & 1, self, pieces, 2, MADV_GUARD_INSTALL) == (ssize_t)(size + PAGE));
		ballast();
		MUST(trap_of((uint64_t *)(at + size), 1) == SIGSEGV);
		MUST(advise_process(way & 1, self, pieces, 2, MADV_GUARD_REMOVE) == (ssize_t)(size + PAGE));
		check_zero(at, size + PAGE, "after the guard");
		check_pages(p, (size_t)(at - p) / PAGE - 16, (size_t)(at - p) / PAGE, 16, "below the guard");
	}
	/* What has a hole in it, and what cannot be had. */
	char *holes = swapped(size, 17, "with a hole");
	MUST(munmap(holes + 4 * PAGE, PAGE) == 0);
	struct iovec pieces[] = { { holes, PAGE }, { holes + 2 * PAGE, 5 * PAGE }, { holes + 20 * PAGE, PAGE } };
	MUST(advise_process(1, pidfd, pieces, 3, MADV_GUARD_INSTALL) == (ssize_t)PAGE);
	MUST(advise_process(1, pidfd, pieces + 1, 2, MADV_GUARD_INSTALL) == -1 && errno == ENOMEM);
	MUST(madvise(holes, size, MADV_GUARD_REMOVE) == -1 && errno == ENOMEM);
	check_zero(holes, PAGE, "a whole piece");
	check_zero(holes + 2 * PAGE, 2 * PAGE, "before the hole");
	check_zero(holes + 5 * PAGE, 2 * PAGE, "after the hole");
	check_pages(holes, 7, size / PAGE, 17, "beside what was guarded");
	MUST(advise_process(1, -1, pieces, 1, MADV_GUARD_INSTALL) == -1 && errno == EBADF);
	MUST(advise_process(1, pidfd, pieces, 1, 12345) == -1 && errno == EINVAL);
	MUST(advise_process(1, pidfd, (void *)8, 1, MADV_GUARD_INSTALL) == -1 && errno == EFAULT);
	MUST(advise_process(1, pidfd, NULL, 0, MADV_GUARD_INSTALL) == 0);
	/* What is kept from children, and is theirs again. */
	struct iovec piece = { p, size };
	for (int kept = 1; kept >= 0; kept--) {
		MUST(advise_process(kept, pidfd, &piece, 1, kept ? MADV_DONTFORK : MADV_DOFORK) == (ssize_t)size);
		push_out(p, size, "advised for forks");
		pid_t child = forked();
		if (!child) {
			if (!kept)
				check(p, size, 16, "given to the child");
			else if (trap_of((uint64_t *)p, 0) != SIGSEGV)
				bad("what is kept from children is in one");
			_exit(0);
		}
		must_succeed(child, "child");
	}
	check(p, size, 16, "parent");
}

/* Pages that were given to a pipe are read from there later, whatever became of them in the program. */
static void pages_in_pipes(void)
{
	enum { PIPES = 32 };
	int pipes[PIPES][2];
	char *p = map(2 * PIPES * MiB), *in = map(MiB);
	for (uint64_t seed = 18; seed < 21; seed++) {
		fill(p, 2 * PIPES * MiB, seed);
		for (int k = 0; k < PIPES; k++) {
			struct iovec piece = { p + 2 * (size_t)k * MiB, MiB };
			MUST(pipe(pipes[k]) == 0);
			int room = fcntl(pipes[k][1], F_SETPIPE_SZ, MiB);
			piece.iov_len = room < (int)MiB ? 8 * PAGE : MiB;
			MUST(vmsplice(pipes[k][1], &piece, 1, 0) == (ssize_t)piece.iov_len);
			MUST(fcntl(pipes[k][1], F_SETFL, O_NONBLOCK) == 0);
		}
		for (int k = 0; k < 4; k++) {
			ballast();
			check(p, 2 * PIPES * MiB, seed, "source");
		}
		for (size_t k = 0; k < PIPES; k++) {
			size_t got = 0;
			MUST(close(pipes[k][1]) == 0);
			for (ssize_t n; (n = read(pipes[k][0], in + got, MiB - got)) > 0; got += (size_t)n)
				;
			MUST(got >= 8 * PAGE && close(pipes[k][0]) == 0);
			for (size_t page = 0; page < got / PAGE; page++)
				if (wrong_word((uint64_t *)(in + page * PAGE), seed, 2 * k * MiB / PAGE + page) < WORDS)
					bad("page %zu of pipe %zu is wrong", page, k);
		}
	}
}

static void remap(void)
{
	char *p = swapped(SIZE, 6, "mremap");
	/* Grow; the old content stays, the tail is zero. */
	char *q = mremap(p, SIZE, SIZE + 32 * MiB, MREMAP_MAYMOVE);
	MUST(q != MAP_FAILED);
	check(q, SIZE, 6, "grown");
	check_zero(q + SIZE, 32 * MiB, "grown tail");
	fill(q + SIZE, 32 * MiB, 7);
	push_out(q, SIZE + 32 * MiB, "grown");
	/* Shrink; then grow again: the cut part must not come back. */
	MUST(mremap(q, SIZE + 32 * MiB, SIZE, 0) == q);
	p = mremap(q, SIZE, SIZE + 32 * MiB, MREMAP_MAYMOVE);
	MUST(p != MAP_FAILED);
	check_zero(p + SIZE, 32 * MiB, "cut and grown");
	check(p, SIZE, 6, "cut and grown");
	/* Move to a given address, many times, in ever other places. */
	char *room = mmap(NULL, 8 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(room != MAP_FAILED);
	size_t size = SIZE + 32 * MiB;
	fill(p + SIZE, 32 * MiB, 7);
	for (size_t k = 0; k < 8; k++) {
		char *to = room + k % 4 * 2 * SIZE + k * PAGE;
		push_out(p, SIZE, "moving");
		MUST(mremap(p, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		p = to;
		check(p, SIZE, 6, "moved");
		check(p + SIZE, 32 * MiB, 7, "moved tail");
	}
	/* Pieces exchanged by way of a third place. */
	push_out(p, SIZE, "exchange");
	char *third = map(4 * MiB);
	for (size_t k = 0; k < 8; k++) {
		char *a = p + k * 4 * MiB, *b = p + (15 - k) * 4 * MiB;
		MUST(mremap(a, 4 * MiB, 4 * MiB, MREMAP_MAYMOVE | MREMAP_FIXED, third) == third);
		MUST(mremap(b, 4 * MiB, 4 * MiB, MREMAP_MAYMOVE | MREMAP_FIXED, a) == a);
		MUST(mremap(third, 4 * MiB, 4 * MiB, MREMAP_MAYMOVE | MREMAP_FIXED, b) == b);
	}
	for (size_t k = 0; k < 16; k++)
		for (size_t n = 0; n < 4 * MiB / PAGE; n++)
			if (wrong_word((uint64_t *)(p + k * 4 * MiB + n * PAGE), 6, (15 - k) * 1024 + n) < WORDS)
				bad("exchanged piece %zu page %zu", k, n);
}

/* The target of the move is memory that is swapped out too: its content must go, the moved one must come. */
static void remap_over(void)
{
	size_t size = 48 * MiB;
	for (int round = 0; round < 4; round++) {
		char *a = map(size), *b = map(size);
		fill(a, size, 10);
		fill(b, size, 11);
		push_out(a, size, "source");
		push_out(b, size, "target");
		MUST(mremap(a, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, b) == b);
		check(b, size, 10, "moved over");
		/* Something fresh where the source was. */
		char *c = mmap(a, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		MUST(c == a);
		check_zero(c, size, "fresh memory at the old address");
		fill(c, size, 12);
		push_out(b, size, "both");
		check(c, size, 12, "at the old address");
		check(b, size, 10, "moved over, later");
		MUST(munmap(b, size) == 0 && munmap(c, size) == 0);
	}
}

/* Threads that make, enlarge and unmap mappings of their own, while others do so beside them and the budget is scarce. The
 * kernel refuses a mapping that was adopted in part. One in some ten thousand may meet that moment. Whoever does not look at
 * what is new in a mapping does not wait for the events of other threads to be read. */
static struct { unsigned refused; } enlargers[2];

static void *enlarge(void *argument)
{
	size_t me = (size_t)argument;
	for (unsigned round = 0; round < 3000; round++) {
		size_t size = (1 + mix(me * 10000 + round) % 40) * 16 * PAGE;
		char *p = map(size), byte = (char)(round | 1);
		if (round % 16 == 5)
			check_zero(p, size, "fresh memory");
		memset(p, byte, size);
		if (round % 2) {
			MUST(munmap(p, size) == 0);
			continue;
		}
		char *q = mremap(p, size, 2 * size, MREMAP_MAYMOVE);
		int reason = errno;
		if (q == MAP_FAILED) {
			MUST(reason == EFAULT);
			enlargers[me].refused++;
			MUST(munmap(p, size) == 0);
			continue;
		}
		for (size_t at = 0; at < size; at += PAGE)
			MUST(q[at] == byte && q[at + PAGE - 1] == byte && (round % 8 || !q[size + at]));
		MUST(munmap(q, 2 * size) == 0);
	}
	return NULL;
}

static void remap_own(void)
{
	pthread_t threads[2];
	char *p = map(SIZE);
	fill(p, SIZE, 90);
	for (size_t k = 0; k < 2; k++)
		MUST(pthread_create(&threads[k], NULL, enlarge, (void *)k) == 0);
	for (size_t k = 0; k < 2; k++)
		MUST(pthread_join(threads[k], NULL) == 0);
	MUST(enlargers[0].refused + enlargers[1].refused <= 2);
	check(p, SIZE, 90, "beside");
}

/* Many mappings that cannot become one, and a large one behind them. */
static void many_mappings(void)
{
	enum { PAIRS = 8000 };
	static char *pairs[PAIRS];
	for (size_t k = 0; k < PAIRS; k++) {
		pairs[k] = map(2 * PAGE);
		MUST(mprotect(pairs[k] + PAGE, PAGE, PROT_READ) == 0);
		fill(pairs[k], PAGE, 1000 + k);
	}
	char *p = swapped(SIZE, 91, "large");
	pid_t child = forked();
	for (size_t k = 0; k < PAIRS; k++)
		check(pairs[k], PAGE, 1000 + k, "small");
	check(p, SIZE, 91, "large");
	if (!child)
		_exit(0);
	must_succeed(child, "child");
}

/* Two threads: one moves its memory away or unmaps it, the other moves its own into the hole as soon as there is one, while
 * the first is still in its system call. As the kernel does it for any two that call mremap at the same time. */
static struct { char *from, *to; size_t bytes; } leaver;

static void *leave(void *unused)
{
	(void)unused;
	if (leaver.to)
		MUST(mremap(leaver.from, leaver.bytes, leaver.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, leaver.to) == leaver.to);
	else
		MUST(munmap(leaver.from, leaver.bytes) == 0);
	return NULL;
}

static void remap_into_holes(void)
{
	size_t size = 8 * MiB;
	char *places = mmap(NULL, 6 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(places != MAP_FAILED);
	for (int round = 0; round < 24; round++) {
		/* Apart from each other, so that no two become one mapping. */
		char *a = places, *b = places + 2 * size, *c = places + 4 * size;
		for (char *place = a; place <= c; place += 2 * size)
			MUST(munmap(place, size) == 0);
		for (char *place = a; place <= b; place += 2 * size)
			MUST(mmap(place, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
				  0) == place);
		fill(a, size, 50);
		fill(b, size, 51);
		push_out(a, size, "first");
		push_out(b, size, "second");
		leaver.from = a, leaver.to = round % 2 ? c : NULL, leaver.bytes = size;
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, leave, NULL) == 0);
		unsigned char there;
		while (mincore(a, PAGE, &there) == 0)
			;
		int reason = errno;
		MUST(reason == ENOMEM);
		MUST(mremap(b, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, a) == a);
		pthread_join(thread, NULL);
		check(a, size, 51, "moved into the hole");
		if (leaver.to)
			check(c, size, 50, "moved away");
		for (char *place = a; place <= c; place += 2 * size)
			MUST(mmap(place, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place);
	}
}

/* All threads of the process share one CPU from now on: a call returns before anybody has seen that it has ended. */
static void share_one_cpu(void)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	DIR *tasks = opendir("/proc/self/task");
	MUST(tasks);
	for (struct dirent *task; (task = readdir(tasks));)
		if (task->d_name[0] != '.')
			sched_setaffinity(atoi(task->d_name), sizeof one, &one);
	closedir(tasks);
}

static void *moved_to(char *from, size_t bytes, char *to)
{
	MUST(mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
	return to;
}

/* One thread moves pieces out of an arena and unmaps it, moves a block through many places, and fills one place many times. */
static void remap_pieces(void)
{
	enum { PIECES = 12 };
	size_t piece = 1 * MiB, step = 2 * piece, size = PIECES * step;
	for (int round = 0; round < 6; round++) {
		/* With nothing right before or behind it. */
		char *arena = (char *)map(size + 2 * PAGE) + PAGE, *places = (char *)map(size + 2 * PAGE) + PAGE;
		MUST(munmap(arena - PAGE, PAGE) == 0 && munmap(arena + size, PAGE) == 0);
		fill(arena, size, 60);
		push_out_percent(arena, size, round % 2 ? 90 : 50, "arena");
		if (!round)
			share_one_cpu();
		MUST(munmap(places - PAGE, size + 2 * PAGE) == 0);
		for (size_t k = 0; k < PIECES; k++)
			moved_to(arena + k * step, piece, places + k * step);
		MUST(munmap(arena, size) == 0);
		for (size_t k = 0; k < PIECES; k++)
			check_pages(places, k * step / PAGE, (k * step + piece) / PAGE, 60, "moved out");
		/* The first one goes from place to place, and each of the others comes to its own old one in turn. */
		push_out(places, piece, "block");
		char *at = places;
		for (size_t k = 0; k < PIECES; k++)
			at = moved_to(at, piece, arena + k * step);
		check(at, piece, 60, "moved on");
		MUST(munmap(at, piece) == 0);
		for (size_t k = 1; k < PIECES; k++)
			push_out(places + k * step, piece, "others");
		for (size_t k = 1; k < PIECES; k++) {
			moved_to(places + k * step, piece, arena);
			if (k < PIECES - 1)
				MUST(munmap(arena, piece) == 0);
		}
		check_pages(arena - (size - step), (size - step) / PAGE, (size - step + piece) / PAGE, 60, "the last one");
		MUST(munmap(arena, piece) == 0);
	}
}

/* What the program has unmapped stays free for it, whatever is mapped meanwhile for its swap. */
static void hole(void)
{
	size_t size = 64 * MiB;
	ballast();
	for (int round = 0; round < 4; round++) {
		char *p = map(size), *q = map(16 * MiB);
		fill(p, size, 30);
		fill(q, 16 * MiB, 31);
		MUST(munmap(p, size) == 0);
		push_out(q, 16 * MiB, "beside the hole");
		for (size_t at = 0; at < size; at += 16 * PAGE)
			MUST(mmap(p + at, 16 * PAGE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == p + at);
		check_zero(p, size, "mapped into the hole");
		check(q, 16 * MiB, 31, "beside the hole");
		MUST(munmap(p, size) == 0 && munmap(q, 16 * MiB) == 0);
	}
}

/* A large mapping of which only the beginning was ever touched is one mapping to mremap. */
static void remap_large(void)
{
	size_t part = 96 * MiB, size = 1024 * MiB;
	char *p = map(size);
	fill(p, part, 32);
	push_out(p, part, "beginning of a large mapping");
	char *q = mremap(p, size, 2 * size, MREMAP_MAYMOVE);
	MUST(q != MAP_FAILED);
	check(q, part, 32, "after it has grown");
	char *target = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(target != MAP_FAILED);
	MUST(mremap(q, 2 * size, 2 * size, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
	fill(target + 2 * size - 32 * MiB, 32 * MiB, 33);
	push_out(target, part, "after it has moved");
	check(target, part, 32, "after it has moved");
	check(target + 2 * size - 32 * MiB, 32 * MiB, 33, "its end");
	check_zero(target + size, 4 * MiB, "its untouched middle");
}

static void remap_dontunmap(void)
{
	char *p = swapped(SIZE, 13, "dontunmap");
	char *q = mremap(p, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
	MUST(q != MAP_FAILED && q != p);
	check_zero(p, SIZE / 2, "left behind");
	check(q, SIZE, 13, "taken along");
	fill(p, SIZE, 14);
	push_out(q, SIZE, "both");
	check(p, SIZE, 14, "left behind, written");
	check(q, SIZE, 13, "taken along, later");
}

static void unmap(void)
{
	char *p = swapped(SIZE, 15, "munmap");
	/* Holes of every size; what is mapped anew there is zero; the rest stays. */
	for (size_t m = 0; m < SIZE / MiB; m += 3) {
		size_t n = (m % 7 + 1) * 16 * PAGE;
		MUST(munmap(p + m * MiB, n) == 0);
		MUST(mmap(p + m * MiB, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
		     MAP_FAILED);
		check_zero(p + m * MiB, n, "hole");
		for (size_t k = 0; k < n / PAGE; k++)
			fill_page((uint64_t *)(p + m * MiB + k * PAGE), 15, m * MiB / PAGE + k);
	}
	push_out(p, SIZE, "with holes");
	check(p, SIZE, 15, "with holes");
	/* MAP_FIXED over swapped memory, without munmap. */
	push_out(p, SIZE, "overlay");
	MUST(mmap(p, SIZE / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	check_zero(p, SIZE / 2, "overlay");
	for (size_t k = SIZE / 2 / PAGE; k < SIZE / PAGE; k++)
		MUST(wrong_word((uint64_t *)(p + k * PAGE), 15, k) == WORDS);
	/* The heap: grow it, swap it, shrink it, grow it. */
	char *top = sbrk(0);
	char *heap = sbrk((intptr_t)(48 * MiB));
	MUST(heap != (void *)-1);
	heap = (char *)(((uintptr_t)heap + PAGE - 1) & ~(PAGE - 1));
	fill(heap, 40 * MiB, 16);
	push_out(heap, 40 * MiB, "brk");
	check(heap, 40 * MiB, 16, "brk");
	push_out(heap, 40 * MiB, "brk");
	MUST(brk(top) == 0);
	MUST(sbrk((intptr_t)(48 * MiB)) != (void *)-1);
	check_zero(heap, 40 * MiB, "brk shrunk and grown");
}

static void on_alarm(int sig) { (void)sig; }

static _Atomic int crowd_goes_on;

/* Keeps those busy that serve faults. */
static void *crowd(void *memory)
{
	uint64_t at = (uint64_t)(uintptr_t)&at;
	while (crowd_goes_on) {
		at = mix(at + 1);
		(void)*(volatile uint64_t *)((char *)memory + at % (SIZE / PAGE) * PAGE);
	}
	return NULL;
}

/* A signal interrupts a thread that waits for a page; it faults again, and may have moved the page away by the time its
 * second message is looked at. */
static void remap_under_signals(void)
{
	const size_t block = 16 * PAGE;
	pthread_t threads[3];
	char *other = swapped(SIZE, 24, "crowd");
	crowd_goes_on = 1;
	char *p = swapped(SIZE, 25, "signals");
	char *q = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(q != MAP_FAILED);
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	sigset_t alarms, before;
	sigemptyset(&alarms);
	sigaddset(&alarms, SIGALRM);
	MUST(pthread_sigmask(SIG_BLOCK, &alarms, &before) == 0);
	for (int k = 0; k < 3; k++)
		MUST(pthread_create(&threads[k], NULL, crowd, other) == 0);
	MUST(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
	struct itimerval often = { { 0, 60 }, { 0, 60 } }, never = { { 0, 0 }, { 0, 0 } };
	for (int round = 0; round < 2; round++) {
		MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
		for (size_t k = 0; k < SIZE / block; k++) {
			uint64_t *word = (uint64_t *)(p + k * block + k % 16 * PAGE);
			MUST(*(volatile uint64_t *)word == word_of(25, k * 16 + k % 16, 0));
			MUST(mremap(p + k * block, block, block, MREMAP_MAYMOVE | MREMAP_FIXED, q + k * block) == q + k * block);
		}
		MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
		char *old = p;
		p = q;
		q = old;
		check(p, SIZE, 25, "moved between signals");
		push_out(p, SIZE, "signals");
	}
	crowd_goes_on = 0;
	for (int k = 0; k < 3; k++)
		MUST(pthread_join(threads[k], NULL) == 0);
}

/* Given up before uswap looks at it, dropped by the kernel after. */
static void free_early(void)
{
	const size_t bytes = 16 * MiB;
	char *p = map(bytes);
	fill(p, bytes, 26);
	MUST(madvise(p, bytes, MADV_FREE) == 0);
	/* Enough for uswap to adopt everything, and not so much that it moves anything out. */
	size_t more = env_number("USWAP_E2E_BALLAST_MIB", 96) * MiB / 3;
	char *q = map(more);
	fill(q, more, 27);
	sleep_ms(500);
	MUST(madvise(p, bytes, MADV_PAGEOUT) == 0);
	size_t dropped = 0;
	for (size_t k = 0; k < bytes / PAGE; k++) {
		uint64_t *words = (uint64_t *)(p + k * PAGE);
		if (wrong_word(words, 26, k) < WORDS || k % 4 == 3) {
			check_zero(words, PAGE, "dropped");
			dropped++;
		}
	}
	MUST(dropped > bytes / PAGE / 2);
	fill(p, bytes, 28);
	push_out(p, bytes, "used again");
	check(p, bytes, 28, "used again");
	check(q, more, 27, "beside");
}

/* --- given up, moved out by uswap, and dropped by the kernel where uswap has it --- */

static volatile int paged_out_enough;

static void *pages_out_all(void *unused)
{
	static char line[512];
	while (!paged_out_enough) {
		FILE *maps = fopen("/proc/self/maps", "r");
		MUST(maps);
		while (fgets(line, sizeof line, maps)) {
			unsigned long start, end;
			/* Where uswap's own mappings are: its frames are a third of a budget of 64 MiB. */
			if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start >> 40 >= 56 && start >> 40 < 80 &&
			    end - start > 16 * MiB && end - start < 24 * MiB)
				for (int k = 0; k < 1000; k++)
					madvise((void *)start, end - start, MADV_PAGEOUT);
		}
		fclose(maps);
	}
	return unused;
}

static void free_dropped(void)
{
	pthread_t thread;
	char *p = swapped(SIZE, 29, "to be given up");
	MUST(pthread_create(&thread, NULL, pages_out_all, NULL) == 0);
	for (uint64_t round = 0; round < 6; round++) {
		fill(p, SIZE, 30 + round);
		MUST(madvise(p, SIZE, MADV_FREE) == 0);
		/* uswap finds what is still there, and moves it out. */
		sleep_ms(150);
		ballast();
		ballast();
		for (size_t k = 0; k < SIZE / PAGE; k++) {
			uint64_t *words = (uint64_t *)(p + k * PAGE);
			if (wrong_word(words, 30 + round, k) < WORDS)
				check_zero(words, PAGE, "dropped");
		}
	}
	paged_out_enough = 1;
	MUST(pthread_join(thread, NULL) == 0);
}

/* --- page tables that go: all that one is about is dropped in one call while its pages are filled --- */

enum { DROPPERS = 4, FILLERS = 2 };
static const size_t TABLE = 2 * MiB;
static char *table;
static volatile int dropped_enough;

static void *drop_table(void *unused)
{
	while (!dropped_enough)
		MUST(madvise(table, TABLE, MADV_DONTNEED) == 0);
	return unused;
}

static void *fill_table(void *first)
{
	for (uint64_t round = 0; !dropped_enough; round++)
		for (size_t k = (size_t)first; k < TABLE / PAGE; k += FILLERS) {
			volatile uint64_t *words = (uint64_t *)(table + k * PAGE);
			fill_page((uint64_t *)words, 150 + round, k);
			for (size_t w = 0; w < WORDS; w += 64) {
				uint64_t word = words[w];
				if (word && word != word_of(150 + round, k, w))
					bad("page %zu of the table has neither what was written nor zeros", k);
			}
		}
	return first;
}

static void drop_tables(void)
{
	pthread_t threads[DROPPERS + FILLERS];
	char *p = swapped(SIZE, 150, "around a page table");
	table = (char *)(((uintptr_t)p + SIZE / 2) & ~(TABLE - 1));
	size_t before = (size_t)(table - p) / PAGE, after = before + TABLE / PAGE;
	for (size_t k = 0; k < DROPPERS + FILLERS; k++)
		MUST(pthread_create(&threads[k], NULL, k < DROPPERS ? drop_table : fill_table, (void *)(k % FILLERS)) == 0);
	for (double end = now() + 3; now() < end;) {
		check_pages(p, 0, before, 150, "before the table");
		check_pages(p, after, SIZE / PAGE, 150, "behind the table");
	}
	dropped_enough = 1;
	for (size_t k = 0; k < DROPPERS + FILLERS; k++)
		MUST(pthread_join(threads[k], NULL) == 0);
	fill(p, SIZE, 151);
	push_out(p, SIZE, "with the table");
	check(p, SIZE, 151, "with the table");
}

static void advise(void)
{
	char *p = swapped(SIZE, 17, "madvise");
	MUST(madvise(p, SIZE / 2, MADV_DONTNEED) == 0);
	check_zero(p, SIZE / 2, "DONTNEED");
	for (size_t k = SIZE / 2 / PAGE; k < SIZE / PAGE; k++)
		MUST(wrong_word((uint64_t *)(p + k * PAGE), 17, k) == WORDS);
	fill(p, SIZE, 18);
	push_out(p, SIZE, "FREE");
	/* FREE: each page reads as before or as zeros until it is written; a write is for ever. */
	MUST(madvise(p, SIZE, MADV_FREE) == 0);
	for (size_t k = 0; k < SIZE / PAGE; k += 5)
		fill_page((uint64_t *)(p + k * PAGE), 19, k);
	ballast();
	for (size_t k = 0; k < SIZE / PAGE; k++) {
		uint64_t *words = (uint64_t *)(p + k * PAGE);
		if (k % 5 == 0) {
			MUST(wrong_word(words, 19, k) == WORDS);
		} else if (wrong_word(words, 18, k) < WORDS) {
			check_zero(words, PAGE, "FREE");
		}
	}
	/* Small pieces, as allocators do it, then what is said to have no visible effect. */
	fill(p, SIZE, 20);
	push_out(p, SIZE, "pieces");
	for (size_t k = 0; k < SIZE / PAGE; k += 16)
		MUST(madvise(p + k * PAGE, 3 * PAGE, MADV_DONTNEED) == 0);
	for (size_t k = 0; k < SIZE / PAGE; k++) {
		if (k % 16 < 3)
			check_zero(p + k * PAGE, PAGE, "piece");
		else
			MUST(wrong_word((uint64_t *)(p + k * PAGE), 20, k) == WORDS);
	}
	fill(p, SIZE, 21);
	push_out(p, SIZE, "hints");
	int hints[] = { MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_SEQUENTIAL, MADV_RANDOM, MADV_DONTDUMP,
			MADV_DODUMP, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_NORMAL };
	for (size_t k = 0; k < sizeof hints / sizeof *hints; k++)
		if (madvise(p, SIZE, hints[k]) && errno != EINVAL)
			bad("hint %d: %s", hints[k], strerror(errno));
	check(p, SIZE, 21, "hints");
	push_out(p, SIZE, "populate");
	MUST(madvise(p, 8 * MiB, MADV_POPULATE_READ) == 0);
	MUST(madvise(p + 8 * MiB, 8 * MiB, MADV_POPULATE_WRITE) == 0);
	check(p, SIZE, 21, "populate");
}

/* What the program itself says about fork must hold, whatever uswap says for its own ends. */
static void advise_fork(void)
{
	size_t third = 32 * MiB;
	char *p = swapped(3 * third, 22, "advice for fork");
	MUST(madvise(p, third, MADV_DONTFORK) == 0);
	MUST(madvise(p + third, third, MADV_WIPEONFORK) == 0);
	push_out(p, 3 * third, "advice for fork");
	pid_t child = forked();
	if (!child) {
		if (trap_of((uint64_t *)p, 0) != SIGSEGV)
			bad("MADV_DONTFORK memory can be read in the child");
		check_zero(p + third, third, "MADV_WIPEONFORK");
		for (size_t k = 2 * third / PAGE; k < 3 * third / PAGE; k++)
			MUST(wrong_word((uint64_t *)(p + k * PAGE), 22, k) == WORDS);
		_exit(0);
	}
	must_succeed(child, "child");
	check(p, 3 * third, 22, "parent");
	MUST(madvise(p, third, MADV_DOFORK) == 0);
	MUST(madvise(p + third, third, MADV_KEEPONFORK) == 0);
	push_out(p, 3 * third, "advice withdrawn");
	child = fork();
	MUST(child >= 0);
	if (!child) {
		check(p, 3 * third, 22, "child after DOFORK");
		_exit(0);
	}
	must_succeed(child, "child after DOFORK");
}

/* A mapping grows in place when a part of it is managed already, in a program that keeps some memory from its children: what
 * has grown is not among it, but where the mapping was. */
static void advise_grown(void)
{
	size_t half = 48 * MiB, step = 4 * MiB;
	char *p = map(2 * half), *kept = map(2 * half);
	MUST(munmap(p + half, half) == 0);
	MUST(munmap(kept + half, half) == 0);
	MUST(madvise(kept, half, MADV_DONTFORK) == 0);
	fill(p, half, 25);
	fill(kept, half, 26);
	push_out(p, half, "before it grows");
	push_out(kept, half, "before it grows");
	for (size_t size = half; size < 2 * half; size += step) {
		MUST(mremap(p, size, size + step, 0) == p);
		MUST(mremap(kept, size, size + step, 0) == kept);
		fill(p, size + step, 25);
		fill(kept, size + step, 26);
	}
	push_out(p, 2 * half, "grown");
	pid_t child = forked();
	if (!child) {
		check(p, 2 * half, 25, "grown, in the child");
		for (size_t at = 0; at < 2 * half; at += step)
			if (trap_of((uint64_t *)(kept + at), 0) != SIGSEGV)
				bad("MADV_DONTFORK memory that has grown can be read in the child");
		_exit(0);
	}
	must_succeed(child, "child");
	check(p, 2 * half, 25, "grown");
	check(kept, 2 * half, 26, "grown and kept");
}

/* Memory that was kept from children is gone, and a mapping that was swapped already grows into its place. */
static void advise_gone(void)
{
	size_t half = 48 * MiB;
	char *p = map(2 * half);
	MUST(madvise(p + half, half, MADV_DONTFORK) == 0);
	fill(p, 2 * half, 25);
	push_out(p, 2 * half, "with what is kept");
	MUST(munmap(p + half, half) == 0);
	usleep(100000);
	MUST(mremap(p, half, 2 * half, 0) == p);
	fill(p + half, half, 26);
	pid_t child = forked();
	if (!child) {
		check(p + half, half, 26, "grown, in the child");
		_exit(0);
	}
	must_succeed(child, "child");
	check(p + half, half, 26, "grown");
}

/* The same, but what was kept had gone before it was managed, so that nothing told of it; the next fork was before the mapping grew. */
static void advise_gone_soon(void)
{
	size_t size = 100 * PAGE, grown = size / 2;
	char *swapping = swapped(SIZE, 27, "before anything is kept");
	for (int round = 0; round < 4; round++) {
		char *place = mmap(NULL, 4 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		MUST(place != MAP_FAILED);
		/* Nothing lies right before it. */
		char *p = place + size;
		MUST(mmap(p, 2 * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
		fill(p, size, 28);
		MUST(madvise(p + size, size, MADV_DONTFORK) == 0);
		if (round % 2)
			MUST(munmap(p + size, size) == 0);
		else
			MUST(mremap(p + size, size, 3 * size, MREMAP_MAYMOVE) != MAP_FAILED);
		usleep(300000);
		pid_t child = forked();
		if (!child)
			_exit(0);
		must_succeed(child, "child that comes before");
		usleep(100000);
		MUST(mremap(p, size, size + grown, 0) == p);
		usleep(200000);
		child = forked();
		if (!child) {
			for (size_t at = size; at < size + grown; at += PAGE)
				MUST(*(volatile uint64_t *)(p + at) == 0);
			check(p, size, 28, "before what has grown, in the child");
			_exit(0);
		}
		must_succeed(child, "child");
	}
	check(swapping, SIZE, 27, "in the end");
}

/* A library has asked for memory that is wiped in children, before the agent was there. */
static void wiped_early(void)
{
	char **memory = dlsym(RTLD_DEFAULT, "wiped");
	MUST(memory);
	size_t size = 16 * PAGE;
	fill(*memory, size, 3);
	char *p = map(SIZE);
	fill(p, SIZE, 4);
	push_out(p, SIZE, "what was filled later");
	pid_t child = forked();
	if (!child) {
		for (size_t at = 0; at < size; at++)
			if ((*memory)[at])
				bad("memory that is to be wiped has content in the child");
		_exit(0);
	}
	must_succeed(child, "child");
	check(*memory, size, 3, "what is wiped in children");
	check(p, SIZE, 4, "other memory");
}

/* The same before it is touched: a child writes there first. */
static void fork_grown(void)
{
	size_t size = 48 * MiB, step = 4 * MiB;
	char *p = map(3 * size);
	MUST(munmap(p + size, 2 * size) == 0);
	fill(p, size, 27);
	push_out(p, size, "before it grows");
	for (int k = 0; k < 8; k++) {
		char *grown = mremap(p, size, size + step, k < 4 ? 0 : MREMAP_MAYMOVE);
		MUST(grown != MAP_FAILED);
		p = grown;
		if (k == 2)
			MUST(mprotect(p + size + step / 2, step / 2, PROT_NONE) == 0);
		pid_t child = forked();
		if (!child) {
			if (k == 2)
				MUST(mprotect(p + size + step / 2, step / 2, PROT_READ | PROT_WRITE) == 0);
			check_zero(p + size, step / 4, "grown, in the child");
			fill(p, size + step, 28);
			check(p, size + step, 28, "filled by the child");
			_exit(0);
		}
		must_succeed(child, "child");
		if (k == 2)
			MUST(mprotect(p + size + step / 2, step / 2, PROT_READ | PROT_WRITE) == 0);
		size += step;
		/* Its first half alone: the rest is still untouched in the next round. */
		fill(p, size - step / 2, 27);
	}
	push_out(p, size, "grown");
	fill(p, size, 27);
	check(p, size, 27, "grown");
}

/* --- where memory can lie --- */

static unsigned char bss[96 * 1024 * 1024] __attribute__((aligned(4096)));
static uint64_t data[1024 * 512] __attribute__((aligned(4096))) = { [0] = 7, [1024 * 512 - 1] = 9 };

static void bss_and_data(void)
{
	check_zero(bss, sizeof bss, "bss before");
	MUST(data[0] == 7 && data[1024 * 512 - 1] == 9 && data[5] == 0);
	fill(bss, sizeof bss, 23);
	fill(data, sizeof data, 24);
	push_out(bss, sizeof bss, "bss");
	check(bss, sizeof bss, 23, "bss");
	check(data, sizeof data, 24, "data");
}

enum { STACKS = 6, FRAME_PAGES = 64 };
static pthread_barrier_t gate;
static char *stack_places[STACKS];

/* Frames of 256 KiB, each filled on the way down and checked on the way up. */
static void __attribute__((noinline)) descend(int depth, uint64_t seed)
{
	unsigned char frame[FRAME_PAGES * 4096] __attribute__((aligned(4096)));
	fill(frame, sizeof frame, seed + (uint64_t)depth);
	if (depth) {
		descend(depth - 1, seed);
	} else {
		stack_places[seed / 1000] = (char *)frame;
		pthread_barrier_wait(&gate);
		pthread_barrier_wait(&gate);
	}
	check(frame, sizeof frame, seed + (uint64_t)depth, "stack");
}

static void *deep(void *argument)
{
	descend(59, (uint64_t)(uintptr_t)argument * 1000);
	return argument;
}

/* Stacks made by pthread, by mmap and by malloc; 15 MiB deep each, and idle while they are pushed out. */
static void stacks(void)
{
	pthread_t threads[STACKS];
	size_t size = 16 * MiB;
	pthread_barrier_init(&gate, NULL, STACKS + 1);
	for (size_t k = 0; k < STACKS; k++) {
		pthread_attr_t attributes;
		pthread_attr_init(&attributes);
		if (k % 3 == 0)
			MUST(pthread_attr_setstacksize(&attributes, size) == 0);
		else if (k % 3 == 1)
			MUST(pthread_attr_setstack(&attributes, map(size), size) == 0);
		else
			MUST(pthread_attr_setstack(&attributes, aligned_alloc(4096, size), size) == 0);
		MUST(pthread_create(&threads[k], &attributes, deep, (void *)k) == 0);
		pthread_attr_destroy(&attributes);
	}
	pthread_barrier_wait(&gate);
	for (size_t k = 0; k < STACKS; k++)
		push_out(stack_places[k] + FRAME_PAGES * PAGE, 10 * MiB, "stack");
	pthread_barrier_wait(&gate);
	for (size_t k = 0; k < STACKS; k++)
		MUST(pthread_join(threads[k], NULL) == 0);
}

/* The main stack is left alone, but it must work while it grows under pressure. */
static int __attribute__((noinline)) main_descend(int depth)
{
	volatile unsigned char frame[16384];
	for (size_t k = 0; k < sizeof frame; k += 512)
		frame[k] = (unsigned char)(depth + (int)k);
	if (depth % 50 == 0)
		ballast();
	int below = depth ? main_descend(depth - 1) : 0;
	for (size_t k = 0; k < sizeof frame; k += 512)
		MUST(frame[k] == (unsigned char)(depth + (int)k));
	return below + 1;
}

static void main_stack(void)
{
	char *p = swapped(SIZE, 25, "main stack");
	MUST(main_descend(400) == 401);
	check(p, SIZE, 25, "main stack");
}

static void shared(void)
{
	size_t size = 4 * MiB; /* it counts in both processes */
	char *both = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int fd = memfd_create("e2e", 0);
	MUST(both != MAP_FAILED && fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	char *file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char *cow = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	MUST(file != MAP_FAILED && cow != MAP_FAILED);
	fill(file, size, 26);
	check(cow, size, 26, "private view of a file");
	for (size_t k = 0; k < size / PAGE; k += 2)
		fill_page((uint64_t *)(cow + k * PAGE), 27, k);
	fill(both, size, 28);
	char *p = swapped(64 * MiB, 29, "beside shared memory");
	pid_t child = forked();
	if (!child) {
		check(both, size, 28, "child: shared");
		check(p, 64 * MiB, 29, "child: private");
		fill(both, size, 30);
		fill(p, 64 * MiB, 31);
		_exit(0);
	}
	must_succeed(child, "child");
	check(both, size, 30, "written by the child");
	check(p, 64 * MiB, 29, "private");
	check(file, size, 26, "file");
	for (size_t k = 0; k < size / PAGE; k++)
		MUST(wrong_word((uint64_t *)(cow + k * PAGE), k % 2 ? 26 : 27, k) == WORDS);
}

/* --- the kernel as the one that touches --- */

static void io(void)
{
	size_t size = 64 * MiB;
	char path[] = "io-XXXXXX";
	int file = mkstemp(path), pair[2], pipes[2];
	MUST(file >= 0 && unlink(path) == 0);
	char *out = map(size), *in = map(size);
	fill(out, size, 32);
	fill(in, size, 33);
	push_out(out, size, "write(2)");
	MUST(write(file, out, size) == (ssize_t)size);
	push_out(in, size, "read(2)");
	MUST(pread(file, in, size, 0) == (ssize_t)size);
	check(in, size, 32, "read(2)");
	check(out, size, 32, "write(2)");
	/* Vectors of single pages, far apart. */
	fill(in, size, 34);
	push_out(in, size, "readv");
	struct iovec vector[256];
	for (size_t k = 0; k < 256; k++)
		vector[k] = (struct iovec){ in + k * 64 * PAGE, PAGE };
	MUST(preadv(file, vector, 256, 0) == (ssize_t)(256 * PAGE));
	for (size_t k = 0; k < 256; k++)
		MUST(wrong_word((uint64_t *)(in + k * 64 * PAGE), 32, k) == WORDS);
	/* A pipe and a socket, small pieces, a thread's worth of system calls. */
	MUST(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	fill(in, size, 35);
	for (size_t k = 0; k < size / PAGE; k += 8) {
		if (k % 4096 == 0)
			push_out_percent(in, size, 10, "pipe"), push_out_percent(out, size, 10, "pipe");
		MUST(write(pipes[1], out + k * PAGE, PAGE) == (ssize_t)PAGE);
		MUST(read(pipes[0], in + k * PAGE, PAGE) == (ssize_t)PAGE);
		MUST(send(pair[0], out + (k + 4) * PAGE, PAGE, 0) == (ssize_t)PAGE);
		MUST(recv(pair[1], in + (k + 4) * PAGE, PAGE, 0) == (ssize_t)PAGE);
	}
	for (size_t k = 0; k < size / PAGE; k++)
		MUST(wrong_word((uint64_t *)(in + k * PAGE), k % 4 ? 35 : 32, k) == WORDS);
	/* Structures, names and paths in swapped memory; the calls must not say EFAULT. */
	fill(in, size, 36);
	push_out(in, size, "small calls");
	struct timespec *times = (struct timespec *)in;
	for (size_t k = 0; k < size / PAGE; k += 64)
		MUST(clock_gettime(CLOCK_REALTIME, times + k * PAGE / sizeof *times) == 0);
	push_out(in, size, "small calls");
	for (size_t k = 1; k < size / PAGE; k += 64)
		MUST(getcwd(in + k * PAGE, PAGE) != NULL);
	/* process_vm_readv of ourselves: memory reached by get_user_pages. */
	fill(in, size, 37);
	push_out(out, size, "process_vm_readv");
	struct iovec here = { in, 16 * MiB }, there = { out, 16 * MiB };
	ssize_t n = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
	if (n >= 0) {
		MUST(n == (ssize_t)(16 * MiB));
		check(in, 16 * MiB, 32, "process_vm_readv");
	}
	/* A futex word and a robust wait in swapped memory. */
	push_out(out, size, "futex");
	uint32_t *word = (uint32_t *)(out + 17 * PAGE);
	struct timespec none = { 0, 1000000 };
	syscall(SYS_futex, word, 0 /* WAIT */, *word, &none, NULL, 0);
	check(out, size, 32, "futex");
}

struct direct_job {
	int fd;
	char *memory;
	size_t bytes;
	uint64_t seed;
};

static void *direct_reads(void *argument)
{
	struct direct_job *job = argument;
	for (int round = 0; round < 3; round++)
		for (size_t at = 0; at < job->bytes; at += 64 * PAGE) {
			ssize_t n = pread(job->fd, job->memory + at, 64 * PAGE, (off_t)at);
			if (n != (ssize_t)(64 * PAGE))
				bad("O_DIRECT read at %zu: %zd %s", at, n, strerror(errno));
		}
	return NULL;
}

/* Devices write straight into pages that somebody wants to swap out at the same time. */
static void direct(void)
{
	size_t size = 48 * MiB;
	char path[] = "direct-XXXXXX";
	int plain = mkstemp(path);
	MUST(plain >= 0);
	int fd = open(path, O_RDWR | O_DIRECT);
	MUST(unlink(path) == 0);
	if (fd < 0 && errno == EINVAL) {
		puts("no O_DIRECT here");
		fd = plain;
	}
	MUST(fd >= 0);
	char *out = map(size), *in[2] = { map(size), map(size) };
	fill(out, size, 40);
	push_out(out, size, "O_DIRECT write");
	for (size_t at = 0; at < size; at += MiB)
		MUST(pwrite(fd, out + at, MiB, (off_t)at) == (ssize_t)MiB);
	for (int k = 0; k < 2; k++)
		fill(in[k], size, 41 + (uint64_t)k);
	push_out(in[0], size, "O_DIRECT read");
	pthread_t threads[2];
	struct direct_job jobs[2];
	for (int k = 0; k < 2; k++) {
		jobs[k] = (struct direct_job){ fd, in[k], size, 40 };
		MUST(pthread_create(&threads[k], NULL, direct_reads, &jobs[k]) == 0);
	}
	for (int k = 0; k < 8; k++)
		ballast();
	for (int k = 0; k < 2; k++) {
		MUST(pthread_join(threads[k], NULL) == 0);
		check(in[k], size, 40, "O_DIRECT read");
	}
	check(out, size, 40, "O_DIRECT write");
}

/* Limits that a program sets for itself are not meant for uswap's own memory and descriptors. */
static void limits(void)
{
	char *p = map(SIZE);
	fill(p, SIZE, 43);
	push_out(p, SIZE, "before the limits");
	struct rlimit none = { 3, 64 }, few = { 16, 64 }, stack = { 256 * 1024, 256 * 1024 }, core = { 0, 0 };
	MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
	MUST(setrlimit(RLIMIT_STACK, &stack) == 0);
	MUST(setrlimit(RLIMIT_CORE, &core) == 0);
	for (int k = 0; k < 3; k++) {
		check(p, SIZE, 43 + (uint64_t)k, "under limits");
		fill(p, SIZE, 44 + (uint64_t)k);
		push_out(p, SIZE, "under limits");
	}
	check(p, SIZE, 46, "under limits");
	MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
	pid_t child = forked();
	if (!child) {
		check(p, SIZE, 46, "child under limits");
		fill(p, SIZE, 47);
		push_out(p, SIZE, "child under limits");
		check(p, SIZE, 47, "child under limits");
		_exit(0);
	}
	must_succeed(child, "child under limits");
}

/* A limit on file sizes also meets the swap file. Memory may then stay resident; nothing may be lost, and no
 * SIGXFSZ may come. */
static void limit_fsize(void)
{
	char *p = map(SIZE);
	struct rlimit size = { 4096, 4096 };
	fill(p, SIZE, 48);
	push_out(p, SIZE, "before the limit");
	MUST(setrlimit(RLIMIT_FSIZE, &size) == 0);
	for (int k = 0; k < 3; k++) {
		check(p, SIZE, 48 + (uint64_t)k, "under RLIMIT_FSIZE");
		fill(p, SIZE, 49 + (uint64_t)k);
		ballast();
	}
	check(p, SIZE, 51, "under RLIMIT_FSIZE");
}

/* glibc's allocator with all its ways: brk, arenas, mmap threshold, realloc by mremap, trim. */
static void heap(void)
{
	enum { N = 3000 };
	static struct { unsigned char *p; size_t n; unsigned tag; } slots[N];
	uint64_t r = 12345, sum = 0;
	for (int step = 0; step < 60000; step++) {
		r = mix(r + 1);
		size_t k = r % N, n = (r >> 20) % 100 ? (r >> 32) % 40000 : (r >> 32) % 3000000;
		if (slots[k].p && (slots[k].p[0] != (unsigned char)slots[k].tag ||
				   slots[k].p[slots[k].n - 1] != (unsigned char)(slots[k].tag + 1)))
			bad("heap slot %zu", k);
		n += 2;
		if (r & 1 << 17 || !slots[k].p) {
			free(slots[k].p);
			slots[k].p = malloc(n);
		} else {
			slots[k].p = realloc(slots[k].p, n);
			MUST(slots[k].p[0] == (unsigned char)slots[k].tag);
		}
		slots[k].n = n;
		slots[k].tag = (unsigned)(r >> 40);
		memset(slots[k].p, (int)slots[k].tag, n);
		slots[k].p[n - 1] = (unsigned char)(slots[k].tag + 1);
		sum = sum * 31 + n + slots[k].tag;
		if (step % 12000 == 11999)
			ballast();
	}
	for (size_t k = 0; k < N; k++)
		free(slots[k].p);
	printf("%016lx\n", (unsigned long)sum);
}

/* A call that the kernel refuses takes nothing: Linux 6.12 and later report what is to go before they find that out. */
static void refused_over_swapped(void)
{
	size_t size = 32 * MiB, more = 64 * MiB;
	char *place = mmap(NULL, size + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(place != MAP_FAILED);
	/* Nothing lies right before it. */
	char *p = place + MiB;
	MUST(mmap(p, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
	struct rlimit all, none = { MiB, MiB };
	MUST(getrlimit(RLIMIT_DATA, &all) == 0);
	none.rlim_max = all.rlim_max;
	for (int round = 0; round < 6; round++) {
		fill(p, size, 140 + (uint64_t)round);
		push_out(p, size, "before the refused call");
		MUST(setrlimit(RLIMIT_DATA, &none) == 0);
		/* Programs try again at once. */
		for (int k = 0; k <= round % 3; k++) {
			void *mapped = mmap(p, size + more / 2, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			MUST(mapped == MAP_FAILED);
		}
		MUST(setrlimit(RLIMIT_DATA, &all) == 0);
		check(p, size, 140 + (uint64_t)round, "under a refused mapping");
	}
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "mprotect", protect },	  { "code", code },
		{ "executable", executable },	  { "valgrind", valgrind },
		{ "mlock", lock },		  { "mlockall", lock_all },
		{ "guards", guards },		  { "vmsplice", pages_in_pipes },
		{ "guards-in-part", guards_in_part },
		{ "process-advice", advise_own_process }, { "mremap", remap },
		{ "mremap-over", remap_over },	  { "mremap-holes", remap_into_holes }, { "mremap-dontunmap", remap_dontunmap },
		{ "mremap-large", remap_large },  { "mremap-signals", remap_under_signals },
		{ "mremap-own", remap_own },	  { "mremap-pieces", remap_pieces }, { "many-mappings", many_mappings },
		{ "free-early", free_early },	  { "free-dropped", free_dropped },	  { "hole", hole },		  { "munmap", unmap },		  { "madvise", advise },
		{ "madvise-tables", drop_tables },
		{ "madvise-fork", advise_fork },  { "madvise-fork-grown", advise_grown },
		{ "madvise-fork-gone", advise_gone }, { "madvise-fork-gone-soon", advise_gone_soon }, { "wiped-early", wiped_early },
		{ "fork-grown", fork_grown },
		{ "bss", bss_and_data },
		{ "stacks", stacks },		  { "main-stack", main_stack },
		{ "shared", shared },		  { "io", io },
		{ "direct", direct },		  { "limits", limits },
		{ "limit-fsize", limit_fsize },	  { "heap", heap },
		{ "refused-mapping", refused_over_swapped },
	};
	return RUN_CASE(argc, argv, cases);
}
