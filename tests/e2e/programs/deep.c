/*
 * Libraries that are opened with RTLD_DEEPBIND. Their calls of libc are those of any other library: what they map is swapped, their
 * advice is followed; and what they have of their own stays theirs.
 *
 * deep CASE [lazy]
 */
#include "check.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#define SIZE (160 * MiB)

static int mode = RTLD_NOW | RTLD_DEEPBIND;

static void *open_library(const char *path)
{
	void *library = dlopen(path, mode);
	if (!library)
		bad("%s", dlerror());
	return library;
}

static void *find(void *library, const char *name)
{
	void *found = dlsym(library, name);
	if (!found)
		bad("%s", dlerror());
	return found;
}

typedef void *shared_of(size_t);

/* Whether what lies there is the shared memory that uswap can swap. */
static int is_swapped_memory(const void *at)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");
	MUST(maps);
	int found = 0;
	while (!found && fgets(line, sizeof line, maps)) {
		unsigned long start, end;
		found = sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= (uintptr_t)at && (uintptr_t)at < end &&
			strstr(line, "uswap-shared");
	}
	fclose(maps);
	return found;
}

static void must_be_swapped(const void *at, const char *what)
{
	if (swaps() && !is_swapped_memory(at))
		bad("%s: shared memory that is not swapped", what);
}

/* Cases that are not about swapping run in a process that swaps. */
static void swap_some(void)
{
	char *memory = map(32 * MiB);
	fill(memory, 32 * MiB, 9);
	push_out(memory, 32 * MiB, "memory of its own");
	check(memory, 32 * MiB, 9, "memory of its own");
}

/* Fills it at a pace at which it can be adopted, and checks it, also in a forked child. */
static void use(char *memory, const char *what)
{
	must_be_swapped(memory, what);
	for (size_t at = 0; at < SIZE; at += MiB, sleep_ms(5))
		for (size_t p = at / PAGE; p < (at + MiB) / PAGE; p++)
			fill_page((uint64_t *)(memory + p * PAGE), 5, p);
	pid_t child = fork();
	MUST(child >= 0);
	if (child == 0) {
		check(memory, SIZE, 5, "in the child");
		fill_page((uint64_t *)memory, 6, 0);
		_exit(0);
	}
	must_succeed(child, "the child");
	check_pages(memory, 0, 1, 6, "what the child has written");
	check_pages(memory, 1, SIZE / PAGE, 5, "in the parent");
}

static void shared(void)
{
	shared_of *map_shared = (shared_of *)find(open_library("./deep_plugin.so"), "plugin_shared");
	char *memory = map_shared(SIZE);
	MUST(memory != MAP_FAILED);
	use(memory, "a library");
}

/* A constructor runs before dlopen is back. */
static void constructor(void)
{
	setenv("DEEP_CONSTRUCTS", "1", 1);
	void *(*constructed)(void) = (void *(*)(void))find(open_library("./deep_plugin.so"), "plugin_constructed");
	char *memory = constructed();
	MUST(memory && memory != MAP_FAILED);
	use(memory, "a constructor");
}

/* What a library needs is bound as it is. */
static void needed(void)
{
	shared_of *map_shared = (shared_of *)find(open_library("./deep_caller.so"), "caller_shared");
	char *memory = map_shared(SIZE);
	MUST(memory != MAP_FAILED);
	use(memory, "a library that another needs");
}

/* Not by a call: an address in data, and what dlsym finds. */
static void by_address(void)
{
	void *plugin = open_library("./deep_plugin.so"), *libc = dlopen("libc.so.6", RTLD_LAZY);
	typedef void *map_of(void *, size_t, int, int, int, off_t);
	map_of *maps[] = { *(map_of **)find(plugin, "plugin_mmap"), (map_of *)find(plugin, "mmap"), (map_of *)find(libc, "mmap"),
			   (map_of *)find(libc, "mmap64") };
	for (size_t k = 0; k < sizeof maps / sizeof *maps; k++) {
		char *memory = maps[k](NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		MUST(memory != MAP_FAILED);
		must_be_swapped(memory, "by address");
		if (k == 0)
			use(memory, "by address");
		MUST(munmap(memory, SIZE) == 0);
	}
}

/* A child sees zeros in what is to be wiped, and both in what was given up, also where it had been swapped out. */
static void advised_by(int (*advise)(void *, size_t, int), pid_t (*forks)(void))
{
	size_t bytes = 32 * MiB;
	char *wiped = map(bytes), *dropped = map(bytes);
	MUST(advise(wiped, bytes, MADV_WIPEONFORK) == 0);
	fill(wiped, bytes, 1);
	fill(dropped, bytes, 2);
	push_out(wiped, bytes, "what is to be wiped");
	push_out(dropped, bytes, "what is to be dropped");
	MUST(advise(dropped, bytes / 2, MADV_DONTNEED) == 0);
	pid_t child = forks();
	MUST(child >= 0);
	if (child == 0) {
		check_zero(wiped, bytes, "wiped");
		check_zero(dropped, bytes / 2, "dropped, in the child");
		check_pages(dropped, bytes / 2 / PAGE, bytes / PAGE, 2, "kept, in the child");
		_exit(0);
	}
	must_succeed(child, "the child");
	check(wiped, bytes, 1, "of the parent");
	check_zero(dropped, bytes / 2, "dropped");
	check_pages(dropped, bytes / 2 / PAGE, bytes / PAGE, 2, "kept");
}

static void advice(void)
{
	void *plugin = open_library("./deep_plugin.so");
	advised_by((int (*)(void *, size_t, int))find(plugin, "plugin_advise"), (pid_t (*)(void))find(plugin, "plugin_fork"));
}

/* As Python's ctypes and Java's JNA look functions up. */
static void looked_up(void)
{
	void *libc = dlopen("libc.so.6", RTLD_LAZY);
	MUST(libc);
	advised_by((int (*)(void *, size_t, int))find(libc, "madvise"), (pid_t (*)(void))find(libc, "fork"));
}

/* Only the path of the library that calls dlopen leads there, or nothing does. */
static void runpath(void)
{
	void *caller = open_library("./deep_caller.so");
	typedef void *opener(const char *, int);
	MUST(!dlopen("deep_found.so", mode));
	for (int k = 0; k < 2; k++) {
		void *found = ((opener *)find(caller, k ? "caller_open_in" : "caller_open"))("deep_found.so", mode);
		if (!found)
			bad("%s", dlerror());
		char *memory = ((shared_of *)find(found, "plugin_shared"))(2 * MiB);
		must_be_swapped(memory, "of a library that was found by RUNPATH");
		memset(memory, 1, 2 * MiB);
		MUST(dlclose(found) == 0);
	}
	/* The caller's namespace is the program's; an error is told as ever. */
	MUST(!dlopen("./no-such-library.so", mode) && strstr(dlerror(), "no-such-library"));
	MUST(dlopen(NULL, mode) && dlopen("", mode));
	swap_some();
}

static void nested(void)
{
	setenv("DEEP_CALLS", "1", 1);
	setenv("DEEP_CONSTRUCTS", "1", 1);
	void *opened = ((void *(*)(void))find(open_library("./deep_caller.so"), "caller_opened"))();
	if (!opened)
		bad("the constructor has opened nothing");
	char *memory = ((void *(*)(void))find(opened, "plugin_constructed"))();
	MUST(memory && memory != MAP_FAILED);
	use(memory, "a library that a constructor has opened");
}

static void own(void)
{
	void *library = open_library("./deep_own.so");
	char *memory = ((shared_of *)find(library, "plugin_shared"))(4 * MiB);
	MUST(memory != MAP_FAILED);
	memset(memory, 1, 4 * MiB);
	int calls = ((int (*)(void))find(library, "own_calls"))();
	if (calls != 1)
		bad("its own mmap was called %d times", calls);
	swap_some();
}

/* Threads open, use and close it at once, while others fork. */
static void *opens(void *argument)
{
	for (int k = 0; k < 40; k++) {
		char path[64];
		snprintf(path, sizeof path, "./deep_plugin.so%s", (k + (int)(intptr_t)argument) % 2 ? "" : ".copy");
		void *library = open_library(path);
		char *memory = ((shared_of *)find(library, "plugin_shared"))(2 * MiB);
		MUST(memory != MAP_FAILED);
		must_be_swapped(memory, "of a thread");
		memset(memory, k + 1, 2 * MiB);
		if (k % 8 == 0) {
			pid_t child = fork();
			MUST(child >= 0);
			if (child == 0)
				_exit(memory[MiB] != k + 1);
			must_succeed(child, "a child of a thread");
		}
		MUST(memory[0] == k + 1 && memory[2 * MiB - 1] == k + 1 && munmap(memory, 2 * MiB) == 0);
		MUST(dlclose(library) == 0);
	}
	return argument;
}

static void threads(void)
{
	pthread_t list[6];
	for (size_t k = 0; k < 6; k++)
		MUST(pthread_create(&list[k], NULL, opens, (void *)k) == 0);
	for (size_t k = 0; k < 6; k++)
		MUST(pthread_join(list[k], NULL) == 0);
	swap_some();
}

/* Where a tag of its dynamic section leads. */
static const void *of_library(const struct link_map *library, Elf64_Sxword tag)
{
	for (const Elf64_Dyn *entry = library->l_ld; entry->d_tag != DT_NULL; entry++)
		if (entry->d_tag == tag)
			return (const void *)(entry->d_un.d_ptr < library->l_addr ? entry->d_un.d_ptr + library->l_addr : entry->d_un.d_ptr);
	bad("no tag %lx in %s", (unsigned long)tag, library->l_name);
}

/* All functions that the agent wraps are found in libc as they are found by any other library. */
static void names(void)
{
	Dl_info info;
	struct link_map *agent;
	open_library("./deep_plugin.so");
	void *libc = dlopen("libc.so.6", RTLD_LAZY);
	MUST(libc && dladdr1(dlsym(RTLD_DEFAULT, "mmap"), &info, (void **)&agent, RTLD_DL_LINKMAP));
	const Elf64_Sym *symbols = of_library(agent, DT_SYMTAB);
	const char *strings = of_library(agent, DT_STRTAB);
	/* Buckets, first symbol, words of the filter; the filter, the buckets, and a word for each symbol, odd for the last of a bucket. */
	const uint32_t *hash = of_library(agent, DT_GNU_HASH), *buckets = hash + 4 + 2 * hash[2], *chain = buckets + hash[0];
	int found = 0;
	for (uint32_t bucket = 0; swaps() && bucket < hash[0]; bucket++)
		for (uint32_t index = buckets[bucket]; index >= hash[1]; index = chain[index - hash[1]] & 1 ? 0 : index + 1) {
			const char *name = strings + symbols[index].st_name;
			void *own = (void *)(agent->l_addr + symbols[index].st_value), *libcs = dlsym(libc, name);
			if (libcs && libcs != own)
				bad("%s of libc is not the agent's", name);
			found += libcs == own;
		}
	if (swaps() && found < 40)
		bad("only %d functions of libc are the agent's", found);
	MUST(dlsym(libc, "getpid") && dlsym(libc, "munmap"));
	swap_some();
}

/* A library that was preloaded has the first word of what the program calls, and is not asked for ever by what another calls. */
static void replaced(void)
{
	int (*calls)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "first_calls");
	MUST(calls);
	void *plugin = open_library("./deep_plugin.so");
	char *places[] = { ((shared_of *)find(plugin, "plugin_shared"))(4 * MiB),
			   mmap(NULL, 4 * MiB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) };
	int (*advise[])(void *, size_t, int) = { (int (*)(void *, size_t, int))find(plugin, "plugin_advise"), madvise };
	pid_t (*forks[])(void) = { (pid_t (*)(void))find(plugin, "plugin_fork"), fork };
	for (int k = 0; k < 2; k++) {
		MUST(places[k] != MAP_FAILED);
		fill(places[k], 4 * MiB, 3);
		MUST(advise[k](places[k], 4 * MiB, MADV_DONTNEED) == 0);
		int before = calls();
		pid_t child = forks[k]();
		MUST(child >= 0);
		if (child == 0) {
			check(places[k], 4 * MiB, 3, "in a child");
			_exit(0);
		}
		must_succeed(child, "a child");
		MUST(k == 0 || calls() > before);
	}
	swap_some();
}

int main(int count, char **arguments)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = { { "shared", shared },   { "constructor", constructor }, { "needed", needed },
		      { "address", by_address }, { "advice", advice },		 { "looked-up", looked_up },
		      { "runpath", runpath }, { "nested", nested },		 { "own", own },
		      { "threads", threads }, { "names", names },		 { "replaced", replaced } };
	if (count > 2 && !strcmp(arguments[2], "lazy"))
		mode = RTLD_LAZY | RTLD_DEEPBIND;
	for (size_t k = 0; count > 1 && k < sizeof cases / sizeof *cases; k++)
		if (!strcmp(cases[k].name, arguments[1])) {
			cases[k].run();
			printf("ok %s\n", arguments[1]);
			return 0;
		}
	return 2;
}
