/* Implements llp.h: with USRSCTP defined over usrsctp, otherwise over Linux's sockets. */
#include "llp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifdef USRSCTP
#include <usrsctp.h>
typedef struct socket *handle;
#else
#include <linux/sctp.h>
#include <sys/ioctl.h>
#include <net/if.h>
#define IPPROTO_SCTP_LEVEL 132
typedef int handle;
#endif

struct llp {
	handle socket;
	int ended, closing, peer_shuts, lost_connecting;
	uint8_t message[MESSAGE_MAX];
	size_t length;		/* received bytes of an incomplete message */
};

/* --- differences between the two stacks --- */

#ifdef USRSCTP

static handle make_socket(int family)
{
	return usrsctp_socket(family, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
}

static int set_option(handle s, int option, const void *value, socklen_t length)
{
	return usrsctp_setsockopt(s, IPPROTO_SCTP, option, value, length);
}

static int get_option(handle s, int option, void *value, socklen_t *length)
{
	return usrsctp_getsockopt(s, IPPROTO_SCTP, option, value, length);
}

static int set_socket_option(handle s, int option, const void *value, socklen_t length)
{
	return usrsctp_setsockopt(s, SOL_SOCKET, option, value, length);
}

static int set_nonblocking(handle s) { return usrsctp_set_non_blocking(s, 1); }
static int bind_to(handle s, struct sockaddr *a, socklen_t n) { return usrsctp_bind(s, a, n); }
static int listen_on(handle s) { return usrsctp_listen(s, 16); }
static int connect_to(handle s, struct sockaddr *a, socklen_t n) { return usrsctp_connect(s, a, n); }
static void stop_sending(handle s) { usrsctp_shutdown(s, SHUT_WR); }
static void close_handle(handle s) { usrsctp_close(s); }

static int accept_on(handle s, handle *accepted)
{
	*accepted = usrsctp_accept(s, NULL, NULL);
	return *accepted ? 0 : -1;
}

static void wait_readable(handle s, int ms)
{
	long until = now_ms() + ms;

	while (!(usrsctp_get_events(s) & (SCTP_EVENT_READ | SCTP_EVENT_ERROR)) && now_ms() < until) usleep(500);
}

static ssize_t send_on(handle s, const void *data, size_t length, struct sctp_sndinfo *info)
{
	return usrsctp_sendv(s, data, length, NULL, 0, info, sizeof *info, SCTP_SENDV_SNDINFO, 0);
}

static ssize_t receive_on(handle s, void *data, size_t length, struct sctp_rcvinfo *info, int *flags)
{
	socklen_t from_length = 0, info_length = sizeof *info;
	unsigned int type = 0;

	*flags = 0;
	return usrsctp_recvv(s, data, length, NULL, &from_length, info, &info_length, &type, flags);
}

void llp_start(const struct llp_options *o) { usrsctp_init(o->encapsulation, NULL, NULL); }

void llp_vanish(struct llp *l)
{
	(void)l;
	_exit(0);
}

void llp_stop(void)
{
	long until = now_ms() + 5000;

	while (usrsctp_finish() && now_ms() < until) usleep(1000);
}

#else

static handle make_socket(int family) { return socket(family, SOCK_STREAM, IPPROTO_SCTP_LEVEL); }

static int set_option(handle s, int option, const void *value, socklen_t length)
{
	return setsockopt(s, IPPROTO_SCTP_LEVEL, option, value, length);
}

static int get_option(handle s, int option, void *value, socklen_t *length)
{
	return getsockopt(s, IPPROTO_SCTP_LEVEL, option, value, length);
}

static int set_socket_option(handle s, int option, const void *value, socklen_t length)
{
	return setsockopt(s, SOL_SOCKET, option, value, length);
}

static int set_nonblocking(handle s)
{
	int on = 1;

	return ioctl(s, FIONBIO, &on);
}

static int bind_to(handle s, struct sockaddr *a, socklen_t n) { return bind(s, a, n); }
static int listen_on(handle s) { return listen(s, 16); }
static int connect_to(handle s, struct sockaddr *a, socklen_t n) { return connect(s, a, n); }
static void stop_sending(handle s) { shutdown(s, SHUT_WR); }
static void close_handle(handle s) { close(s); }

static int accept_on(handle s, handle *accepted)
{
	*accepted = accept(s, NULL, NULL);
	return *accepted < 0 ? -1 : 0;
}

static void wait_readable(handle s, int ms)
{
	struct pollfd p = { .fd = s, .events = POLLIN };

	poll(&p, 1, ms);
}

static ssize_t send_on(handle s, const void *data, size_t length, struct sctp_sndinfo *info)
{
	struct iovec v = { (void *)(uintptr_t)data, length };
	union { struct cmsghdr header; uint8_t room[CMSG_SPACE(sizeof *info)]; } control = { 0 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);

	c->cmsg_level = IPPROTO_SCTP_LEVEL;
	c->cmsg_type = SCTP_SNDINFO;
	c->cmsg_len = CMSG_LEN(sizeof *info);
	memcpy(CMSG_DATA(c), info, sizeof *info);
	return sendmsg(s, &m, MSG_NOSIGNAL);
}

static ssize_t receive_on(handle s, void *data, size_t length, struct sctp_rcvinfo *info, int *flags)
{
	struct iovec v = { data, length };
	uint8_t control[512];
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
	ssize_t n = recvmsg(s, &m, 0);

	if (n < 0) return n;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c))
		if (c->cmsg_level == IPPROTO_SCTP_LEVEL && c->cmsg_type == SCTP_RCVINFO) memcpy(info, CMSG_DATA(c), sizeof *info);
	*flags = m.msg_flags;
	return n;
}

static void write_number(const char *path, int number)
{
	FILE *f = fopen(path, "w");

	if (!f || fprintf(f, "%d\n", number) < 0 || fclose(f)) fail("cannot write %s", path);
}

/* In Linux the UDP ports of RFC 6951 are settings of the namespace. */
void llp_start(const struct llp_options *o)
{
	write_number("/proc/sys/net/sctp/udp_port", o->encapsulation);
	write_number("/proc/sys/net/sctp/encap_port", o->encapsulation);
}

/* Closes while the device is down, so that the kernel's ABORT is not sent. */
void llp_vanish(struct llp *l)
{
	struct ifreq device = { .ifr_name = "eth0" };
	int s = socket(AF_INET, SOCK_DGRAM, 0);

	if (ioctl(s, SIOCGIFFLAGS, &device)) fail("SIOCGIFFLAGS");
	device.ifr_flags &= ~IFF_UP;
	if (ioctl(s, SIOCSIFFLAGS, &device)) fail("SIOCSIFFLAGS");
	llp_close(l, 1);
	usleep(200000);
	device.ifr_flags |= IFF_UP;
	if (ioctl(s, SIOCSIFFLAGS, &device)) fail("SIOCSIFFLAGS");
	exit(0);
}

void llp_stop(void) {}

#endif

/* --- common code --- */

void fail(const char *format, ...)
{
	int number = errno;
	va_list arguments;

	va_start(arguments, format);
	printf("FAILED: ");
	vprintf(format, arguments);
	va_end(arguments);
	printf(" (%s)\n", number ? strerror(number) : "no error number");
	fflush(stdout);
	exit(1);
}

long now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static socklen_t parse_address(const char *text, int port, struct sockaddr_storage *out)
{
	struct sockaddr_in *four = (struct sockaddr_in *)out;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof *out);
	if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = htons(port);
		return sizeof *four;
	}
	if (inet_pton(AF_INET6, text, &six->sin6_addr) != 1) fail("%s is not an address", text);
	six->sin6_family = AF_INET6;
	six->sin6_port = htons(port);
	return sizeof *six;
}

static void set_options(handle s, const struct llp_options *o)
{
	static const int events[] = { SCTP_ASSOC_CHANGE, SCTP_SHUTDOWN_EVENT, SCTP_ADAPTATION_INDICATION, SCTP_SENDER_DRY_EVENT };
	struct sctp_initmsg init = { .sinit_num_ostreams = o->streams, .sinit_max_instreams = o->streams };
	struct sctp_setadaptation adaptation = { .ssb_adaptation_ind = o->indication };
	struct sctp_udpencaps udp = { 0 };
	int on = 1;

	if (set_option(s, SCTP_INITMSG, &init, sizeof init)) fail("SCTP_INITMSG");
	/* RFC 5043 §11.1: both stacks send the parameter only if it is set. */
	if (o->indication >= 0 && set_option(s, SCTP_ADAPTATION_LAYER, &adaptation, sizeof adaptation)) fail("SCTP_ADAPTATION_LAYER");
	if (set_option(s, SCTP_RECVRCVINFO, &on, sizeof on)) fail("SCTP_RECVRCVINFO");
	if (set_option(s, SCTP_NODELAY, &on, sizeof on)) fail("SCTP_NODELAY");
	for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
		struct sctp_event e = { .se_assoc_id = SCTP_FUTURE_ASSOC, .se_type = events[i], .se_on = 1 };

		if (set_option(s, SCTP_EVENT, &e, sizeof e)) fail("SCTP_EVENT %d", events[i]);
	}
	if (!o->encapsulation) return;
	udp.sue_address.ss_family = AF_INET;
	udp.sue_port = htons(o->encapsulation);
	if (set_option(s, SCTP_REMOTE_UDP_ENCAPS_PORT, &udp, sizeof udp)) fail("SCTP_REMOTE_UDP_ENCAPS_PORT");
}

static struct llp *make(handle s)
{
	struct llp *l = calloc(1, sizeof *l);

	if (!l) fail("memory");
	l->socket = s;
	return l;
}

struct llp *llp_connect(const struct llp_options *o)
{
	struct sockaddr_storage peer, own;
	socklen_t length = parse_address(o->address, o->port, &peer), own_length;
	const char *any = peer.ss_family == AF_INET ? "0.0.0.0" : "::";
	struct llp *l = make(make_socket(peer.ss_family));

	set_options(l->socket, o);
	own_length = parse_address(o->from ? o->from : any, o->local_port, &own);
	if ((o->from || o->local_port) && bind_to(l->socket, (struct sockaddr *)&own, own_length)) fail("bind");
	/* A failure is also reported by an event. */
	if (connect_to(l->socket, (struct sockaddr *)&peer, length)) l->lost_connecting = errno ? errno : -1;
	if (set_nonblocking(l->socket)) fail("non-blocking");
	return l;
}

struct llp *llp_listen(const struct llp_options *o)
{
	struct sockaddr_storage own;
	socklen_t length = parse_address(o->address, o->port, &own);
	struct llp *l = make(make_socket(own.ss_family));

	set_options(l->socket, o);
	if (bind_to(l->socket, (struct sockaddr *)&own, length)) fail("bind");
	if (listen_on(l->socket)) fail("listen");
	return l;
}

struct llp *llp_accept(struct llp *listener)
{
	struct llp *l = make(listener->socket);

	if (accept_on(listener->socket, &l->socket)) fail("accept");
	if (set_nonblocking(l->socket)) fail("non-blocking");
	return l;
}

static struct sctp_status status(struct llp *l)
{
	struct sctp_status s = { 0 };
	socklen_t length = sizeof s;

	if (get_option(l->socket, SCTP_STATUS, &s, &length)) fail("SCTP_STATUS");
	return s;
}

size_t llp_message_size(struct llp *l) { return status(l).sstat_fragmentation_point; }

int llp_streams(struct llp *l)
{
	struct sctp_status s = status(l);

	return s.sstat_instrms < s.sstat_outstrms ? s.sstat_instrms : s.sstat_outstrms;
}

int llp_send(struct llp *l, uint16_t stream, uint32_t ppid, int unordered, const void *data, size_t length)
{
	struct sctp_sndinfo info = { .snd_sid = stream, .snd_flags = unordered ? SCTP_UNORDERED : 0, .snd_ppid = htonl(ppid) };
	ssize_t n = send_on(l->socket, data, length, &info);

	if (n == (ssize_t)length) return 1;
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS)) return 0;
	if (n >= 0) fail("a message was sent in part");
	return -1;
}

static struct llp_event ended(struct llp *l, enum llp_kind kind)
{
	struct llp_event e = { .kind = kind };

	l->ended = 1;
	return e;
}

/* Returns the event for an association that has ended without a notification. */
static struct llp_event silent_end(struct llp *l, int error)
{
	if (error == ECONNRESET || error == ECONNABORTED || error == ECONNREFUSED || error == EPIPE) return ended(l, LLP_ABORTED);
	return ended(l, error ? LLP_LOST : LLP_SHUT);
}

static struct llp_event notified(struct llp *l, const union sctp_notification *n)
{
	struct llp_event e = { .kind = LLP_NOTHING };

	switch (n->sn_header.sn_type) {
	case SCTP_ADAPTATION_INDICATION:
		e.kind = LLP_INDICATION;
		e.value = n->sn_adaptation_event.sai_adaptation_ind;
		return e;
	case SCTP_SENDER_DRY_EVENT:
		e.kind = LLP_DRY;
		return e;
	case SCTP_SHUTDOWN_EVENT:
		l->peer_shuts = 1;
		e.kind = LLP_SHUTTING;
		return e;
	case SCTP_ASSOC_CHANGE:
		break;
	default:
		return e;
	}
	switch (n->sn_assoc_change.sac_state) {
	case SCTP_COMM_UP:
		e.kind = LLP_UP;
		return e;
	case SCTP_RESTART:
		e.kind = LLP_RESTARTED;
		return e;
	case SCTP_SHUTDOWN_COMP:
		return ended(l, LLP_SHUT);
	case SCTP_CANT_STR_ASSOC:
		return ended(l, l->lost_connecting == ETIMEDOUT ? LLP_LOST : LLP_ABORTED);
	default:
		/* A lost association is an ABORT, except after a time-out. */
		return ended(l, n->sn_assoc_change.sac_error == ETIMEDOUT ? LLP_LOST : LLP_ABORTED);
	}
}

struct llp_event llp_event(struct llp *l, int ms)
{
	long until = now_ms() + ms;

	for (;;) {
		struct sctp_rcvinfo info = { 0 };
		struct llp_event e = { .kind = LLP_NOTHING };
		int flags = 0, left = until - now_ms();
		ssize_t n;

		if (l->ended) return e;
		if (l->length == sizeof l->message) fail("a message of more than %zu bytes", l->length);
		n = receive_on(l->socket, l->message + l->length, sizeof l->message - l->length, &info, &flags);
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			if (left <= 0) return e;
			wait_readable(l->socket, left);
			continue;
		}
		if (n < 0) return silent_end(l, l->lost_connecting > 0 ? l->lost_connecting : errno);
		/* End of file without a notification. */
		if (n == 0 && !(flags & MSG_NOTIFICATION)) return silent_end(l, l->lost_connecting);
		l->length += n;
		if (!(flags & MSG_EOR)) continue;
		e.length = l->length;
		l->length = 0;
		if (flags & MSG_NOTIFICATION) {
			e = notified(l, (union sctp_notification *)l->message);
			if (e.kind == LLP_NOTHING) continue;
			return e;
		}
		e.kind = LLP_MESSAGE;
		e.data = l->message;
		e.stream = info.rcv_sid;
		e.ppid = ntohl(info.rcv_ppid);
		e.unordered = !!(info.rcv_flags & SCTP_UNORDERED);
		return e;
	}
}

void llp_shutdown(struct llp *l) { stop_sending(l->socket); }

void llp_close(struct llp *l, int abort)
{
	struct linger reset = { 1, 0 };

	if (abort) set_socket_option(l->socket, SO_LINGER, &reset, sizeof reset);
	close_handle(l->socket);
	free(l);
}
