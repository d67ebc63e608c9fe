/*
 * Sends with MSG_ZEROCOPY: what the receiver reads is what the pages had when they were sent, whatever becomes of them in the
 * program. The option of the socket comes from somewhere that nobody has seen. Cases: see main.
 */
#include "cases.h"
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { SOCKETS = 8 };
static const size_t EACH = 4 * MiB;

/* As if it had been done before the exec. */
static long round_libc(long number, long a, long b, long c, long d, long e)
{
	long answer;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
	__asm__ volatile("syscall"
			 : "=a"(answer)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
			 : "rcx", "r11", "memory");
	return answer;
}

static void connection(int *to, int *from)
{
	int listening = socket(AF_INET, SOCK_STREAM, 0), small = 4096, on = 1;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof address;
	MUST(bind(listening, (struct sockaddr *)&address, len) == 0 && listen(listening, 1) == 0);
	MUST(getsockname(listening, (struct sockaddr *)&address, &len) == 0);
	MUST(setsockopt(listening, SOL_SOCKET, SO_RCVBUF, &small, sizeof small) == 0);
	MUST((*to = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	MUST(round_libc(SYS_setsockopt, *to, SOL_SOCKET, SO_ZEROCOPY, (long)&on, sizeof on) == 0);
	MUST(connect(*to, (struct sockaddr *)&address, len) == 0);
	MUST((*from = accept(listening, NULL, NULL)) >= 0 && close(listening) == 0);
	MUST(fcntl(*to, F_SETFL, O_NONBLOCK) == 0);
}

static ssize_t send_piece(int way, int to, void *p, size_t bytes)
{
	struct iovec io = { p, bytes };
	struct mmsghdr message = { .msg_hdr = { .msg_iov = &io, .msg_iovlen = 1 } };
	switch (way) {
	case 0: return send(to, p, bytes, MSG_ZEROCOPY);
	case 1: return sendto(to, p, bytes, MSG_ZEROCOPY, NULL, 0);
	case 2: return sendmsg(to, &message.msg_hdr, MSG_ZEROCOPY);
	default: return sendmmsg(to, &message, 1, MSG_ZEROCOPY) == 1 ? (ssize_t)message.msg_len : -1;
	}
}

/* Sends as much as goes. */
static size_t send_pages(int way, int to, char *p, size_t bytes)
{
	size_t sent = 0;
	ssize_t n;
	do {
		size_t piece = bytes - sent < 64 << 10 ? bytes - sent : 64 << 10;
		n = send_piece(way, to, p + sent, piece);
		sent += n > 0 ? (size_t)n : 0;
	} while (n > 0 && sent < bytes);
	return sent;
}

static void pages_in_sockets(int way)
{
	int to[SOCKETS], from[SOCKETS];
	size_t sent[SOCKETS];
	char *p = map(SOCKETS * EACH), *in = map(EACH);
	fill(p, SOCKETS * EACH, 21);
	push_out(p, SOCKETS * EACH, "before it is sent");
	for (size_t k = 0; k < SOCKETS; k++) {
		connection(&to[k], &from[k]);
		sent[k] = send_pages(way, to[k], p + k * EACH, EACH);
		MUST(sent[k] > PAGE);
	}
	for (int k = 0; k < 6; k++) {
		ballast();
		check(p, SOCKETS * EACH, 21, "source");
	}
	for (size_t k = 0; k < SOCKETS; k++) {
		size_t got = 0;
		MUST(close(to[k]) == 0);
		for (ssize_t n; (n = read(from[k], in + got, EACH - got)) > 0; got += (size_t)n)
			;
		MUST(got == sent[k] && close(from[k]) == 0);
		for (size_t page = 0; page < got / PAGE; page++)
			if (wrong_word((uint64_t *)(in + page * PAGE), 21, k * EACH / PAGE + page) < WORDS)
				bad("page %zu of socket %zu is wrong", page, k);
	}
}

static void by_send(void) { pages_in_sockets(0); }
static void by_sendto(void) { pages_in_sockets(1); }
static void by_sendmsg(void) { pages_in_sockets(2); }
static void by_sendmmsg(void) { pages_in_sockets(3); }

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "send", by_send }, { "sendto", by_sendto }, { "sendmsg", by_sendmsg }, { "sendmmsg", by_sendmmsg },
	};
	return RUN_CASE(argc, argv, cases);
}
