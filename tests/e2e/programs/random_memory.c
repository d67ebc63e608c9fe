/*
 * A tree of processes that map, write, read, move, grow, cut, discard and free memory at random, and fork. Each
 * knows what every page of its own must hold, and what it does follows from its seed alone.
 *
 * random_memory SEED OPS MAPS MAX_PAGES FORKS SETUID_PERCENT [OPSET]
 *
 * A process has up to MAPS mappings of up to MAX_PAGES pages, and performs OPS operations; its children have its
 * memory, and perform fewer. FORKS processes are forked in the whole tree, of which eight live at a time. That many
 * percent of them become another user first, if this one is root. OPSET is like "write=20,move=10,fork=1": operations
 * and their weights, in place of all.
 *
 * Ends with 3 when a page is wrong or a child did not end with 0, with 4 when it takes too long, and tells the latest
 * operations.
 */
#include "check.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>

enum {
	MAPS_MAX = 64,
	DEPTH_MAX = 3,
	LIVING_MAX = 8, /* processes */
	KEPT = 40, /* operations that are told of */
	RUN_MAX = 256, /* pages that one operation reads or writes */
	FILE_PAGES = 32,
	SECONDS = 100,
	NOBODY = 65534,
	WRONG = 3,
	LATE = 4,
};

/* Where the kernel puts nothing by itself. */
#define ARENA ((char *)0x200000000000)

/*
 * Word 0 is `head`, the others follow from `tag`, and are zero where that is 0. A freed page may be all zeros by now.
 */
struct page {
	uint64_t tag;
	uint32_t head;
	uint32_t freed;
};

struct mapping {
	char *base; /* NULL: none */
	size_t pages;
	int locked; /* perhaps in part */
	struct page *shadow;
};

struct span {
	struct mapping *m;
	size_t first, count;
};

struct done {
	const char *name;
	unsigned long step, arguments[5];
};

static struct mapping mappings[MAPS_MAX];
static size_t maps, max_pages;
static uint64_t random_state, process_seed;
static char path[64] = "0"; /* which child of which child */
static unsigned depth, children_born, percent_setuid;
static size_t quota; /* processes that this one and its children may still fork */
static size_t room = LIVING_MAX - 1; /* and how many of them may live at once */
static struct child {
	pid_t pid;
	size_t room;
} children[LIVING_MAX];
static size_t living;
static unsigned long step, steps;
static struct done ring[KEPT];
static size_t ring_next;
static size_t arena_next;
static int channel[2], file = -1;
static double deadline;
static const char *where = "start";

static uint64_t next_random(void) { return mix(random_state += 0x9e3779b97f4a7c15ull); }
static size_t below(size_t bound) { return next_random() % bound; }
static int one_in(size_t n) { return below(n) == 0; }

static uint64_t word_of_tag(uint64_t tag, size_t w)
{
	switch (tag & 3) {
	case 0: return mix(tag + w);
	case 1: return tag + (w & 15);
	case 2: return w == (tag >> 2 & (WORDS - 1)) ? tag : 0;
	default: return tag;
	}
}

static uint64_t expected(const struct page *p, size_t w)
{
	return w == 0 ? p->head : p->tag ? word_of_tag(p->tag, w) : 0;
}

static struct page new_page(void)
{
	uint64_t tag = next_random();
	return (struct page){ .tag = tag, .head = (uint32_t)mix(tag) };
}

static void fill_from(uint64_t *words, const struct page *p)
{
	for (size_t w = 0; w < WORDS; w++)
		words[w] = expected(p, w);
}

static uint64_t *words_at(const struct mapping *m, size_t page) { return (uint64_t *)(m->base + page * PAGE); }

/* What goes wrong, and what was done before. */

__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[400];
	va_list list;
	va_start(list, format);
	int n = vsnprintf(line, sizeof line, format, list);
	va_end(list);
	if (n > (int)sizeof line - 1)
		n = sizeof line - 1;
	if (write(2, line, (size_t)n) < 0)
		_exit(98);
}

static void say_where(void)
{
	say("process %s (pid %d), its seed %#lx, step %lu of %lu, %s\n", path, (int)getpid(),
	    (unsigned long)process_seed, step, steps, where);
}

static void say_latest(void)
{
	for (size_t k = 0; k < KEPT; k++) {
		const struct done *d = &ring[(ring_next + k) % KEPT];
		if (d->name)
			say("%s %lu %s %lx %lu %lx %lu %lu\n", path, d->step, d->name, d->arguments[0], d->arguments[1],
			    d->arguments[2], d->arguments[3], d->arguments[4]);
	}
}

static void end_children(void)
{
	for (size_t k = 0; k < living; k++)
		kill(children[k].pid, SIGKILL);
}

#define FAIL(status, ...)                      \
	do {                                   \
		say("BAD: " __VA_ARGS__);      \
		say_where();                   \
		say_latest();                  \
		end_children();                \
		_exit(status);                 \
	} while (0)

#define DEMAND(condition)                                                                          \
	do {                                                                                       \
		if (!(condition))                                                                  \
			FAIL(WRONG, "line %d: %s: %s\n", __LINE__, #condition, strerror(errno));   \
	} while (0)

static void on_alarm(int signal)
{
	(void)signal;
	FAIL(LATE, "it takes too long\n");
}

/* What an operation is about to do: address, pages, target, pages there, and what else there is. */
static void note(const char *name, const void *from, size_t pages, const void *to, size_t pages_to, unsigned long more)
{
	unsigned long start = (unsigned long)from, target = (unsigned long)to;
	ring[ring_next] = (struct done){ name, step, { start, pages, target, pages_to, more } };
	ring_next = (ring_next + 1) % KEPT;
}

static void note_span(const char *name, struct span s, unsigned long more)
{
	note(name, words_at(s.m, s.first), s.count, NULL, 0, more);
}

/* Checks. */

static size_t first_wrong(const uint64_t *words, const struct page *p)
{
	for (size_t w = 0; w < WORDS; w++)
		if (((const volatile uint64_t *)words)[w] != expected(p, w))
			return w;
	return WORDS;
}

__attribute__((noreturn))
static void tell_wrong(const char *what, const uint64_t *words, const struct page *p, size_t w)
{
	uint64_t found = words[w];
	FAIL(WRONG, "%s: page %p word %zu is %lx, must be %lx%s\n", what, (const void *)words, w, (unsigned long)found,
	     (unsigned long)expected(p, w), p->freed ? " or zero" : "");
}

/* A page may be freed at any moment, between two words, too; from then on it is zeros. */
static void check_page(const struct mapping *m, size_t page, const char *what)
{
	struct page *p = &m->shadow[page];
	size_t w = first_wrong(words_at(m, page), p);
	if (w == WORDS)
		return;
	const struct page zeros = { 0 };
	if (!p->freed || first_wrong(words_at(m, page), &zeros) < WORDS)
		tell_wrong(what, words_at(m, page), p, w);
	*p = zeros;
}

static void check_span(struct span s, const char *what)
{
	for (size_t k = 0; k < s.count; k++)
		check_page(s.m, s.first + k, what);
}

static void check_everything(const char *what)
{
	where = what;
	for (size_t k = 0; k < maps; k++)
		check_span((struct span){ &mappings[k], 0, mappings[k].base ? mappings[k].pages : 0 }, what);
}

/* Mappings. */

static struct mapping *unused(void)
{
	for (size_t k = 0; k < maps; k++)
		if (!mappings[k].base)
			return &mappings[k];
	return NULL;
}

static size_t count_unused(void)
{
	size_t count = 0;
	for (size_t k = 0; k < maps; k++)
		count += !mappings[k].base;
	return count;
}

/* A random one that is not `other`, or NULL. */
static struct mapping *some_mapping_but(const struct mapping *other)
{
	size_t from = below(maps);
	for (size_t k = 0; k < maps; k++) {
		struct mapping *m = &mappings[(from + k) % maps];
		if (m->base && m != other)
			return m;
	}
	return NULL;
}

static struct span some_part(struct mapping *m, size_t most)
{
	size_t first = below(m->pages), left = m->pages - first;
	return (struct span){ m, first, 1 + below(left < most ? left : most) };
}

/* All of it, its beginning, its end, or what lies between. */
static struct span some_piece(struct mapping *m)
{
	struct span s = some_part(m, m->pages);
	switch (below(4)) {
	case 0: return (struct span){ m, 0, m->pages };
	case 1: return (struct span){ m, 0, s.count };
	case 2: return (struct span){ m, s.first, m->pages - s.first };
	default: return s;
	}
}

static int is_in_the_middle(struct span s) { return s.first > 0 && s.first + s.count < s.m->pages; }

static void set_mapping(struct mapping *m, char *base, size_t pages, int locked)
{
	m->base = base;
	m->pages = pages;
	m->locked = locked;
}

static void forget_content(struct span s) { memset(s.m->shadow + s.first, 0, s.count * sizeof *s.m->shadow); }

static void copy_content(struct mapping *to, size_t at, struct span s)
{
	memmove(to->shadow + at, s.m->shadow + s.first, s.count * sizeof *s.m->shadow);
}

/* The pages are not mapped there any more; what is left becomes up to two mappings. */
static void take_out(struct span s)
{
	struct mapping *m = s.m;
	size_t end = s.first + s.count, behind = m->pages - end;
	if (is_in_the_middle(s)) {
		struct mapping *rest = unused();
		set_mapping(rest, m->base + end * PAGE, behind, m->locked);
		copy_content(rest, 0, (struct span){ m, end, behind });
	} else if (s.first == 0) {
		copy_content(m, 0, (struct span){ m, end, behind });
		set_mapping(m, behind ? m->base + end * PAGE : NULL, behind, m->locked);
		return;
	}
	m->pages = s.first;
}

static void unmap_at(char *start, size_t pages) { DEMAND(munmap(start, pages * PAGE) == 0); }

static char *map_at(char *start, size_t pages, int protection, int flags)
{
	return mmap(start, pages * PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
}

static char *reserve(char *wanted, size_t pages)
{
	char *place = wanted ? map_at(wanted, pages, PROT_NONE, MAP_FIXED_NOREPLACE) : MAP_FAILED;
	if (place == MAP_FAILED)
		place = map_at(NULL, pages, PROT_NONE, 0);
	DEMAND(place != MAP_FAILED);
	return place;
}

/* In the arena, with a hole before it or not, behind or before a mapping, or (NULL) where the kernel likes. */
static char *wanted_place(size_t pages)
{
	size_t choice = below(5), hole = below(3);
	const struct mapping *neighbour = some_mapping_but(NULL);
	if (choice == 0) {
		char *place = ARENA + (arena_next + hole) * PAGE;
		arena_next += hole + pages;
		return place;
	}
	if (choice <= 2 && neighbour)
		return choice == 1 ? neighbour->base + neighbour->pages * PAGE : neighbour->base - pages * PAGE;
	return NULL;
}

/* Reserved, or not mapped. */
static char *free_place(size_t pages)
{
	char *place = reserve(wanted_place(pages), pages);
	if (one_in(2))
		unmap_at(place, pages);
	return place;
}

/* In another mapping, of which a piece goes, or NULL. There must be room for its rest, and for those of the moved. */
static char *place_in_another(size_t pages, const struct mapping *other)
{
	struct mapping *m = some_mapping_but(other);
	size_t first = next_random();
	if (!m || m->pages < pages)
		return NULL;
	struct span s = { m, first % (m->pages - pages + 1), pages };
	if (count_unused() < 3)
		return NULL;
	char *place = m->base + s.first * PAGE;
	check_span((struct span){ m, s.first, 1 }, "before it is overwritten");
	take_out(s);
	return place;
}

static void prepare_advice(struct mapping *m)
{
	if (m->locked)
		DEMAND(munlock(m->base, m->pages * PAGE) == 0);
	m->locked = 0;
}

/* Operations. Each may find nothing to do. */

static void do_map(struct mapping *m)
{
	size_t pages = 1 + below(one_in(3) ? 64 < max_pages ? 64 : max_pages : max_pages);
	char *wanted = wanted_place(pages);
	m = unused();
	if (!m)
		return;
	char *place = wanted ? map_at(wanted, pages, PROT_READ | PROT_WRITE, MAP_FIXED_NOREPLACE) : MAP_FAILED;
	if (place == MAP_FAILED)
		place = map_at(NULL, pages, PROT_READ | PROT_WRITE, 0);
	DEMAND(place != MAP_FAILED);
	note("map", place, pages, wanted, 0, 0);
	set_mapping(m, place, pages, 0);
	forget_content((struct span){ m, 0, pages });
}

static void do_unmap(struct mapping *m)
{
	note("unmap", m->base, m->pages, NULL, 0, 0);
	for (size_t page = 0; page < m->pages; page += 7)
		check_page(m, page, "before it is unmapped");
	unmap_at(m->base, m->pages);
	m->base = NULL;
}

static void do_cut(struct mapping *m)
{
	struct span s = some_piece(m);
	if (is_in_the_middle(s) && !unused())
		return;
	note_span("cut", s, 0);
	unmap_at(m->base + s.first * PAGE, s.count);
	take_out(s);
}

static void *resized(struct mapping *m, size_t pages, int flags)
{
	char *base = mremap(m->base, m->pages * PAGE, pages * PAGE, flags);
	if (base != MAP_FAILED)
		m->base = base;
	else
		note("refused", m->base, pages, NULL, 0, (unsigned long)errno);
	return base;
}

static void do_grow(struct mapping *m)
{
	size_t more = 1 + below(max_pages / 2 + 1), pages = m->pages + more < max_pages ? m->pages + more : max_pages;
	int flags = one_in(8) ? 0 : MREMAP_MAYMOVE;
	if (pages <= m->pages)
		return;
	note("grow", m->base, m->pages, NULL, pages, (unsigned long)flags);
	if (resized(m, pages, flags) == MAP_FAILED)
		return;
	struct span grown = { m, m->pages, pages - m->pages };
	note("grown", m->base, pages, NULL, 0, 0);
	forget_content(grown);
	m->pages = pages;
	check_page(m, grown.first, "what has grown");
	check_page(m, grown.first - 1, "before what has grown");
}

static void do_shrink(struct mapping *m)
{
	size_t pages = 1 + below(m->pages);
	note("shrink", m->base, m->pages, NULL, pages, 0);
	if (resized(m, pages, one_in(2) ? MREMAP_MAYMOVE : 0) != MAP_FAILED)
		m->pages = pages;
}

/* As long as it was, or longer, or shorter. */
static size_t length_there(struct span s)
{
	size_t choice = below(8), less = 1 + below(s.count), more = s.count + below(max_pages / 4 + 1);
	return choice == 0 ? less : choice == 1 && more <= max_pages ? more : s.count;
}

static void arrive(struct mapping *to, char *place, struct span s, size_t pages)
{
	size_t moved = pages < s.count ? pages : s.count;
	set_mapping(to, place, pages, s.m->locked);
	copy_content(to, 0, (struct span){ s.m, s.first, moved });
	forget_content((struct span){ to, moved, pages - moved });
}

/* What is moved out of the middle of a mapping leaves two, beside itself. */
static int is_room_for(struct span s)
{
	return count_unused() >= (size_t)(s.count < s.m->pages) + (size_t)is_in_the_middle(s);
}

/* The kernel may have cleared the place all the same, and cut off what was not to arrive. */
static void move_was_refused(struct span s, char *place, size_t pages)
{
	note("refused", words_at(s.m, s.first), s.count, place, pages, (unsigned long)errno);
	unmap_at(place, pages);
	if (pages >= s.count)
		return;
	struct span rest = { s.m, s.first + pages, s.count - pages };
	unmap_at((char *)words_at(s.m, rest.first), rest.count);
	take_out(rest);
}

static struct mapping *has_moved(struct span s, char *place, size_t pages)
{
	if (s.count < s.m->pages) {
		struct mapping *to = unused();
		arrive(to, place, s, pages);
		take_out(s);
		return to;
	}
	set_mapping(s.m, place, pages, s.m->locked);
	if (pages > s.count)
		forget_content((struct span){ s.m, s.count, pages - s.count });
	return s.m;
}

static void do_move(struct mapping *m)
{
	struct span s = some_piece(m);
	size_t pages = length_there(s);
	char *place = one_in(4) ? place_in_another(pages, m) : NULL;
	if (!place)
		place = free_place(pages);
	note("move", words_at(m, s.first), s.count, place, pages, 0);
	if (!is_room_for(s)) {
		unmap_at(place, pages);
		return;
	}
	void *there = mremap(words_at(m, s.first), s.count * PAGE, pages * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	if (there == MAP_FAILED) {
		move_was_refused(s, place, pages);
		return;
	}
	DEMAND(there == place);
	struct mapping *to = has_moved(s, place, pages);
	check_page(to, below(pages), "moved");
}

static void do_leave(struct mapping *m)
{
	struct span s = some_piece(m);
	struct mapping *to = unused();
	if (!to)
		return;
	int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP | (one_in(2) ? MREMAP_FIXED : 0);
	char *from = m->base + s.first * PAGE;
	char *place = flags & MREMAP_FIXED ? free_place(s.count) : NULL;
	note("leave", from, s.count, place, s.count, (unsigned long)flags);
	char *there = mremap(from, s.count * PAGE, s.count * PAGE, flags, place);
	if (there == MAP_FAILED) {
		note("refused", from, s.count, place, s.count, (unsigned long)errno);
		if (place)
			unmap_at(place, s.count);
		return;
	}
	note("left", from, s.count, there, s.count, 0);
	arrive(to, there, s, s.count);
	forget_content(s);
	check_page(m, s.first + below(s.count), "left behind");
	check_page(to, below(s.count), "moved away");
}

static void write_one(struct mapping *m, size_t page)
{
	m->shadow[page] = new_page();
	fill_from(words_at(m, page), &m->shadow[page]);
}

static void do_write(struct mapping *m)
{
	struct span s = some_part(m, RUN_MAX);
	if (one_in(3)) {
		note("write some", m->base, m->pages, NULL, 0, 0);
		for (size_t k = 0; k < 8; k++)
			write_one(m, below(m->pages));
		return;
	}
	note_span("write", s, 0);
	for (size_t k = 0; k < s.count; k++)
		write_one(m, s.first + k);
}

/* One word of some pages. What had been freed is there for good then, or is not. */
static void do_poke(struct mapping *m)
{
	note("poke", m->base, m->pages, NULL, 0, 0);
	for (size_t k = 0; k < 16; k++) {
		size_t page = below(m->pages);
		struct page *p = &m->shadow[page];
		volatile uint64_t *words = words_at(m, page);
		words[0] = p->head = (uint32_t)next_random();
		if (p->freed && first_wrong((const uint64_t *)words, p) < WORDS)
			p->tag = 0;
		p->freed = 0;
		check_page(m, page, "poked");
	}
}

static void do_read(struct mapping *m)
{
	struct span s = some_part(m, RUN_MAX);
	if (one_in(3)) {
		note("read some", m->base, m->pages, NULL, 0, 0);
		for (size_t k = 0; k < 8; k++)
			check_page(m, below(m->pages), "read");
		return;
	}
	note_span("read", s, 0);
	check_span(s, "read");
}

static void do_discard(struct mapping *m)
{
	struct span s = one_in(2) ? some_piece(m) : some_part(m, 16);
	prepare_advice(m);
	note_span("discard", s, 0);
	DEMAND(madvise(words_at(m, s.first), s.count * PAGE, MADV_DONTNEED) == 0);
	forget_content(s);
	check_page(m, s.first + below(s.count), "discarded");
}

static void do_free(struct mapping *m)
{
	struct span s = one_in(2) ? some_piece(m) : some_part(m, 16);
	prepare_advice(m);
	note_span("free", s, 0);
	DEMAND(madvise(words_at(m, s.first), s.count * PAGE, MADV_FREE) == 0);
	for (size_t k = 0; k < s.count; k++)
		m->shadow[s.first + k].freed = 1;
}

static void do_protect(struct mapping *m)
{
	struct span s = some_piece(m), looked_at = { m, s.first, s.count < 32 ? s.count : 32 };
	int protection = one_in(2) ? PROT_READ : PROT_NONE;
	note_span("protect", s, (unsigned long)protection);
	DEMAND(mprotect(words_at(m, s.first), s.count * PAGE, protection) == 0);
	if (protection == PROT_READ)
		check_span(looked_at, "protected");
	DEMAND(mprotect(words_at(m, s.first), s.count * PAGE, PROT_READ | PROT_WRITE) == 0);
	check_span(looked_at, "not protected any more");
}

static int is_freeing(void);

/*
 * Not MADV_PAGEOUT beside MADV_FREE: then a process was seen to lose pages that it had not freed,
 * without uswap, on Linux 6.18, in a tree of forks. It is not known why.
 */
static void do_advise(struct mapping *m)
{
	static const int advice[] = { MADV_WILLNEED, MADV_COLD, MADV_PAGEOUT };
	struct span s = some_piece(m);
	size_t which = below(3) % (is_freeing() ? 2 : 3);
	prepare_advice(m);
	note_span("advise", s, (unsigned long)advice[which]);
	/* Not every kernel knows all of it; the content stays in any case. */
	(void)!madvise(words_at(m, s.first), s.count * PAGE, advice[which]);
	check_page(m, s.first + below(s.count), "advised");
}

static void lock_pages(struct mapping *m, const char *name, int stays)
{
	struct span s = some_part(m, 16);
	note_span(name, s, 0);
	/* It may be more than the user may lock. */
	int is_locked = mlock(words_at(m, s.first), s.count * PAGE) == 0;
	m->locked |= is_locked;
	check_span(s, "locked");
	if (is_locked && !stays)
		DEMAND(munlock(words_at(m, s.first), s.count * PAGE) == 0);
}

static void do_lock(struct mapping *m) { lock_pages(m, "lock", 0); }
static void do_pin(struct mapping *m) { lock_pages(m, "pin", 1); }

/* A freed page may go meanwhile, and is left out. */
static void check_copy(struct span s, const uint64_t *copy, const char *what)
{
	for (size_t k = 0; k < s.count; k++) {
		const struct page *p = &s.m->shadow[s.first + k];
		size_t w = p->freed ? WORDS : first_wrong(copy + k * WORDS, p);
		if (w < WORDS)
			tell_wrong(what, copy + k * WORDS, p, w);
	}
}

static uint64_t copy[16 * WORDS];

static void do_look(struct mapping *m)
{
	struct span s = some_part(m, 16);
	struct iovec to = { copy, s.count * PAGE }, from = { words_at(m, s.first), s.count * PAGE };
	note_span("look", s, 0);
	DEMAND(process_vm_readv(getpid(), &to, 1, &from, 1, 0) == (ssize_t)(s.count * PAGE));
	check_copy(s, copy, "read by process_vm_readv");
}

static struct page page_of_file(size_t k) { return (struct page){ .tag = mix(k + 1), .head = (uint32_t)k }; }

static void do_pread(struct mapping *m)
{
	struct span s = some_part(m, FILE_PAGES);
	size_t at = below(FILE_PAGES - s.count + 1);
	note_span("pread", s, at);
	ssize_t bytes = (ssize_t)(s.count * PAGE);
	DEMAND(pread(file, words_at(m, s.first), (size_t)bytes, (off_t)(at * PAGE)) == bytes);
	for (size_t k = 0; k < s.count; k++)
		m->shadow[s.first + k] = page_of_file(at + k);
	check_page(m, s.first + below(s.count), "read from a file");
}

/* From pages into a pipe, and from there into others. */
static void do_pipe(struct mapping *m)
{
	struct span s = some_part(m, 8);
	struct mapping *to = some_mapping_but(NULL);
	note("pipe", words_at(m, s.first), s.count, to->base, to->pages, 0);
	ssize_t bytes = (ssize_t)(s.count * PAGE);
	check_span(s, "before it is written to a pipe");
	DEMAND(write(channel[1], words_at(m, s.first), (size_t)bytes) == bytes);
	DEMAND(read(channel[0], copy, (size_t)bytes) == bytes);
	check_copy(s, copy, "written to a pipe");
	for (size_t k = 0; k < 2; k++) {
		size_t page = below(to->pages);
		to->shadow[page] = new_page();
		fill_from(copy, &to->shadow[page]);
		DEMAND(write(channel[1], copy, PAGE) == (ssize_t)PAGE);
		DEMAND(read(channel[0], words_at(to, page), PAGE) == (ssize_t)PAGE);
	}
}

static void do_rest(struct mapping *m)
{
	long ms = 1 + (long)below(3);
	note("rest", m->base, 0, NULL, 0, (unsigned long)ms);
	sleep_ms(ms);
}

/* The oldest one, so that it does not matter which is faster. */
static void reap_one(void)
{
	pid_t child = children[0].pid;
	note("reap", NULL, 0, NULL, 0, (unsigned long)child);
	where = "waiting for a child";
	int status = status_of(child);
	room += children[0].room;
	memmove(children, children + 1, --living * sizeof *children);
	if (status)
		FAIL(WRONG, "child %d ended with %d\n", (int)child, status);
}

static void do_reap(struct mapping *m)
{
	(void)m;
	if (living)
		reap_one();
}

static void open_channel(void)
{
	DEMAND(pipe(channel) == 0);
	int seconds = (int)(deadline - now()) - 3 * (int)depth;
	alarm(seconds > 0 ? (unsigned)seconds : 1);
}

static void become_child(uint64_t seed, size_t its_quota, size_t its_room, int is_nobody)
{
	depth++;
	size_t end = strlen(path);
	snprintf(path + end, sizeof path - end, ".%u", children_born);
	random_state = process_seed = seed;
	quota = its_quota;
	room = its_room;
	children_born = 0;
	living = 0;
	steps -= (steps - step) / 2;
	close(channel[0]);
	close(channel[1]);
	if (is_nobody) {
		DEMAND(setresgid(NOBODY, NOBODY, NOBODY) == 0);
		DEMAND(setresuid(NOBODY, NOBODY, NOBODY) == 0);
	}
	DEMAND(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
	open_channel();
}

static void do_fork(struct mapping *m)
{
	uint64_t seed = next_random();
	int is_nobody = below(100) < percent_setuid && geteuid() == 0;
	if (!quota || depth == DEPTH_MAX || (!room && !living))
		return;
	while (!room)
		reap_one();
	size_t its_quota = below((quota + 1) / 2), its_room = below(room / 2 + 1);
	note("fork", m->base, its_quota, NULL, its_room, (unsigned long)is_nobody);
	where = "fork";
	pid_t child = fork();
	DEMAND(child >= 0);
	children_born++;
	if (child == 0) {
		become_child(seed, its_quota, its_room, is_nobody);
		return;
	}
	quota -= 1 + its_quota;
	room -= 1 + its_room;
	children[living++] = (struct child){ child, 1 + its_room };
}

static struct operation {
	const char *name;
	void (*perform)(struct mapping *m);
	unsigned weight;
} operations[] = {
	{ "map", do_map, 12 },
	{ "unmap", do_unmap, 2 },
	{ "cut", do_cut, 4 },
	{ "grow", do_grow, 6 },
	{ "shrink", do_shrink, 3 },
	{ "move", do_move, 6 },
	{ "leave", do_leave, 3 },
	{ "write", do_write, 24 },
	{ "poke", do_poke, 6 },
	{ "read", do_read, 20 },
	{ "discard", do_discard, 4 },
	{ "free", do_free, 3 },
	{ "protect", do_protect, 3 },
	{ "advise", do_advise, 2 },
	{ "lock", do_lock, 1 },
	{ "pin", do_pin, 1 },
	{ "look", do_look, 3 },
	{ "pread", do_pread, 3 },
	{ "pipe", do_pipe, 2 },
	{ "rest", do_rest, 1 },
	{ "fork", do_fork, 3 },
	{ "reap", do_reap, 1 },
};

enum { OPERATIONS = sizeof operations / sizeof *operations };

static struct operation *operation_named(const char *name, size_t length)
{
	for (size_t k = 0; k < OPERATIONS; k++)
		if (strlen(operations[k].name) == length && !memcmp(operations[k].name, name, length))
			return &operations[k];
	return NULL;
}

static int is_freeing(void) { return operation_named("free", strlen("free"))->weight > 0; }

static size_t weights(void)
{
	size_t all = 0;
	for (size_t k = 0; k < OPERATIONS; k++)
		all += operations[k].weight;
	return all;
}

static int read_opset(const char *text)
{
	for (size_t k = 0; k < OPERATIONS; k++)
		operations[k].weight = 0;
	while (*text) {
		const char *sign = strchr(text, '=');
		struct operation *o = sign ? operation_named(text, (size_t)(sign - text)) : NULL;
		char *end = NULL;
		if (!o)
			return 0;
		o->weight = (unsigned)strtoul(sign + 1, &end, 10);
		text = *end == ',' ? end + 1 : end;
	}
	return weights() > 0;
}

static const struct operation *some_operation(void)
{
	size_t k = 0, at = below(weights());
	while (at >= operations[k].weight)
		at -= operations[k++].weight;
	return &operations[k];
}

static void make_file(void)
{
	file = memfd_create("pages", MFD_CLOEXEC);
	DEMAND(file >= 0);
	for (size_t k = 0; k < FILE_PAGES; k++) {
		struct page p = page_of_file(k);
		fill_from(copy, &p);
		DEMAND(write(file, copy, PAGE) == (ssize_t)PAGE);
	}
}

static void make_shadow(void)
{
	struct page *shadow = map(maps * max_pages * sizeof *shadow);
	for (size_t k = 0; k < maps; k++)
		mappings[k].shadow = shadow + k * max_pages;
}

static void work(void)
{
	for (; step < steps; step++) {
		const struct operation *o = some_operation();
		struct mapping *m = some_mapping_but(NULL);
		where = o->name;
		if (m)
			o->perform(m);
		else
			do_map(NULL);
	}
}

int main(int argc, char **argv)
{
	if (argc < 7 || (argc > 7 && !read_opset(argv[7]))) {
		fprintf(stderr, "usage: random_memory SEED OPS MAPS MAX_PAGES FORKS SETUID_PERCENT [OPSET]\n");
		return 2;
	}
	process_seed = random_state = mix(strtoull(argv[1], NULL, 10) + 1);
	steps = strtoul(argv[2], NULL, 10);
	maps = strtoul(argv[3], NULL, 10);
	max_pages = strtoul(argv[4], NULL, 10);
	quota = strtoul(argv[5], NULL, 10);
	percent_setuid = (unsigned)strtoul(argv[6], NULL, 10);
	if (maps < 1 || maps > MAPS_MAX || max_pages < 1 || max_pages > 1 << 16)
		return 2;
	signal(SIGALRM, on_alarm);
	deadline = now() + SECONDS;
	make_shadow();
	make_file();
	open_channel();
	work();
	check_everything("at its end");
	while (living)
		reap_one();
	check_everything("after its children");
	return 0;
}
