/* Threads that map, write, check, discard, move, protect and unmap memory of their own, all at once. Each word has a value that
 * its thread knows.
 *
 * churn SEED SECONDS THREADS [MIB]
 *
 * In the environment: MASK says which operations, one bit for each; what is left out is a write instead, and the bit above all
 * lets a mremap to a fixed place be of several mappings. RUN_AS is a user to become first. All threads together fill MIB at
 * most, if that is said. Ends with 1 when a word was wrong, and tells of the first ones. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    PAGE = 4096,
    WORDS = PAGE / 8,
    MAPPINGS = 24,
    THREADS_MAX = 256,
    STEPS = 50,
    TOLD_MAX = 6,
};

/* Bits of MASK. */
enum operation {
    OP_UNMAP,
    OP_WRITE,
    OP_WRITE_MORE,
    OP_WRITE_STILL_MORE,
    OP_READ,
    OP_READ_MORE,
    OP_READ_STILL_MORE,
    OP_DISCARD,
    OP_RESIZE,
    OP_MOVE_OVER,
    OP_MAP_OVER,
    OP_HUGE,
    OP_PROTECT,
    OP_FREE_LAZILY,
    OP_LEAVE_MAPPED,
    OP_PAGE_OUT,
    OPERATIONS,
    SPLIT_MOVES = OPERATIONS, /* The bit above. */
};

struct mapping {
    char *base; /* NULL: none */
    size_t pages;
    uint32_t *values; /* of each page; 0: zeros */
    int is_split; /* It may consist of several mappings by now, which one mremap moves since Linux 6.17, to a fixed place. */
};

struct thread {
    uint64_t random;
    struct mapping mappings[MAPPINGS];
};

static double deadline;
static long operations = 0xffff, performed, refused, wrong;
static uint64_t seed;
static size_t pages_max = 1500;

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ x >> 33;
}

static uint64_t next_random(struct thread *t)
{
    return t->random = mix(t->random + 0x9e3779b97f4a7c15ULL);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Every second page does not compress. */
static uint64_t expected(uint32_t value, int word)
{
    if (!value)
        return 0;
    return value & 1 ? mix(value * 512ULL + (uint64_t)word) : value * 0x100000001ULL + (uint64_t)word / 32;
}

static void write_page(struct mapping *m, size_t page, uint32_t value)
{
    uint64_t *words = (uint64_t *)(m->base + page * PAGE);
    for (int word = 0; word < WORDS; word++)
        words[word] = expected(value, word);
    m->values[page] = value;
}

static void check_page(struct mapping *m, size_t page, const char *when)
{
    const volatile uint64_t *words = (uint64_t *)(m->base + page * PAGE);
    uint32_t value = m->values[page];
    for (int word = 0; word < WORDS; word++) {
        uint64_t found = words[word];
        if (found == expected(value, word))
            continue;
        if (__sync_add_and_fetch(&wrong, 1) <= TOLD_MAX) {
            printf("WRONG at %s: page %p word %d has %lx, not %lx\n", when, (void *)(m->base + page * PAGE), word,
                   (unsigned long)found, (unsigned long)expected(value, word));
            fflush(stdout);
        }
        return;
    }
}

static void *allocate(size_t pages)
{
    void *base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? NULL : base;
}

static void map(struct thread *t, struct mapping *m)
{
    size_t pages = 1 + next_random(t) % (next_random(t) % 4 ? 64 : pages_max);
    char *base = allocate(pages);
    if (!base) {
        __sync_add_and_fetch(&refused, 1);
        return;
    }
    *m = (struct mapping){.base = base, .pages = pages, .values = calloc(pages, sizeof *m->values)};
}

static void unmap(struct mapping *m)
{
    for (size_t page = 0; page < m->pages; page++)
        check_page(m, page, "munmap");
    munmap(m->base, m->pages * PAGE);
    free(m->values);
    m->base = NULL;
}

static void resize(struct thread *t, struct mapping *m)
{
    size_t pages = 1 + next_random(t) % (pages_max + 100);
    char *base = mremap(m->base, m->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (base == MAP_FAILED) {
        __sync_add_and_fetch(&refused, 1);
        return;
    }
    m->base = base;
    m->values = realloc(m->values, pages * sizeof *m->values);
    for (size_t page = m->pages; page < pages; page++)
        m->values[page] = 0;
    m->pages = pages;
    for (size_t page = 0; page < pages; page += 7)
        check_page(m, page, "mremap");
}

static void move_over(struct thread *t, struct mapping *m, size_t page)
{
    size_t bytes = m->pages * PAGE;
    char *target = allocate(m->pages);
    if (!target)
        return;
    if (next_random(t) & 1)
        memset(target, 0x5a, bytes > 65536 ? 65536 : bytes);
    char *base = mremap(m->base, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (base == MAP_FAILED) {
        static unsigned char there[1 << 20];
        int why = errno;
        __sync_add_and_fetch(&refused, 1);
        if (mincore(m->base, bytes, there)) {
            printf("WRONG: a mremap that failed (errno %d) has moved a part\n", why);
            fflush(stdout);
            _exit(77);
        }
        munmap(target, bytes);
        return;
    }
    m->base = base;
    check_page(m, page, "mremap to a fixed place");
}

static void leave_mapped(struct thread *t, struct mapping *m, size_t page)
{
    size_t bytes = m->pages * PAGE;
    char *base = mremap(m->base, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
    if (base == MAP_FAILED) {
        __sync_add_and_fetch(&refused, 1);
        return;
    }
    char *old = m->base;
    m->base = base;
    const volatile uint64_t *words = (uint64_t *)(old + page * PAGE);
    if (words[next_random(t) % WORDS]) {
        __sync_add_and_fetch(&wrong, 1);
        printf("WRONG: what was moved away is still there\n");
    }
    munmap(old, bytes);
    check_page(m, page, "MREMAP_DONTUNMAP");
}

/* Something is done to `count` pages from `page` on, or to the whole mapping. */
static void perform(struct thread *t, struct mapping *m, enum operation operation, size_t page, size_t count)
{
    char *start = m->base + page * PAGE;
    size_t end = page + count, bytes = count * PAGE;
    switch (operation) {
    case OP_UNMAP:
        unmap(m);
        break;
    case OP_READ:
    case OP_READ_MORE:
    case OP_READ_STILL_MORE:
        for (; page < end; page++)
            check_page(m, page, "read");
        break;
    case OP_DISCARD:
        if (madvise(start, bytes, MADV_DONTNEED) == 0)
            memset(m->values + page, 0, count * sizeof *m->values);
        break;
    case OP_RESIZE:
        resize(t, m);
        break;
    case OP_MOVE_OVER:
        move_over(t, m, page);
        break;
    case OP_MAP_OVER:
        m->is_split = 1;
        if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
            memset(m->values + page, 0, count * sizeof *m->values);
        break;
    case OP_HUGE:
        madvise(m->base, m->pages * PAGE, next_random(t) & 1 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
        check_page(m, page, "MADV_HUGEPAGE");
        break;
    case OP_PROTECT:
        m->is_split = 1;
        mprotect(start, bytes, PROT_READ);
        check_page(m, page, "mprotect");
        mprotect(start, bytes, PROT_READ | PROT_WRITE);
        break;
    case OP_FREE_LAZILY:
        for (size_t at = page; at < end; at++)
            write_page(m, at, 0xF000001 | (uint32_t)next_random(t));
        madvise(start, bytes, MADV_FREE);
        for (size_t at = page; at < end; at++)
            write_page(m, at, (uint32_t)next_random(t) | 1 << 20);
        break;
    case OP_LEAVE_MAPPED:
        leave_mapped(t, m, page);
        break;
    case OP_PAGE_OUT:
        madvise(start, bytes, next_random(t) & 1 ? MADV_PAGEOUT : MADV_COLD);
        check_page(m, page, "MADV_PAGEOUT");
        break;
    default:
        for (; page < end; page++)
            write_page(m, page, next_random(t) % 8 ? (uint32_t)next_random(t) | 1 << 20 : 0);
    }
}

static void step(struct thread *t)
{
    struct mapping *m = &t->mappings[next_random(t) % MAPPINGS];
    enum operation operation = next_random(t) % OPERATIONS;
    if (!m->base) {
        map(t, m);
        return;
    }
    if (!(operations >> operation & 1))
        operation = OP_WRITE;
    if (operation == OP_MOVE_OVER && m->is_split && !(operations >> SPLIT_MOVES & 1))
        operation = OP_WRITE;
    size_t page = next_random(t) % m->pages;
    size_t left = m->pages - page;
    perform(t, m, operation, page, 1 + next_random(t) % (left > 128 ? 128 : left));
}

static void *work(void *number)
{
    struct thread t = {.random = mix(seed * 1000 + (uint64_t)(uintptr_t)number + 1)};
    long mine = 0;
    while (now() < deadline)
        for (int i = 0; i < STEPS; i++, mine++)
            step(&t);
    for (int i = 0; i < MAPPINGS; i++)
        for (size_t page = 0; t.mappings[i].base && page < t.mappings[i].pages; page++)
            check_page(&t.mappings[i], page, "the end");
    __sync_add_and_fetch(&performed, mine);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: churn SEED SECONDS THREADS [MIB]\n");
        return 2;
    }
    if (getenv("MASK"))
        operations = strtol(getenv("MASK"), NULL, 0);
    if (getenv("RUN_AS") && setuid((uid_t)atol(getenv("RUN_AS")))) {
        perror("setuid");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    deadline = now() + atof(argv[2]);
    long threads = atol(argv[3]);
    if (threads < 1 || threads > THREADS_MAX)
        return 2;
    /* A quarter of the mappings are large ones, half of pages_max on average. */
    if (argc > 4)
        pages_max = (size_t)(atol(argv[4]) * 256 / threads / (MAPPINGS / 8)) + 64;
    pthread_t started[THREADS_MAX];
    for (long i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work, (void *)(uintptr_t)i))
            return 2;
    for (long i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    printf("seed %lu operations %ld refused %ld wrong %ld\n", (unsigned long)seed, performed, refused, wrong);
    return wrong ? 1 : 0;
}
