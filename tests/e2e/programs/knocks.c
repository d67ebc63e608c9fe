/*
 * knocks FILE: leaves a daemon behind that takes all the supervisor's descriptors, by connections over which it says nothing, and
 * creates FILE two seconds after this program has ended.
 */
#include "check.h"
#include <fcntl.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>

static void knock(const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t length = strlen(name);
	MUST(length < sizeof address.sun_path);
	memcpy(address.sun_path + 1, name, length);
	int fd;
	while ((fd = socket(AF_UNIX, SOCK_SEQPACKET, 0)) >= 0)
		if (connect(fd, (struct sockaddr *)&address,
			    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) != 0)
			break;
}

int main(int argc, char **argv)
{
	int ready[2];
	char byte;
	if (argc != 2)
		return 2;
	const char *name = getenv("USWAP_SOCKET");
	MUST(name && pipe(ready) == 0);
	pid_t daemon = fork();
	MUST(daemon >= 0);
	if (daemon == 0) {
		setsid();
		knock(name);
		MUST(write(ready[1], "x", 1) == 1);
		usleep(2000000);
		close(ready[0]);
		MUST(open(argv[1], O_CREAT | O_WRONLY, 0600) >= 0);
		_exit(0);
	}
	MUST(read(ready[0], &byte, 1) == 1);
	/* The supervisor takes them in. */
	usleep(300000);
	return 0;
}
