/*
 * A library that puts its own memory functions, clock, files and thread-local storage before libc's, and looks into a table of its
 * own before it works, as sanitizers do. The table is large and mostly cold: who calls these functions touches memory that is swapped out.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHADOW ((size_t)64 << 20)
static volatile unsigned char *shadow;
static void *(*real_tls)(size_t *);

__attribute__((constructor)) static void construct(void)
{
	unsigned char *table = mmap(NULL, SHADOW, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (table == MAP_FAILED)
		__builtin_trap();
	for (size_t at = 0; at < SHADOW; at++)
		table[at] = (unsigned char)(at >> 12 | 1);
	real_tls = (void *(*)(size_t *))dlsym(RTLD_NEXT, "__tls_get_addr");
	shadow = table;
}

static void look(const volatile void *address)
{
	size_t at = ((uintptr_t)address >> 3) * 0x9e3779b97f4a7c15ull >> 38;
	if (shadow && shadow[at] != (unsigned char)(at >> 12 | 1))
		__builtin_trap();
}

void *memset(void *target, int value, size_t bytes)
{
	look(target);
	for (volatile unsigned char *at = target; bytes--;)
		*at++ = (unsigned char)value;
	return target;
}

void *memcpy(void *restrict target, const void *restrict source, size_t bytes)
{
	look(target);
	look(source);
	const volatile unsigned char *from = source;
	for (volatile unsigned char *at = target; bytes--;)
		*at++ = *from++;
	return target;
}

void *memmove(void *target, const void *source, size_t bytes)
{
	look(target);
	look(source);
	volatile unsigned char *to = target;
	const volatile unsigned char *from = source;
	if ((uintptr_t)to - (uintptr_t)from >= bytes)
		while (bytes--)
			*to++ = *from++;
	else
		while (bytes--)
			to[bytes] = from[bytes];
	return target;
}

int memcmp(const void *one, const void *other, size_t bytes)
{
	look(one);
	look(other);
	const volatile unsigned char *left = one, *right = other;
	for (; bytes--; left++, right++)
		if (*left != *right)
			return *left - *right;
	return 0;
}

/* A module that has no storage of its own in this thread yet, one that was loaded later, is the loader's business. */
void *__tls_get_addr(size_t *index)
{
	size_t *vector;
	look(index);
	__asm__("mov %%fs:8, %0" : "=r"(vector));
	if (real_tls && vector[2 * index[0]] == (size_t)-1)
		return real_tls(index);
	return (char *)vector[2 * index[0]] + index[1];
}

ssize_t read(int fd, void *target, size_t bytes)
{
	look(target);
	return syscall(SYS_read, fd, target, bytes);
}

ssize_t write(int fd, const void *source, size_t bytes)
{
	look(source);
	return syscall(SYS_write, fd, source, bytes);
}

int close(int fd)
{
	look((void *)((uintptr_t)fd << 12));
	return (int)syscall(SYS_close, fd);
}

int munmap(void *start, size_t bytes)
{
	look(start);
	return (int)syscall(SYS_munmap, start, bytes);
}

int bcmp(const void *one, const void *other, size_t bytes) { return memcmp(one, other, bytes); }

int clock_gettime(clockid_t clock, struct timespec *time)
{
	look(time);
	return (int)syscall(SYS_clock_gettime, clock, time);
}

size_t strlen(const char *text)
{
	look(text);
	size_t bytes = 0;
	while (((const volatile char *)text)[bytes])
		bytes++;
	return bytes;
}
