/*
 * Attaches to a shared-memory region of a running ddpd, waits for completions and prints them.
 *
 *     cc -std=c11 -Wall -Wextra -O2 -o attach attach.c
 *     ./attach /run/ddpd/ddpd.sock.attach OBJECT [COUNT]
 *
 * Ends after COUNT completions, or when the region is removed or the appliance ends.
 * docs/shared-memory.md describes the complete interface. The layouts are little-endian, as are the
 * supported machines.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { REPLY_LEN = 48, HEAD = 64, SLOTS = 256, SLOT = 64 };

struct attached {
	int connection, event;
	unsigned char *region;
	const unsigned char *ring;
	uint64_t region_len, capacity;
};

static void fail(const char *what)
{
	fprintf(stderr, "attach: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t word(const unsigned char *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof value);
	return value;
}

static const _Atomic uint64_t *shared(const struct attached *a, size_t at)
{
	return (const _Atomic uint64_t *)(const void *)(a->ring + at);
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		fail("socket");
	if (strlen(path) >= sizeof address.sun_path) {
		errno = ENAMETOOLONG;
		fail(path);
	}
	strcpy(address.sun_path, path);
	if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
		fail(path);
	return fd;
}

/* Requests the object, and receives the reply and three descriptors: region, ring, wake-ups. */
static struct attached attach_to(const char *path, const char *object)
{
	struct attached a = { .connection = connect_to(path) };
	char request[128];
	unsigned char reply[512];
	union {
		char bytes[CMSG_SPACE(3 * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec io = { .iov_base = reply, .iov_len = sizeof reply - 1 };
	struct msghdr message = {
		.msg_iov = &io, .msg_iovlen = 1,
		.msg_control = control.bytes, .msg_controllen = sizeof control.bytes,
	};
	int len = snprintf(request, sizeof request, "%s\n", object), fds[3];
	ssize_t got;
	struct cmsghdr *c;

	if (len < 0 || (size_t)len >= sizeof request || write(a.connection, request, len) != len)
		fail("request");
	got = recvmsg(a.connection, &message, MSG_CMSG_CLOEXEC);
	if (got < REPLY_LEN || memcmp(reply, "DDPM", 4) != 0) {
		errno = EPROTO;
		fail("reply");
	}
	if (memcmp(reply + 4, "\0\0\0\0", 4) != 0) {
		reply[got] = '\0';
		fprintf(stderr, "attach: %s\n", reply + REPLY_LEN);
		exit(1);
	}
	c = CMSG_FIRSTHDR(&message);
	if (!c || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof fds)) {
		errno = EPROTO;
		fail("descriptors");
	}
	memcpy(fds, CMSG_DATA(c), sizeof fds);
	a.region_len = word(reply + 8);
	a.capacity = word(reply + 32);
	a.event = fds[2];
	a.region = mmap(NULL, a.region_len, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
	/* The ring is sealed against writing: a writable mapping fails. */
	a.ring = mmap(NULL, SLOTS + a.capacity * SLOT, PROT_READ, MAP_SHARED, fds[1], 0);
	if (a.region == MAP_FAILED || a.ring == MAP_FAILED)
		fail("mmap");
	return a;
}

/* Prints record n. Returns 1, or 0 if the record was overwritten before it was read. */
static int print_record(const struct attached *a, uint64_t n)
{
	size_t at = SLOTS + (n % a->capacity) * SLOT;
	uint64_t kind_stag, offset, len, stream, i;

	/* Acquire: the bytes that the record describes are visible from here on. */
	if (atomic_load_explicit(shared(a, at), memory_order_acquire) != 2 * n + 2)
		return 0;
	offset = atomic_load_explicit(shared(a, at + 8), memory_order_relaxed);
	len = atomic_load_explicit(shared(a, at + 16), memory_order_relaxed);
	stream = atomic_load_explicit(shared(a, at + 24), memory_order_relaxed);
	kind_stag = atomic_load_explicit(shared(a, at + 32), memory_order_relaxed);
	atomic_thread_fence(memory_order_acquire);
	if (atomic_load_explicit(shared(a, at), memory_order_relaxed) != 2 * n + 2)
		return 0;

	printf("%" PRIu64 ": stream %016" PRIx64 " ", n, stream);
	switch (kind_stag >> 32 & 0xffff) {
	case 1:
		printf("STag 0x%08" PRIx32 ": %" PRIu64 " bytes at %" PRIu64 ":",
		       (uint32_t)kind_stag, len, offset);
		for (i = 0; i < len && i < 16 && offset + i < a->region_len; i++)
			printf(" %02x", a->region[offset + i]);
		printf("\n");
		break;
	case 2:
		printf("may write\n");
		break;
	case 3:
		printf("has ended\n");
		break;
	case 4:
		printf("the region was removed from the network\n");
		break;
	default:
		printf("a kind that this program does not know\n");
	}
	return 1;
}

int main(int argc, char **argv)
{
	struct attached a;
	uint64_t count, seen = 0, next, head, oldest, lost, wakes;
	int open = 1;

	if (argc < 3) {
		fprintf(stderr, "usage: attach SOCKET OBJECT [COUNT]\n");
		return 1;
	}
	count = argc > 3 ? strtoull(argv[3], NULL, 10) : UINT64_MAX;
	a = attach_to(argv[1], argv[2]);
	printf("attached: %" PRIu64 " bytes, ring of %" PRIu64 " slots\n", a.region_len, a.capacity);
	fflush(stdout);
	head = atomic_load_explicit(shared(&a, HEAD), memory_order_acquire);
	next = head > a.capacity ? head - a.capacity : 0;
	for (;;) {
		struct pollfd fds[2] = {
			{ .fd = a.event, .events = POLLIN },
			{ .fd = a.connection, .events = POLLIN },
		};

		/* A wake-up is consumed before the ring is read, so that later completions send another wake-up. */
		if (read(a.event, &wakes, sizeof wakes) < 0 && errno != EAGAIN)
			fail("wake-up");
		while (seen < count
		       && next < (head = atomic_load_explicit(shared(&a, HEAD), memory_order_acquire))) {
			oldest = head > a.capacity ? head - a.capacity : 0;
			if (next < oldest) {
				lost = oldest - next;
				printf("lost %" PRIu64 " completions: too slow\n", lost);
				/* Optional: reports the loss to the appliance, visible in `ddpctl stats`. */
				if (write(a.connection, &lost, sizeof lost) < 0)
					open = 0;
				next = oldest;
			}
			seen += print_record(&a, next);
			next++;
		}
		fflush(stdout);
		if (seen >= count || !open)
			return 0;
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			fail("poll");
		/* The appliance has closed the connection: the last completions are read before the end. */
		if (fds[1].revents)
			open = 0;
	}
}
