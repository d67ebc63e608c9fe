/* A library whose constructor waits for a thread that does what takes libc's or the loader's locks in a wrapper. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static void *works(void *unused)
{
	(void)unused;
	int shell = system("exit 3"), ends[2], one = 1;
	char byte = 'x', line[8] = "";
	FILE *said = popen("echo said", "r");
	if (!said || !fgets(line, sizeof line, said) || pclose(said))
		line[0] = 0;
	struct iovec piece = { &byte, 1 };
	int spliced = pipe(ends) ? -1 : (int)vmsplice(ends[1], &piece, 1, 0);
	int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
	int set = setsockopt(socket_fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
	int id = shmget(IPC_PRIVATE, 4096, 0600);
	void *segment = shmat(id, NULL, 0);
	shmctl(id, IPC_RMID, NULL);
	int locked = mlockall(MCL_FUTURE) || munlockall();
	printf("system %d, popen %.4s, vmsplice %d, setsockopt %d, shmat %d, mlockall %d\n", shell >> 8, line, spliced, set,
	       segment == (void *)-1, locked);
	fflush(stdout);
	return NULL;
}

__attribute__((constructor)) static void construct(void)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, works, NULL) == 0)
		pthread_join(thread, NULL);
}
