/* `BECOME PROGRAM [ARGUMENT...]`: becomes nobody and executes a program. To be linked statically, as gosu is. */
#define _GNU_SOURCE
#include <grp.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	const uid_t nobody = 65534;
	if (argc < 2 || setgroups(0, NULL) || setresgid(nobody, nobody, nobody) || setresuid(nobody, nobody, nobody)) {
		perror("become");
		return 1;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}
