/* Shared memory that has a name: System V segments, and files in memory. */
#include "shared_memory.h"
#include <fcntl.h>
#include <spawn.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>

enum { PROCESSES = 6, ROUNDS = 3000 };
static const char *argument, *self;

static char *attached(int id, const void *at, int flags)
{
	char *m = shmat(id, at, flags);
	MUST(m != (void *)-1);
	return m;
}

static int segment(void)
{
	int id = shmget(IPC_PRIVATE, LEN, IPC_CREAT | 0600);
	MUST(id >= 0);
	return id;
}

static unsigned long attachments(int id)
{
	struct shmid_ds state;
	MUST(shmctl(id, IPC_STAT, &state) == 0);
	return state.shm_nattch;
}

static void removed(int id)
{
	MUST(shmctl(id, IPC_RMID, NULL) == 0);
}

static uint64_t *counter(char *m, size_t page)
{
	return (uint64_t *)(m + page * PAGE) + 8;
}

/* Adds at random, and sees through another mapping what is there. */
static void add(char *m, char *reads, uint64_t key)
{
	for (size_t k = 0; k < ROUNDS; k++) {
		size_t page = mix(key * ROUNDS + k) % (LEN / PAGE);
		__atomic_fetch_add(counter(m, page), 1, __ATOMIC_RELAXED);
		check_all(reads + page * PAGE, page * PAGE, page * PAGE + PAGE, 1);
	}
}

static void check_sum(char *m, uint64_t expected)
{
	uint64_t sum = 0;
	for (size_t page = 0; page < LEN / PAGE; page++)
		sum += *counter(m, page);
	if (sum != expected)
		bad("%zu additions of %zu", (size_t)sum, (size_t)expected);
	check_all(m, 0, LEN, 1);
}

static void end_all(const pid_t *children)
{
	for (size_t k = 0; k < PROCESSES; k++)
		end_well(children[k]);
}

static void by_attachers(int id, char *m)
{
	pid_t children[PROCESSES];
	write_all(m, 0, LEN, 1);
	for (size_t k = 0; k < PROCESSES; k++) {
		children[k] = forked();
		if (children[k])
			continue;
		MUST(shmdt(m) == 0);
		MUST(shmdt(m) == -1 && errno == EINVAL);
		char *own = attached(id, NULL, 0);
		add(own, attached(id, NULL, SHM_RDONLY), k);
		MUST(k % 2 || shmdt(own) == 0);
		_exit(0);
	}
	press();
	end_all(children);
	check_sum(m, PROCESSES * ROUNDS);
	MUST(attachments(id) == 1);
}

static void segment_case(void)
{
	int id = segment();
	char *m = attached(id, NULL, 0);
	by_attachers(id, m);
	MUST(shmdt(m) == 0 && attachments(id) == 0);
	m = attached(id, NULL, 0);
	check_all(m, 0, LEN, 1);
	removed(id);
}

static void removed_case(void)
{
	int id = segment();
	char *m = attached(id, NULL, 0);
	removed(id);
	by_attachers(id, m);
	MUST(shmdt(m) == 0);
	MUST(shmat(id, NULL, 0) == (void *)-1 && errno == EINVAL);
}

/* In the place of other memory, at a fixed place, and moved. */
static void places(void)
{
	int id = segment();
	char *place = map(LEN + 2 * MiB);
	memset(place, 1, LEN + 2 * MiB);
	char *over = attached(id, place + MiB, SHM_REMAP);
	MUST(over == place + MiB);
	write_all(over, 0, LEN, 5);
	char *fixed = map(2 * LEN);
	munmap(fixed, 2 * LEN);
	MUST(attached(id, fixed + 77, SHM_RND) == fixed);
	press();
	check_all(fixed, 0, LEN, 5);
	char *moved = mremap(fixed, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, fixed + LEN);
	MUST(moved == fixed + LEN);
	press();
	check_all(moved, 0, LEN, 5);
	MUST(attachments(id) == 2 && shmdt(moved) == 0 && attachments(id) == 1);
	check_all(over, 0, LEN, 5);
	MUST(place[0] == 1 && place[MiB + LEN] == 1);
	removed(id);
}

static char *mapped(int fd, int flags, int protection)
{
	char *m = mmap(NULL, LEN, protection, flags, fd, 0);
	MUST(m != MAP_FAILED);
	return m;
}

static int nameless_file(void)
{
	int fd = memfd_create("e2e", 0);
	MUST(fd >= 0 && ftruncate(fd, LEN) == 0);
	return fd;
}

/* Mapped, filled, and driven out. */
static char *swapped_file(int fd)
{
	char *m = mapped(fd, MAP_SHARED, PROT_READ | PROT_WRITE);
	write_all(m, 0, LEN, 1);
	press();
	return m;
}

static int named_file(char *name, size_t room)
{
	snprintf(name, room, "/uswap-e2e-%d", (int)getpid());
	int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	MUST(fd >= 0 && ftruncate(fd, LEN) == 0);
	return fd;
}

static void by_mappers(int fd, const char *name)
{
	const int both = PROT_READ | PROT_WRITE;
	char *m = mapped(fd, MAP_SHARED, both);
	pid_t children[PROCESSES];
	write_all(m, 0, LEN, 1);
	for (size_t k = 0; k < PROCESSES; k++) {
		children[k] = forked();
		if (children[k])
			continue;
		MUST(munmap(m, LEN) == 0);
		int own = name ? shm_open(name, O_RDWR, 0600) : fd;
		char *reads = k % 3 ? mapped(own, MAP_SHARED, PROT_READ) : map(LEN);
		if (k % 3 == 0)
			MUST(mmap(reads, LEN, PROT_READ, MAP_SHARED | MAP_FIXED, own, 0) == reads);
		add(mapped(own, MAP_SHARED | (k == 1 ? MAP_POPULATE : 0), both), reads, k);
		_exit(0);
	}
	press();
	end_all(children);
	check_sum(m, PROCESSES * ROUNDS);
}

static void file(void)
{
	char name[64];
	int fd = named_file(name, sizeof name);
	by_mappers(fd, name);
	MUST(shm_unlink(name) == 0);
}

static void no_name(void)
{
	int fd = nameless_file();
	by_mappers(fd, NULL);
}

/* A private mapping cannot show what has left: it waits until all is back. */
static void private(void)
{
	int fd = nameless_file();
	char *m = swapped_file(fd);
	char *own = mapped(fd, MAP_PRIVATE, PROT_READ | PROT_WRITE);
	check_all(own, 0, LEN, 1);
	write_all(own, 0, LEN / 2, 2);
	check_all(m, 0, LEN, 1);
	check_all(own, 0, LEN / 2, 2);
}

/* It is seen a while later that it is not to be swapped any more. */
static void all_come_back(char *m, size_t len)
{
	for (double begun = now(); swaps() && pages_out(m, len) > 0; sleep_ms(10))
		if (now() - begun > 30)
			bad("%zu pages are away still", pages_out(m, len));
}

/* Longer, and mapped longer. */
static void grows(void)
{
	int fd = nameless_file();
	char *m = swapped_file(fd);
	MUST(ftruncate(fd, LEN + 8 * MiB) == 0);
	m = mremap(m, LEN, LEN + 8 * MiB, MREMAP_MAYMOVE);
	MUST(m != MAP_FAILED);
	check_all(m, 0, LEN, 1);
	write_all(m + LEN, LEN, LEN + 8 * MiB, 1);
	press();
	check_all(m, 0, LEN + 8 * MiB, 1);
	all_come_back(m, LEN + 8 * MiB);
	check_all(m, 0, LEN + 8 * MiB, 1);
}

/* Mapped longer within its file, then brought back, and mapped longer again. */
static void grows_again(void)
{
	int fd = nameless_file();
	size_t half = LEN / 2, more = LEN / 4 * 3;
	char *m = mapped(fd, MAP_SHARED, PROT_READ | PROT_WRITE);
	MUST(munmap(m + half, LEN - half) == 0);
	write_all(m, 0, half, 1);
	press();
	MUST(mremap(m, half, more, 0) == m);
	MUST(ftruncate(fd, LEN + 8 * MiB) == 0);
	sleep(3);
	m = mremap(m, more, LEN, MREMAP_MAYMOVE);
	if (m == MAP_FAILED)
		bad("mremap: %s", strerror(errno));
	write_all(m + half, half, LEN, 1);
	press();
	check_all(m, 0, LEN, 1);
}

/* A process of another user attaches a segment beside one that it has of its parent, and detaches both. */
static void another_user(void)
{
	int id = shmget(IPC_PRIVATE, LEN, IPC_CREAT | 0666);
	MUST(id >= 0);
	char *m = attached(id, NULL, 0);
	write_all(m, 0, LEN, 1);
	press();
	pid_t child = forked();
	if (!child) {
		MUST(setuid(65534) == 0);
		pid_t grandchild = forked();
		if (!grandchild) {
			char *other = attached(id, NULL, 0);
			MUST(attachments(id) == 4);
			check_all(other, 0, LEN, 1);
			check_all(m, 0, LEN, 1);
			MUST(shmdt(other) == 0 && attachments(id) == 3);
			MUST(shmdt(m) == 0 && attachments(id) == 2);
			_exit(0);
		}
		must_succeed(grandchild, "grandchild");
		_exit(0);
	}
	must_succeed(child, "child");
	MUST(attachments(id) == 1);
	check_all(m, 0, LEN, 1);
	removed(id);
}

/* What nobody has mapped any more can be read, a while later. */
static void unmapped(void)
{
	int fd = nameless_file();
	char *m = swapped_file(fd);
	MUST(munmap(m, LEN) == 0);
	sleep(10);
	for (size_t at = 0; at < LEN; at += PAGE) {
		uint64_t word;
		MUST(pread(fd, &word, sizeof word, (off_t)at) == sizeof word);
		if (word != at * 3 + 1)
			bad("page %zu is %zu", at / PAGE, (size_t)word);
	}
}

static void stays(void)
{
	int id = segment();
	char *m = attached(id, NULL, 0), name[64];
	write_all(m, 0, LEN, 7);
	int fd = named_file(name, sizeof name);
	char *of_file = mapped(fd, MAP_SHARED, PROT_READ | PROT_WRITE);
	write_all(of_file, 0, LEN, 8);
	press();
	printf("%d %s\n", id, name);
}

/* Who locks a segment wants it in memory: nothing of it may be missing a while later. */
static void locked(void)
{
	int id = segment();
	char *m = attached(id, NULL, 0);
	write_all(m, 0, LEN, 1);
	press();
	MUST(shmctl(id, SHM_LOCK, NULL) == 0);
	all_come_back(m, LEN);
	press();
	MUST(!swaps() || pages_out(m, LEN) == 0);
	check_all(m, 0, LEN, 1);
	removed(id);
}

/* What is attached while all of it is being brought back waits, is all there, and can be detached. Its server looks at it also while it has no rest. */
static void meanwhile(void)
{
	int id = segment();
	char *m = attached(id, NULL, 0);
	write_all(m, 0, LEN, 1);
	press();
	MUST(shmctl(id, SHM_LOCK, NULL) == 0);
	for (double begun = now(); pages_out(m, LEN) != 0;) {
		MUST(now() - begun < 10);
		char *other = attached(id, NULL, 0);
		MUST(shmdt(other) == 0);
	}
	check_all(m, 0, LEN, 1);
	struct shmid_ds state;
	MUST(shmdt(m) == 0);
	MUST(shmctl(id, IPC_STAT, &state) == 0 && state.shm_nattch == 0);
	removed(id);
}

/* After the run: is all there? */
static void is_there(void)
{
	int id;
	char name[64];
	MUST(sscanf(argument, "%d %63s", &id, name) == 2);
	char *m = attached(id, NULL, 0);
	removed(id);
	int fd = shm_open(name, O_RDWR, 0600);
	MUST(fd >= 0 && shm_unlink(name) == 0);
	check_all(m, 0, LEN, 7);
	check_all(mapped(fd, MAP_SHARED, PROT_READ), 0, LEN, 8);
}

/* The same program without an agent attaches what is swapped. */
static void stranger(void)
{
	int id = segment();
	char *m = attached(id, NULL, 0), number[16];
	write_all(m, 0, LEN, 1);
	press();
	snprintf(number, sizeof number, "%d", id);
	pid_t child = forked();
	if (!child) {
		execl(argument, self, "strange", number, (char *)NULL);
		_exit(9);
	}
	end_well(child);
	check_all(m, 0, LEN, 1);
	removed(id);
}

static void strange(void)
{
	char *m = attached(atoi(argument), NULL, SHM_RDONLY);
	sleep(10);
	check_all(m, 0, LEN, 1);
}

/* Cut off and made longer again: zeros, and what was not cut off is there. */
static void cut_off_by(int (*cut)(int fd, const char *path, off_t len), size_t rest)
{
	char name[64], path[80];
	int fd = named_file(name, sizeof name);
	snprintf(path, sizeof path, "/dev/shm%s", name);
	char *m = swapped_file(fd);
	MUST(cut(fd, path, (off_t)rest) == 0 && ftruncate(fd, LEN) == 0);
	check_zero(m + rest, LEN - rest, "cut off");
	check_all(m, 0, rest, 1);
	MUST(shm_unlink(name) == 0 && munmap(m, LEN) == 0 && close(fd) == 0);
}

static int by_descriptor(int fd, const char *path, off_t len) { return (void)path, ftruncate(fd, len); }
static int by_path(int fd, const char *path, off_t len) { return (void)fd, truncate(path, len); }
static int by_number(int fd, const char *path, off_t len) { return (void)path, (int)syscall(SYS_ftruncate, fd, len); }

/* Another process makes it anew, as a program does that is started again. */
static int by_opening(int fd, const char *path, off_t len)
{
	(void)fd, (void)len;
	pid_t child = forked();
	if (!child) {
		int again = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
		_exit(again < 0 || ftruncate(again, LEN));
	}
	end_well(child);
	return 0;
}

static int by_stream(int fd, const char *path, off_t len)
{
	(void)fd, (void)len;
	FILE *again = fopen(path, "w");
	return again ? fclose(again) : -1;
}

static int by_reopening(int fd, const char *path, off_t len)
{
	(void)path, (void)len;
	FILE *again = freopen(NULL, "w+", fdopen(dup(fd), "r"));
	return again ? fclose(again) : -1;
}

static int by_spawning(int fd, const char *path, off_t len)
{
	(void)fd, (void)len;
	posix_spawn_file_actions_t actions;
	char *const arguments[] = { "true", NULL };
	pid_t child;
	MUST(posix_spawn_file_actions_init(&actions) == 0
	     && posix_spawn_file_actions_addopen(&actions, 1, path, O_WRONLY | O_TRUNC, 0) == 0
	     && posix_spawnp(&child, "true", &actions, NULL, arguments, environ) == 0);
	end_well(child);
	return posix_spawn_file_actions_destroy(&actions);
}

static void cut_off(void)
{
	cut_off_by(by_descriptor, 0);
	cut_off_by(by_descriptor, LEN / 2);
	cut_off_by(by_path, LEN / 4);
	cut_off_by(by_number, LEN / 4);
	cut_off_by(by_opening, 0);
	cut_off_by(by_stream, 0);
	cut_off_by(by_reopening, 0);
	cut_off_by(by_spawning, 0);
}

/* A hole reads as zeros, and what is allocated stays what it was. */
static void punched(void)
{
	int fd = nameless_file();
	char *m = swapped_file(fd);
	MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, LEN / 4, LEN / 4) == 0);
	check_zero(m + LEN / 4, LEN / 4, "punched");
	check_all(m, 0, LEN / 4, 1);
	check_all(m + LEN / 2, LEN / 2, LEN, 1);
	MUST(munmap(m, LEN) == 0 && close(fd) == 0);
	fd = nameless_file();
	m = swapped_file(fd);
	MUST(posix_fallocate(fd, 0, LEN) == 0);
	check_all(m, 0, LEN, 1);
}

/* Who has it mapped may write to it still. */
static void sealed(void)
{
	int fd = memfd_create("e2e", MFD_ALLOW_SEALING);
	MUST(fd >= 0 && ftruncate(fd, LEN) == 0);
	char *m = swapped_file(fd);
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK) == 0);
	check_all(m, 0, LEN, 1);
	write_all(m, 0, LEN, 2);
	press();
	check_all(m, 0, LEN, 2);
	MUST(mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EPERM);
}

/* Swapped on, with zeros in the place of what is removed. */
static void advised(void)
{
	int fd = nameless_file();
	char *m = swapped_file(fd);
	MUST(madvise(m + LEN / 4, LEN / 4, MADV_REMOVE) == 0);
	press();
	check_zero(m + LEN / 4, LEN / 4, "removed");
	check_all(m, 0, LEN / 4, 1);
	check_all(m + LEN / 2, LEN / 2, LEN, 1);
}

static const struct test_case CASES[] = {
	{ "segment", segment_case }, { "removed", removed_case }, { "places", places }, { "file", file },
	{ "no-name", no_name }, { "private", private }, { "grows", grows }, { "grows-again", grows_again },
	{ "another-user", another_user }, { "unmapped", unmapped },
	{ "locked", locked }, { "meanwhile", meanwhile },
	{ "cut-off", cut_off }, { "punched", punched }, { "sealed", sealed }, { "advised", advised },
	{ "stays", stays }, { "is-there", is_there }, { "stranger", stranger }, { "strange", strange },
};

int main(int argc, char **argv)
{
	self = argv[0];
	argument = argc > 2 ? argv[2] : "";
	return RUN_CASE(argc, argv, CASES);
}
