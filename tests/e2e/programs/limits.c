/*
 * Fills what malloc gives, at most MIB, and checks all of it, again and again; where malloc gives no more, it makes do.
 *
 *     limits MIB ROUNDS CHILDREN     then forks CHILDREN times; each child checks, changes and checks again
 *
 * Prints "good" at the end, and "full" when malloc had no more.
 */
#include "check.h"

enum { PIECE = 1 << 20 };

static char **pieces;
static size_t count;

static uint64_t content(size_t piece, size_t page, uint64_t seed) { return mix(piece * 256 + page + seed * 0x9e3779b9u) | 1; }

static void fill_all(uint64_t seed)
{
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < PIECE / PAGE; k++)
			for (size_t w = 0; w < 32; w++)
				((uint64_t *)(pieces[i] + k * PAGE))[w] = content(i, k, seed);
}

static void verify_all(uint64_t seed)
{
	for (size_t i = 0; i < count; i++)
		for (size_t k = 0; k < PIECE / PAGE; k++)
			for (size_t w = 0; w < 32; w += 31) {
				uint64_t is = ((volatile uint64_t *)(pieces[i] + k * PAGE))[w];
				if (is != content(i, k, seed))
					bad("piece %zu page %zu word %zu is %lx", i, k, w, (unsigned long)is);
			}
}

int main(int argc, char **argv)
{
	MUST(argc == 4);
	size_t most = (size_t)atol(argv[1]);
	int rounds = atoi(argv[2]), children = atoi(argv[3]);
	MUST((pieces = malloc(most * sizeof *pieces)) != NULL);
	int full = 0;
	while (count < most && !full) {
		char *piece = malloc(PIECE);
		if (!piece) {
			full = 1;
			break;
		}
		pieces[count++] = piece;
		for (size_t k = 0; k < PIECE / PAGE; k++)
			for (size_t w = 0; w < 32; w++)
				((uint64_t *)(piece + k * PAGE))[w] = content(count - 1, k, 1);
	}
	for (int round = 0; round < rounds; round++)
		verify_all(1);
	for (int c = 0; c < children; c++) {
		pid_t pid = fork();
		int why = errno;
		MUST(pid >= 0 || why == ENOMEM);
		if (pid < 0) {
			printf("child none\n");
			continue;
		}
		if (pid == 0) {
			verify_all(1);
			fill_all(2);
			verify_all(2);
			_exit(0);
		}
		int status;
		MUST(waitpid(pid, &status, 0) == pid);
		printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
		verify_all(1);
	}
	fill_all(3);
	verify_all(3);
	puts(full ? "full" : "all");
	puts("good");
	return 0;
}
