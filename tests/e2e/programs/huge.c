/* Forks again and again, with memory for which huge pages are wanted: each child looks at some pages of each of them. */
#include "check.h"

#define LEN (60 * MiB)
#define STEP 8

int main(void)
{
	char *memory = map(LEN);
	MUST(madvise(memory, LEN, MADV_HUGEPAGE) == 0);
	fill(memory, LEN, 1);
	for (int n = 0; n < 60; n++) {
		pid_t child = fork();
		MUST(child >= 0);
		if (child == 0) {
			for (size_t page = n % STEP; page < LEN / PAGE; page += STEP)
				check_pages(memory, page, page + 1, 1, "in a child");
			_exit(0);
		}
		int status;
		MUST(waitpid(child, &status, 0) == child && status == 0);
	}
	check(memory, LEN, 1, "in the parent");
	printf("ok\n");
	return 0;
}
