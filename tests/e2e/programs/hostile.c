/* Calls that are rare, and programs that drive the kernel hard, on memory that is swapped out at that moment. */
#include "cases.h"
#include <dirent.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/membarrier.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

static const size_t SMALL = 32 * MiB;

/* --- what is seen of the threads --- */

/* All ways to ask for the links of the directory of the own threads. */
static void count_threads(unsigned threads, const char *what)
{
	struct stat s;
	struct statx x;
	char own[64];
	int proc = open("/proc", O_PATH | O_DIRECTORY), task = open("/proc/self/task", O_RDONLY | O_DIRECTORY);
	MUST(proc >= 0 && task >= 0);
	snprintf(own, sizeof own, "/proc/%d/task/", (int)getpid());
#define LINKS(call, member)                                                                                    \
	do {                                                                                                   \
		MUST((call) == 0);                                                                             \
		if (member != threads + 2)                                                                     \
			bad("%s: %s says %u links, must be %u", what, #call, (unsigned)member, threads + 2);   \
	} while (0)
	LINKS(stat("/proc/self/task", &s), s.st_nlink);
	LINKS(lstat(own, &s), s.st_nlink);
	LINKS(fstatat(proc, "self/task/", &s, 0), s.st_nlink);
	LINKS(fstat(task, &s), s.st_nlink);
	LINKS(fstatat(task, "", &s, AT_EMPTY_PATH), s.st_nlink);
	LINKS(fstatat(task, ".", &s, 0), s.st_nlink);
	LINKS(statx(proc, "self/task", 0, STATX_BASIC_STATS, &x), x.stx_nlink);
	/* And nothing else is touched. */
	MUST(stat("/proc/self", &s) == 0 && s.st_nlink > 3);
	MUST(stat("/proc/1/task", &s) != 0 || getpid() == 1 || s.st_nlink >= 3);
	close(proc);
	close(task);
}

static pthread_barrier_t barrier;
static void *wait_twice(void *argument)
{
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	return argument;
}

/* As sandboxes ask: am I alone? */
static void alone(void)
{
	count_threads(1, "at the start");
	sleep_ms(50);
	count_threads(1, "after a while");
	pid_t child = forked();
	if (!child) {
		count_threads(1, "in a child");
		_exit(0);
	}
	must_succeed(child, "alone");
	char *p = swapped(SMALL, 1, "alone");
	count_threads(1, "swapping");
	pthread_barrier_init(&barrier, NULL, 3);
	pthread_t threads[2];
	for (int k = 0; k < 2; k++)
		MUST(pthread_create(&threads[k], NULL, wait_twice, NULL) == 0);
	pthread_barrier_wait(&barrier);
	count_threads(3, "with two more");
	child = forked();
	if (!child) {
		count_threads(1, "in a child that has swapped memory");
		check(p, SMALL, 1, "child");
		_exit(0);
	}
	must_succeed(child, "alone, swapping");
	pthread_barrier_wait(&barrier);
	for (int k = 0; k < 2; k++)
		pthread_join(threads[k], NULL);
	check(p, SMALL, 1, "alone");
}

/* --- threads --- */

static void *own_megabyte(void *argument)
{
	uint64_t me = (uint64_t)(size_t)argument;
	size_t size = 512 << 10;
	char *p = map(size);
	fill(p, size, me);
	for (int round = 0; round < 8; round++) {
		pthread_barrier_wait(&barrier);
		check(p, size, me + 1000 * (unsigned)round, "one of 200 threads");
		fill(p, size, me + 1000 * (unsigned)(round + 1));
	}
	munmap(p, size);
	return argument;
}

static void two_hundred_threads(void)
{
	enum { COUNT = 200 };
	static pthread_t threads[COUNT];
	pthread_barrier_init(&barrier, NULL, COUNT);
	for (size_t k = 0; k < COUNT; k++)
		MUST(pthread_create(&threads[k], NULL, own_megabyte, (void *)k) == 0);
	for (size_t k = 0; k < COUNT; k++)
		MUST(pthread_join(threads[k], NULL) == 0);
}

static void *ends_at_once(void *argument)
{
	volatile char here[3 * PAGE];
	here[0] = here[sizeof here - 1] = 7;
	return here[0] == 7 ? argument : NULL;
}

/* Threads come and go on stacks that are swapped out. */
static void exit_storm(void)
{
	enum { AT_ONCE = 16 };
	size_t stack = 64 << 10;
	char *stacks = swapped(SMALL, 2, "stacks");
	for (size_t round = 0; round < SMALL / stack / AT_ONCE; round++) {
		pthread_t threads[AT_ONCE];
		for (size_t k = 0; k < AT_ONCE; k++) {
			pthread_attr_t attributes;
			pthread_attr_init(&attributes);
			/* From everywhere in the range. */
			char *at = stacks + (k * (SMALL / stack / AT_ONCE) + round) * stack;
			MUST(pthread_attr_setstack(&attributes, at, stack) == 0);
			MUST(pthread_create(&threads[k], &attributes, ends_at_once, at) == 0);
			pthread_attr_destroy(&attributes);
		}
		for (size_t k = 0; k < AT_ONCE; k++) {
			void *result;
			MUST(pthread_join(threads[k], &result) == 0 && result);
		}
	}
}

static int pipe_to_nowhere[2];
static void *reads_until_cancelled(void *buffer)
{
	for (;;)
		if (read(pipe_to_nowhere[0], buffer, PAGE) < 0)
			bad("read: %s", strerror(errno));
}

/* Threads are cancelled while they read, or are about to read, into memory that is swapped out. */
static void cancel_storm(void)
{
	enum { AT_ONCE = 8 };
	char *p = swapped(SMALL, 3, "buffers");
	MUST(pipe(pipe_to_nowhere) == 0);
	for (size_t round = 0; round < 32; round++) {
		pthread_t threads[AT_ONCE];
		for (size_t k = 0; k < AT_ONCE; k++)
			MUST(pthread_create(&threads[k], NULL, reads_until_cancelled,
					    p + (round * AT_ONCE + k) * 8 * PAGE) == 0);
		static char bytes[4 * PAGE];
		if (round % 2)
			MUST(write(pipe_to_nowhere[1], bytes, sizeof bytes) == sizeof bytes);
		for (size_t k = 0; k < AT_ONCE; k++)
			MUST(pthread_cancel(threads[k]) == 0);
		for (size_t k = 0; k < AT_ONCE; k++) {
			void *result;
			MUST(pthread_join(threads[k], &result) == 0 && result == PTHREAD_CANCELED);
		}
	}
	for (size_t k = 32 * AT_ONCE * 8; k < SMALL / PAGE; k++)
		MUST(wrong_word((uint64_t *)(p + k * PAGE), 3, k) == WORDS);
}

/* --- signals --- */

static volatile sig_atomic_t ticks, wrong_ticks;
static void tick(int sig)
{
	volatile char room[2 * PAGE];
	room[0] = (char)sig;
	room[sizeof room - 1] = (char)sig;
	wrong_ticks += room[0] != room[sizeof room - 1];
	ticks++;
}

/* A timer's signals on a stack that is swapped out again and again, while all memory is gone through. */
static void signal_storm(void)
{
	size_t room = 256 << 10;
	char *p = swapped(SMALL, 4, "signals"), *place = swapped(4 * MiB, 5, "stack");
	stack_t stack = { .ss_sp = place + MiB, .ss_size = room };
	MUST(sigaltstack(&stack, NULL) == 0);
	struct sigaction action = { .sa_handler = tick, .sa_flags = SA_ONSTACK | SA_RESTART };
	MUST(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval every = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
	MUST(setitimer(ITIMER_REAL, &every, NULL) == 0);
	for (int round = 0; round < 3; round++) {
		ballast();
		check(p, SMALL, 4, "under signals");
	}
	MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
	MUST(ticks > 0 && wrong_ticks == 0);
	check(place, MiB, 5, "below the stack");
	for (size_t k = (MiB + room) / PAGE; k < 4 * MiB / PAGE; k++)
		MUST(wrong_word((uint64_t *)(place + k * PAGE), 5, k) == WORDS);
}

/* --- processes --- */

static void *vforks(void *argument)
{
	char *argv[] = { "true", NULL };
	for (int k = 0; k < 25; k++) {
		pid_t child = vfork();
		if (!child) {
			execvp("true", argv);
			_exit(9);
		}
		MUST(child > 0);
		must_succeed(child, "vfork and exec");
	}
	return argument;
}

static void vfork_storm(void)
{
	char *p = swapped(SMALL, 6, "vfork");
	pthread_t threads[4];
	for (int k = 0; k < 4; k++)
		MUST(pthread_create(&threads[k], NULL, vforks, NULL) == 0);
	check(p, SMALL, 6, "while others vfork");
	ballast();
	for (int k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	check(p, SMALL, 6, "after vfork");
}

/* The way of a daemon: a grandchild that nobody waits for goes on with what its grandparent swapped out. */
static void double_fork(void)
{
	char *p = swapped(SMALL, 7, "double fork"), answer = 'x';
	int ends[2];
	MUST(pipe(ends) == 0);
	pid_t child = forked();
	if (!child) {
		MUST(setsid() > 0);
		if (forked())
			_exit(0);
		sleep_ms(50);
		check(p, SMALL, 7, "grandchild");
		fill(p, SMALL / 2, 8);
		check(p, SMALL / 2, 8, "grandchild's own");
		MUST(write(ends[1], "y", 1) == 1);
		_exit(0);
	}
	close(ends[1]);
	must_succeed(child, "double fork");
	fill(p, SMALL / 4, 9);
	MUST(read(ends[0], &answer, 1) == 1 && answer == 'y');
	check(p, SMALL / 4, 9, "grandparent's own");
	for (size_t k = SMALL / 4 / PAGE; k < SMALL / PAGE; k++)
		MUST(wrong_word((uint64_t *)(p + k * PAGE), 7, k) == WORDS);
}

/* Each process forks two more, to a depth, and all check and write. */
static void fork_tree(char *p, size_t size, unsigned depth, uint64_t seed)
{
	pid_t children[2] = { 0, 0 };
	for (unsigned k = 0; depth && k < 2; k++) {
		children[k] = forked();
		if (!children[k]) {
			check(p, size, seed, "inherited");
			fork_tree(p, size, depth - 1, seed);
			fill(p, size / 2, seed + depth + k);
			check(p, size / 2, seed + depth + k, "own half");
			_exit(0);
		}
	}
	for (unsigned k = 0; depth && k < 2; k++)
		must_succeed(children[k], "fork tree");
}

static void fork_bomb(void)
{
	char *p = swapped(4 * MiB, 10, "fork bomb");
	fork_tree(p, 4 * MiB, 4, 10);
	check(p, 4 * MiB, 10, "fork bomb");
}

/* A child stops under its tracer at every turn; the tracer reads and writes what is swapped out in it. */
static void traced(void)
{
	char *p = swapped(SMALL, 11, "traced");
	pid_t child = forked();
	if (!child) {
		MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
		for (int round = 0; round < 4; round++) {
			raise(SIGUSR1);
			check(p, SMALL, 11, "traced");
			push_out_percent(p, SMALL, 20, "traced");
		}
		_exit(0);
	}
	for (int status;;) {
		MUST(waitpid(child, &status, 0) == child);
		if (!WIFSTOPPED(status)) {
			MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
			break;
		}
		static uint64_t words[16 * WORDS];
		for (size_t at = 0; at < SMALL; at += 2 * MiB) {
			struct iovec here = { words, sizeof words }, there = { p + at, sizeof words };
			MUST(process_vm_readv(child, &here, 1, &there, 1, 0) == sizeof words);
			for (size_t k = 0; k < 16; k++)
				MUST(wrong_word(words + k * WORDS, 11, at / PAGE + k) == WORDS);
			MUST(process_vm_writev(child, &here, 1, &there, 1, 0) == sizeof words);
		}
		MUST(ptrace(PTRACE_CONT, child, 0, 0) == 0);
	}
}

/* --- code --- */

static void *flips(void *argument)
{
	size_t me = (size_t)argument, size = 4 * MiB;
	char *p = map(size);
	fill(p, size, me);
	for (size_t round = 0; round < 400; round++) {
		size_t page = mix(me * 1000 + round) % (size / PAGE);
		unsigned char function[] = { 0x89, 0xf8, 0x05, (unsigned char)round, 0, 0, 0, 0xc3 };
		MUST(mprotect(p + page * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
		memcpy(p + page * PAGE, function, sizeof function);
		MUST(mprotect(p + page * PAGE, PAGE, PROT_READ | PROT_EXEC) == 0);
		int got = ((int (*)(int))(void *)(p + page * PAGE))(1000);
		if (got != 1000 + (int)(round & 255) && got != 1000 + (int)(signed char)round)
			bad("function of round %zu returned %d", round, got);
		MUST(mprotect(p + page * PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
		fill_page((uint64_t *)(p + page * PAGE), me, page);
	}
	check(p, size, me, "between code");
	return argument;
}

/* As just-in-time compilers do it: a page is writable or executable, never both. */
static void write_or_execute(void)
{
	pthread_t threads[4];
	for (size_t k = 0; k < 4; k++)
		MUST(pthread_create(&threads[k], NULL, flips, (void *)k) == 0);
	for (int round = 0; round < 4; round++)
		ballast();
	for (size_t k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
}

/* Every new mapping of such a process is executable. */
static void implied_exec(void)
{
	MUST(personality(READ_IMPLIES_EXEC) >= 0);
	char *p = swapped(SMALL, 12, "personality");
	check(p, SMALL, 12, "personality");
	pid_t child = forked();
	if (!child) {
		check(p, SMALL, 12, "child");
		fill(p, SMALL / 2, 13);
		push_out_percent(p, SMALL, 20, "child");
		check(p, SMALL / 2, 13, "child's own");
		_exit(0);
	}
	must_succeed(child, "personality");
	check(p, SMALL, 12, "personality");
}

/* --- devices and the kernel's own references --- */

/* The program fills memory itself, through a userfaultfd of its own. */
static int own_fd;
static char *own_memory;
static void *serves(void *argument)
{
	static uint64_t page[WORDS];
	for (size_t left = (size_t)argument; left;) {
		struct uffd_msg message;
		MUST(read(own_fd, &message, sizeof message) == sizeof message);
		MUST(message.event == UFFD_EVENT_PAGEFAULT);
		size_t at = ((char *)(size_t)message.arg.pagefault.address - own_memory) / PAGE;
		fill_page(page, 14, at);
		struct uffdio_copy copy = { .dst = (size_t)own_memory + at * PAGE, .src = (size_t)page, .len = PAGE };
		MUST(ioctl(own_fd, UFFDIO_COPY, &copy) == 0);
		left--;
	}
	return argument;
}

static void own_userfaultfd(void)
{
	size_t size = 16 * MiB;
	struct uffdio_api api = { .api = UFFD_API };
	own_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (own_fd < 0) {
		puts("no userfaultfd here");
		return;
	}
	MUST(ioctl(own_fd, UFFDIO_API, &api) == 0);
	char *other = swapped(SMALL, 15, "beside");
	own_memory = map(size);
	struct uffdio_register whole = { .range = { (size_t)own_memory, size }, .mode = UFFDIO_REGISTER_MODE_MISSING };
	MUST(ioctl(own_fd, UFFDIO_REGISTER, &whole) == 0);
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, serves, (void *)(size / PAGE)) == 0);
	for (int part = 0; part < 4; part++) {
		for (size_t k = 0; k < size / 4 / PAGE; k++) {
			size_t page = (size_t)part * (size / 4 / PAGE) + k;
			MUST(wrong_word((uint64_t *)(own_memory + page * PAGE), 14, page) == WORDS);
		}
		ballast();
	}
	pthread_join(thread, NULL);
	check(own_memory, size, 14, "served by the program");
	check(other, SMALL, 15, "beside");
	close(own_fd);
	ballast();
	check(own_memory, size, 14, "after the descriptor was closed");
}

static void map_at(char *p, size_t size)
{
	MUST(mmap(p, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == p);
}

/* Memory that is out is replaced by other, which the program registers with its own at once: it is not the memory that was there. */
static void own_userfaultfd_in_place(void)
{
	enum { PARTS = 200 };
	const size_t size = 10 * PAGE, step = MiB / 4;
	struct uffdio_api api = { .api = UFFD_API };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0) {
		puts("no userfaultfd here");
		return;
	}
	MUST(ioctl(fd, UFFDIO_API, &api) == 0);
	char *area = mmap(NULL, (PARTS + 1) * step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(area != MAP_FAILED);
	area += MiB / 8;
	for (int k = 0; k < PARTS; k++) {
		map_at(area + k * step, size);
		for (size_t page = 0; page < size / PAGE; page++)
			fill_random((uint64_t *)(area + k * step + page * PAGE), 22, page);
	}
	for (int k = 0; k < 3; k++) {
		ballast();
		sleep_ms(100);
	}
	for (int k = 0; k < PARTS; k += 20)
		push_out(area + k * step, size, "to be replaced");
	for (int k = 0; k < PARTS; k++) {
		char *p = area + k * step;
		map_at(p, size);
		struct uffdio_register whole = { .range = { (size_t)p, size }, .mode = UFFDIO_REGISTER_MODE_MISSING };
		MUST(ioctl(fd, UFFDIO_REGISTER, &whole) == 0);
		sleep_ms(3);
	}
	sleep_ms(50);
	for (int k = 0; k < PARTS; k++) {
		char *p = area + k * step;
		struct uffdio_range whole = { (size_t)p, size };
		MUST(ioctl(fd, UFFDIO_UNREGISTER, &whole) == 0);
		/* Behind it, so that both are one mapping; of every other the content is new. */
		map_at(p + size, size);
		p[size] = 1;
		if (k % 2)
			fill(p, size, 23);
	}
	ballast();
	sleep_ms(300);
	ballast();
	for (int k = 0; k < PARTS; k++)
		k % 2 ? check(area + k * step, size, 23, "new content") : check_zero(area + k * step, size, "new memory");
	close(fd);
}

/* A file of content, read again and again. */
static int content_file(size_t size, uint64_t seed, int flags)
{
	int fd = open("content", O_RDWR | O_CREAT | O_TRUNC, 0600);
	MUST(fd >= 0);
	char *p = map(size);
	fill(p, size, seed);
	MUST(write(fd, p, size) == (ssize_t)size && fsync(fd) == 0);
	munmap(p, size);
	close(fd);
	fd = open("content", O_RDWR | flags);
	if (fd < 0)
		fd = open("content", O_RDWR);
	MUST(fd >= 0 && unlink("content") == 0);
	return fd;
}

struct uring {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

static int uring_make(struct uring *r)
{
	struct io_uring_params params = { 0 };
	r->fd = (int)syscall(SYS_io_uring_setup, 8, &params);
	if (r->fd < 0)
		return 0;
	size_t sq = params.sq_off.array + params.sq_entries * 4;
	size_t cq = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
	char *a = mmap(NULL, sq, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
	char *b = mmap(NULL, cq, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_CQ_RING);
	r->sqes = mmap(NULL, params.sq_entries * sizeof *r->sqes, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd,
		       IORING_OFF_SQES);
	MUST(a != MAP_FAILED && b != MAP_FAILED && r->sqes != MAP_FAILED);
	r->sq_tail = (void *)(a + params.sq_off.tail);
	r->sq_mask = (void *)(a + params.sq_off.ring_mask);
	r->sq_array = (void *)(a + params.sq_off.array);
	r->cq_head = (void *)(b + params.cq_off.head);
	r->cq_tail = (void *)(b + params.cq_off.tail);
	r->cq_mask = (void *)(b + params.cq_off.ring_mask);
	r->cqes = (void *)(b + params.cq_off.cqes);
	return 1;
}

static int uring_do(struct uring *r, struct io_uring_sqe entry)
{
	unsigned tail = *r->sq_tail, at = tail & *r->sq_mask;
	r->sqes[at] = entry;
	r->sq_array[at] = at;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
	long done;
	while ((done = syscall(SYS_io_uring_enter, r->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0)) < 0 && errno == EINTR)
		;
	MUST(done == 1);
	unsigned head = *r->cq_head;
	MUST(__atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) != head);
	int result = r->cqes[head & *r->cq_mask].res;
	__atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
	return result;
}

/* Buffers that the kernel keeps for a ring: the device writes to the pages that it was given, whatever becomes of the rest. */
static void ring_with_buffers(void)
{
	size_t part = MiB;
	struct uring ring;
	if (!uring_make(&ring)) {
		puts("no io_uring here");
		return;
	}
	int fd = content_file(16 * part, 16, O_DIRECT);
	char *p = swapped(SMALL, 17, "ring");
	struct iovec buffers[4];
	for (size_t k = 0; k < 4; k++)
		buffers[k] = (struct iovec){ p + k * 4 * part, part };
	MUST(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, buffers, 4) == 0);
	for (size_t round = 0; round < 4; round++) {
		for (size_t k = 0; k < 4; k++) {
			struct io_uring_sqe read = { .opcode = IORING_OP_READ_FIXED, .fd = fd, .off = (round * 4 + k) * part,
						     .addr = (size_t)buffers[k].iov_base, .len = (unsigned)part,
						     .buf_index = (unsigned short)k };
			int got = uring_do(&ring, read);
			if (got != (int)part)
				bad("read into buffer %zu gave %d", k, got);
			for (size_t page = 0; page < part / PAGE; page++)
				MUST(wrong_word((uint64_t *)((char *)buffers[k].iov_base + page * PAGE), 16,
						(round * 4 + k) * (part / PAGE) + page) == WORDS);
		}
		ballast();
		/* What the program writes itself, the device sees. */
		fill(buffers[round].iov_base, part, 18);
		struct io_uring_sqe write = { .opcode = IORING_OP_WRITE_FIXED, .fd = fd, .off = round * part,
					      .addr = (size_t)buffers[round].iov_base, .len = (unsigned)part,
					      .buf_index = (unsigned short)round };
		MUST(uring_do(&ring, write) == (int)part);
		char *q = map(part);
		MUST(pread(fd, q, part, (off_t)(round * part)) == (ssize_t)part);
		check(q, part, 18, "written by the ring");
		munmap(q, part);
	}
	/* Buffers that are not registered, swapped out. */
	push_out_percent(p + 16 * part, 8 * part, 20, "plain buffers");
	struct io_uring_sqe plain = { .opcode = IORING_OP_READ, .fd = fd, .off = 4 * part, .addr = (size_t)(p + 16 * part),
				      .len = (unsigned)part };
	MUST(uring_do(&ring, plain) == (int)part);
	for (size_t page = 0; page < part / PAGE; page++)
		MUST(wrong_word((uint64_t *)(p + 16 * part + page * PAGE), 16, 4 * part / PAGE + page) == WORDS);
	for (size_t page = 17 * part / PAGE; page < SMALL / PAGE; page++)
		MUST(wrong_word((uint64_t *)(p + page * PAGE), 17, page) == WORDS);
	close(ring.fd);
	close(fd);
}

static void kernel_aio(void)
{
	size_t part = MiB;
	aio_context_t context = 0;
	if (syscall(SYS_io_setup, 8, &context)) {
		puts("no AIO here");
		return;
	}
	int fd = content_file(8 * part, 19, O_DIRECT);
	char *p = swapped(SMALL, 20, "aio");
	for (size_t k = 0; k < 8; k++) {
		struct iocb request = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (unsigned)fd,
					.aio_buf = (size_t)(p + k * 2 * part), .aio_nbytes = part,
					.aio_offset = (long long)(k * part) },
			    *requests[] = { &request };
		struct io_event event;
		MUST(syscall(SYS_io_submit, context, 1, requests) == 1);
		MUST(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1);
		MUST(event.res == (long long)part);
	}
	ballast();
	for (size_t k = 0; k < 16 * part / PAGE; k++) {
		size_t which = k / (part / PAGE), from = which / 2 * (part / PAGE) + k % (part / PAGE);
		MUST(wrong_word((uint64_t *)(p + k * PAGE), which % 2 ? 20 : 19, which % 2 ? k : from) == WORDS);
	}
	syscall(SYS_io_destroy, context);
	close(fd);
}

/* --- mappings of other kinds --- */

static void grows_down(void)
{
	size_t room = 64 * MiB, start = 2 * MiB; /* With all that it grows by below the limit for stacks. */
	/* A hole above which the mapping lies, too small for ballast. */
	char *hole = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(hole != MAP_FAILED && munmap(hole + room / 2, room / 2) == 0);
	char *top = mmap(hole + room - start, start, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED_NOREPLACE, -1, 0);
	MUST(top == hole + room - start);
	fill(top, start, 21);
	push_out_percent(top, start, 0, "grows down");
	/* Page by page below it. */
	for (size_t k = 1; k <= 4 * MiB / PAGE; k++)
		fill_page((uint64_t *)(top - k * PAGE), 22, k);
	for (int round = 0; round < 2; round++) {
		ballast();
		check(top, start, 21, "as it was mapped");
		for (size_t k = 1; k <= 4 * MiB / PAGE; k++)
			MUST(wrong_word((uint64_t *)(top - k * PAGE), 22, k) == WORDS);
	}
	pid_t child = forked();
	if (!child) {
		check(top, start, 21, "child");
		for (size_t k = 1; k <= 4 * MiB / PAGE; k++)
			MUST(wrong_word((uint64_t *)(top - k * PAGE), 22, k) == WORDS);
		_exit(0);
	}
	must_succeed(child, "grows down");
	MUST(munmap(top - 4 * MiB, start + 4 * MiB) == 0);
}

/* A tebibyte, of which little is ever touched. */
static void sparse(void)
{
	size_t size = (size_t)1 << 40, step = ((size_t)1 << 30) / 4 + 3 * PAGE, touched = 0;
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) {
		puts("no tebibyte here");
		return;
	}
	for (size_t at = 0; at + 4 * PAGE < size; at += step, touched++)
		fill(p + at, 4 * PAGE, at);
	char *q = swapped(SMALL, 23, "beside a tebibyte");
	for (int round = 0; round < 2; round++) {
		for (size_t at = 0; at + 4 * PAGE < size; at += step) {
			check(p + at, 4 * PAGE, at, "sparse");
			MUST(round || *(volatile char *)(p + at + 5 * PAGE) == 0);
		}
		ballast();
	}
	check(q, SMALL, 23, "beside a tebibyte");
	/* A child looks through all of it. */
	for (size_t first = 0; first < 10; first++) {
		pid_t pid = fork();
		MUST(pid >= 0);
		if (pid == 0) {
			for (size_t at = first * step; at + 4 * PAGE < size; at += 10 * step)
				check(p + at, 4 * PAGE, at, "in a child");
			_exit(0);
		}
		must_succeed(pid, "a child beside a tebibyte");
	}
	MUST(munmap(p + size / 4, size / 2) == 0);
	for (size_t at = 0; at + 4 * PAGE < size / 4; at += step)
		check(p + at, 4 * PAGE, at, "what is left");
	MUST(madvise(p, size / 4, MADV_DONTNEED) == 0);
	for (size_t at = 0; at + 4 * PAGE < size / 4; at += step)
		check_zero(p + at, 4 * PAGE, "what was given up");
	MUST(munmap(p, size) == 0);
}

/* As V8, Go and Java keep their heaps: a large reservation without access, of which parts are taken and given back. */
static void reservation(void)
{
	enum { PARTS = 256, HELD = 96 };
	size_t part = MiB;
	static uint64_t seed_of[PARTS];
	size_t held = 0;
	char *p = mmap(NULL, PARTS * part, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	MUST(p != MAP_FAILED);
	for (uint64_t step = 1; step <= 1200; step++) {
		size_t k = mix(step) % PARTS;
		char *here = p + k * part;
		if (!seed_of[k] && held < HELD) {
			MUST(mprotect(here, part, PROT_READ | PROT_WRITE) == 0);
			check_zero(here, part, "taken anew");
			fill(here, part, seed_of[k] = step + 100);
			held++;
		} else if (seed_of[k] && (held == HELD || step % 3)) {
			check(here, part, seed_of[k], "before it is given back");
			if (step % 2) {
				MUST(mmap(here, part, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
				     here);
			} else {
				MUST(madvise(here, part, MADV_DONTNEED) == 0);
				MUST(mprotect(here, part, PROT_NONE) == 0);
			}
			seed_of[k] = 0;
			held--;
		} else if (seed_of[k]) {
			check(here, part, seed_of[k], "held");
		}
	}
	for (size_t k = 0; k < PARTS; k++)
		if (seed_of[k])
			check(p + k * part, part, seed_of[k], "end");
}

static void huge_pages(void)
{
	size_t size = 48 * MiB, huge = 2 * MiB;
	char *raw = map(size + huge), *p = (char *)(((size_t)raw + huge - 1) & ~(huge - 1));
	madvise(p, size, MADV_HUGEPAGE);
	fill(p, size, 24);
	for (int round = 0; round < 3; round++) {
		push_out_percent(p, size, 30, "huge pages");
		for (size_t at = 0; at < size; at += 4 * huge)
			/* May be refused for many reasons. */
			(void)!madvise(p + at, huge, MADV_COLLAPSE);
		check(p, size, 24, "after collapse");
		madvise(p, size, round % 2 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	}
	pid_t child = forked();
	if (!child) {
		check(p, size, 24, "child");
		_exit(0);
	}
	must_succeed(child, "huge pages");
}

static void mergeable(void)
{
	size_t size = SMALL;
	char *p = map(size);
	for (size_t at = 0; at < size; at += PAGE)
		memset(p + at, 0x5a, PAGE);
	if (madvise(p, size, MADV_MERGEABLE))
		puts("no KSM here");
	for (int round = 0; round < 3; round++) {
		push_out_percent(p, size, 20, "mergeable");
		for (size_t at = 0; at < size; at++)
			if (p[at] != 0x5a)
				bad("byte %zu is %02x", at, p[at]);
		p[0] = 0x5a;
	}
	madvise(p, size, MADV_UNMERGEABLE);
	fill(p, size, 25);
	push_out(p, size, "unmergeable");
	check(p, size, 25, "unmergeable");
}

static void populate(void)
{
	char *p = swapped(SMALL, 26, "populate");
	MUST(madvise(p, SMALL / 4, MADV_POPULATE_WRITE) == 0);
	check(p, SMALL / 4, 26, "populated for writing");
	MUST(madvise(p + SMALL / 4, SMALL / 4, MADV_POPULATE_READ) == 0);
	/* Fresh memory inside of it. */
	MUST(madvise(p + SMALL / 2, SMALL / 4, MADV_DONTNEED) == 0);
	MUST(madvise(p + SMALL / 2, SMALL / 4, MADV_POPULATE_WRITE) == 0);
	check_zero(p + SMALL / 2, SMALL / 4, "populated anew");
	madvise(p, SMALL, MADV_WILLNEED);
	check(p, SMALL / 2, 26, "populated");
	for (size_t k = SMALL / 4 * 3 / PAGE; k < SMALL / PAGE; k++)
		MUST(wrong_word((uint64_t *)(p + k * PAGE), 26, k) == WORDS);
}

/* Private copies of the pages of a sealed memory file, beside memory that is managed. */
static void sealed(void)
{
	size_t size = 8 * MiB;
	int fd = memfd_create("sealed", MFD_ALLOW_SEALING);
	MUST(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	MUST(p != MAP_FAILED);
	fill(p, size, 27);
	munmap(p, size);
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0);
	char *mine = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	char *shown = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	MUST(mine != MAP_FAILED && shown != MAP_FAILED);
	fill(mine, size / 2, 28);
	char *q = swapped(SMALL, 29, "beside");
	check(mine, size / 2, 28, "own copy");
	check(shown, size, 27, "sealed");
	/* The own copies go, the file comes through. */
	MUST(madvise(mine, size, MADV_DONTNEED) == 0);
	check(mine, size, 27, "the file again");
	check(q, SMALL, 29, "beside");
	close(fd);
}

static void break_moves(void)
{
	for (uint64_t round = 0; round < 6; round++) {
		size_t size = (8 + round * 4) * MiB;
		char *p = sbrk((intptr_t)size);
		MUST(p != (void *)-1);
		char *aligned = (char *)(((size_t)p + PAGE - 1) & ~(PAGE - 1));
		size_t whole = size - PAGE;
		fill(aligned, whole, 30 + round);
		ballast();
		check(aligned, whole, 30 + round, "break");
		MUST(sbrk(-(intptr_t)(size / 2)) != (void *)-1);
		MUST(sbrk((intptr_t)(size / 2)) != (void *)-1);
		check(aligned, size / 2 - PAGE, 30 + round, "below");
		check_zero(aligned + size / 2 + PAGE, size / 2 - 3 * PAGE, "grown again");
		MUST(sbrk(-(intptr_t)size) == p + size);
	}
}

static void aligned(void)
{
	void *p[6];
	size_t size = 8 * MiB;
	for (size_t k = 0; k < 6; k++) {
		MUST(posix_memalign(&p[k], 64 * MiB, size) == 0 && (size_t)p[k] % (64 * MiB) == 0);
		fill(p[k], size, 40 + k);
	}
	push_out(p[0], size, "aligned");
	for (size_t k = 0; k < 6; k++) {
		check(p[k], size, 40 + k, "aligned");
		free(p[k]);
	}
}

/* --- system calls that read or write the program's memory --- */

static size_t cold_at;
static char *cold_memory;
/* Pages of their own that were swapped out a moment ago, and begin with a path. */
static void *cold(void)
{
	MUST(cold_at < SMALL);
	char *p = cold_memory + cold_at;
	cold_at += 4 * PAGE;
	return p;
}

static void system_calls(void)
{
	cold_memory = map(SMALL);
	/* What the calls read has to be there before it goes out. */
	for (size_t at = 0; at < SMALL; at += 4 * PAGE) {
		memset(cold_memory + at, 1, 4 * PAGE);
		strcpy(cold_memory + at, "/proc/self/status");
	}
	push_out(cold_memory, SMALL, "system calls");
#define COLD cold()
	int ends[2], sockets[2];
	MUST(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	MUST(access(COLD, R_OK) == 0);
	MUST(stat(COLD, COLD) == 0);
	MUST(syscall(SYS_newfstatat, AT_FDCWD, COLD, COLD, 0) == 0);
	MUST(statx(AT_FDCWD, COLD, 0, STATX_ALL, COLD) == 0);
	int fd = open(COLD, O_RDONLY);
	MUST(fd >= 0 && read(fd, COLD, PAGE) > 0 && pread(fd, COLD, PAGE, 0) > 0);
	close(fd);
	fd = open("/proc/self", O_RDONLY | O_DIRECTORY);
	MUST(fd >= 0 && syscall(SYS_getdents64, fd, COLD, 3 * PAGE) > 0);
	close(fd);
	MUST(readlink("/proc/self/exe", COLD, PAGE) > 0);
	MUST(syscall(SYS_getcwd, COLD, PAGE) > 0);
	MUST(uname(COLD) == 0 && sysinfo(COLD) == 0 && getrusage(RUSAGE_SELF, COLD) == 0);
	MUST(getrlimit(RLIMIT_STACK, COLD) == 0 && gettimeofday(COLD, NULL) == 0);
	MUST(clock_gettime(CLOCK_MONOTONIC, COLD) == 0 && syscall(SYS_clock_gettime, CLOCK_REALTIME, COLD) == 0);
	MUST(syscall(SYS_getrandom, COLD, 2 * PAGE, 0) == (long)(2 * PAGE));
	MUST(syscall(SYS_sched_getaffinity, 0, PAGE, COLD) > 0);
	MUST(sigaction(SIGUSR2, NULL, COLD) == 0 && sigprocmask(SIG_SETMASK, NULL, COLD) == 0);
	MUST(sigpending(COLD) == 0 && sigaltstack(NULL, COLD) == 0);
	MUST(write(ends[1], COLD, 3 * PAGE) == (ssize_t)(3 * PAGE));
	MUST(ioctl(ends[0], FIONREAD, COLD) == 0);
	MUST(read(ends[0], COLD, 2 * PAGE) == (ssize_t)(2 * PAGE));
	MUST(fcntl(ends[0], F_GETLK, COLD) == 0 || errno == EINVAL || errno == EBADF);
	MUST(getsockname(sockets[0], COLD, &(socklen_t){ 100 }) == 0);
	socklen_t *length = COLD;
	MUST(getsockopt(sockets[0], SOL_SOCKET, SO_TYPE, COLD, length) == 0 || errno == EINVAL);
	/* A descriptor in a message whose every part is swapped out. */
	struct msghdr *message = COLD;
	struct iovec *piece = COLD;
	struct cmsghdr *control = COLD;
	char *byte = COLD;
	memset(message, 0, sizeof *message);
	*piece = (struct iovec){ byte, PAGE };
	message->msg_iov = piece;
	message->msg_iovlen = 1;
	message->msg_control = control;
	message->msg_controllen = CMSG_SPACE(sizeof(int));
	*control = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	*(int *)CMSG_DATA(control) = ends[0];
	ballast();
	MUST(sendmsg(sockets[0], message, 0) == (ssize_t)PAGE);
	ballast();
	MUST(recvmsg(sockets[1], message, 0) == (ssize_t)PAGE);
	close(*(int *)CMSG_DATA(control));
	struct pollfd *polled = COLD;
	*polled = (struct pollfd){ sockets[1], POLLOUT, 0 };
	struct epoll_event *event = COLD, *events = COLD;
	*event = (struct epoll_event){ EPOLLOUT, { .u64 = 7 } };
	fd_set *set = COLD;
	FD_ZERO(set);
	FD_SET(sockets[1], set);
	struct timespec *short_time = COLD;
	*short_time = (struct timespec){ 0, 1000 };
	ballast();
	MUST(poll(polled, 1, 0) == 1 && polled->revents == POLLOUT);
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	MUST(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, sockets[1], event) == 0);
	MUST(epoll_wait(epoll, events, 10, 1000) == 1 && events->data.u64 == 7);
	MUST(select(sockets[1] + 1, NULL, set, NULL, NULL) == 1 && FD_ISSET(sockets[1], set));
	MUST(nanosleep(short_time, COLD) == 0);
	pid_t child = forked();
	if (!child)
		_exit(3);
	int *status = COLD;
	MUST(wait4(child, status, 0, COLD) == child && WEXITSTATUS(*status) == 3);
	int *word = COLD;
	MUST(syscall(SYS_futex, word, 0 /* FUTEX_WAIT */, 12345, NULL) == -1 && errno == EAGAIN);
	MUST(syscall(SYS_futex, COLD, 1 /* FUTEX_WAKE */, 1) == 0);
	MUST(prctl(PR_GET_NAME, COLD) == 0);
	int flags = fcntl(ends[0], F_SETFL, O_NONBLOCK);
	MUST(flags == 0);
	errno = 0;
}

/* SysV semaphores and messages whose arguments are swapped out. */
static void sysv(void)
{
	int semaphores = semget(IPC_PRIVATE, 2, 0600), queue = msgget(IPC_PRIVATE, 0600);
	MUST(semaphores >= 0 && queue >= 0);
	struct sembuf *up = map(SMALL), *down = up + SMALL / 2 / sizeof *up;
	struct message { long type; char text[4000]; } *sent = (void *)((char *)up + SMALL / 4), *got = sent + 1000;
	*up = (struct sembuf){ 0, 1, 0 };
	*down = (struct sembuf){ 0, -1, 0 };
	sent->type = 5;
	for (size_t k = 0; k < SMALL; k += PAGE)
		((volatile char *)up)[k] += 0;
	for (int round = 0; round < 8; round++) {
		ballast();
		memset(sent->text, round, sizeof sent->text);
		MUST(semop(semaphores, up, 1) == 0 && semop(semaphores, down, 1) == 0);
		MUST(msgsnd(queue, sent, sizeof sent->text, 0) == 0);
		MUST(msgrcv(queue, got, sizeof got->text, 5, 0) == sizeof got->text);
		MUST(!memcmp(got->text, sent->text, sizeof got->text));
	}
	MUST(semctl(semaphores, 0, IPC_RMID) == 0 && msgctl(queue, IPC_RMID, NULL) == 0);
}

/* Mutexes that tell of their owner's death, or lend its priority, in swapped-out memory. */
static pthread_mutex_t *mutexes;
static void *dies_with_it(void *argument)
{
	MUST(pthread_mutex_lock(&mutexes[(size_t)argument * 64]) == 0);
	return argument;
}

static void *counts_under_it(void *argument)
{
	long *counter = argument;
	for (int k = 0; k < 2000; k++) {
		MUST(pthread_mutex_lock(&mutexes[0]) == 0);
		++*counter;
		MUST(pthread_mutex_unlock(&mutexes[0]) == 0);
	}
	return argument;
}

static void robust(void)
{
	char *p = map(SMALL);
	mutexes = (pthread_mutex_t *)p;
	pthread_mutexattr_t attributes;
	for (size_t k = 0; k < 8; k++) {
		pthread_mutexattr_init(&attributes);
		MUST(pthread_mutexattr_setrobust(&attributes, k ? PTHREAD_MUTEX_ROBUST : PTHREAD_MUTEX_STALLED) == 0);
		MUST(pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT) == 0);
		MUST(pthread_mutex_init(&mutexes[k * 64], &attributes) == 0);
	}
	char *q = swapped(SMALL, 50, "beside");
	long *counter = (long *)(p + SMALL / 2);
	pthread_t threads[4];
	for (int k = 0; k < 4; k++)
		MUST(pthread_create(&threads[k], NULL, counts_under_it, counter) == 0);
	ballast();
	for (int k = 0; k < 4; k++)
		pthread_join(threads[k], NULL);
	MUST(*counter == 8000);
	for (size_t k = 1; k < 8; k++) {
		pthread_t thread;
		MUST(pthread_create(&thread, NULL, dies_with_it, (void *)k) == 0);
		pthread_join(thread, NULL);
		if (k == 4)
			ballast();
		int result = pthread_mutex_lock(&mutexes[k * 64]);
		if (result != EOWNERDEAD)
			bad("mutex %zu: %s", k, strerror(result));
		MUST(pthread_mutex_consistent(&mutexes[k * 64]) == 0 && pthread_mutex_unlock(&mutexes[k * 64]) == 0);
	}
	check(q, SMALL, 50, "beside");
}

static void *spins(void *argument)
{
	while (!__atomic_load_n((int *)argument, __ATOMIC_RELAXED))
		;
	return argument;
}

static void barriers(void)
{
	int stop = 0;
	pthread_t thread;
	char *p = swapped(SMALL, 51, "membarrier");
	MUST(syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0);
	MUST(pthread_create(&thread, NULL, spins, &stop) == 0);
	for (size_t k = 0; k < SMALL / PAGE; k++) {
		MUST(wrong_word((uint64_t *)(p + k * PAGE), 51, k) == WORDS);
		if (k % 16 == 0)
			MUST(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}

/* A thread takes its own descriptors, directory and namespaces. */
static void *unshares(void *p)
{
	MUST(unshare(CLONE_FILES | CLONE_FS) == 0);
	MUST(syscall(SYS_close_range, 3, ~0u, 0) == 0);
	(void)!unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC);
	check(p, SMALL, 52, "in a thread of its own files");
	fill(p, SMALL / 2, 53);
	return p;
}

static void namespaces(void)
{
	char *p = swapped(SMALL, 52, "unshare");
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, unshares, p) == 0);
	pthread_join(thread, NULL);
	push_out(p, SMALL, "unshare");
	check(p, SMALL / 2, 53, "after unshare");
	for (size_t k = SMALL / 2 / PAGE; k < SMALL / PAGE; k++)
		MUST(wrong_word((uint64_t *)(p + k * PAGE), 52, k) == WORDS);
}

/* What somebody sends with a signal. */
static void values_of_signals(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGRTMIN + 2);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	puts("ready");
	for (int k = 0; k < 3; k++) {
		siginfo_t info;
		struct timespec most = { 20, 0 };
		int number = sigtimedwait(&set, &info, &most);
		MUST(number > 0);
		printf("%s %s %d\n", number == SIGUSR1 ? "USR1" : "RT", info.si_code == SI_QUEUE ? "queued" : "sent",
		       info.si_code == SI_QUEUE ? info.si_value.sival_int : 0);
	}
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "values-of-signals", values_of_signals },
		{ "alone", alone },
		{ "threads-200", two_hundred_threads },
		{ "exit-storm", exit_storm },
		{ "cancel-storm", cancel_storm },
		{ "signal-storm", signal_storm },
		{ "vfork-storm", vfork_storm },
		{ "double-fork", double_fork },
		{ "fork-bomb", fork_bomb },
		{ "traced", traced },
		{ "write-or-execute", write_or_execute },
		{ "implied-exec", implied_exec },
		{ "own-userfaultfd", own_userfaultfd },
		{ "own-userfaultfd-in-place", own_userfaultfd_in_place },
		{ "ring-with-buffers", ring_with_buffers },
		{ "aio", kernel_aio },
		{ "grows-down", grows_down },
		{ "sparse", sparse },
		{ "reservation", reservation },
		{ "huge", huge_pages },
		{ "mergeable", mergeable },
		{ "populate", populate },
		{ "sealed", sealed },
		{ "break", break_moves },
		{ "aligned", aligned },
		{ "system-calls", system_calls },
		{ "sysv", sysv },
		{ "robust", robust },
		{ "barriers", barriers },
		{ "namespaces", namespaces },
	};
	return RUN_CASE(argc, argv, cases);
}
