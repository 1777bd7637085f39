/*
 * ptrace() for User-Mode Linux on processors whose extended state (XSAVE) is larger than the buffer
 * that it has for it.
 *
 * User-Mode Linux saves and restores the registers of its processes by ptrace. Its buffer has a
 * fixed size, and the host's kernel takes only a whole state: on processors with AMX restoring
 * fails, and the machine ends at its first process. This library is loaded before the C library. It
 * passes the part that fits, and keeps the rest as the process has it; User-Mode Linux's processes
 * use no AMX.
 *
 * No header of a C library is included, and none is linked: the kernel runs with that of its own
 * suite.
 */
#include <linux/elf.h>
#include <linux/ptrace.h>
#include <linux/uio.h>
#include <sys/syscall.h>

/* An extended state with AMX's tiles has 11,008 bytes. */
enum { XSTATE_MAX = 32768 };

int *__errno_location(void);

static long syscall4(long number, long a, long b, long c, long d)
{
	register long fourth __asm__("r10") = d;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
			 : "rcx", "r11", "memory");
	return result;
}

static long call(long request, long pid, long address, void *data)
{
	return syscall4(SYS_ptrace, request, pid, address, (long)data);
}

static void copy(char *to, const char *from, unsigned long size)
{
	/* As an instruction, so that the compiler makes no call of a function. */
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory");
}

/* Gets or sets the part of the extended state that fits into the caller's buffer. */
static long xstate(long request, long pid, struct iovec *part)
{
	static char whole[XSTATE_MAX] __attribute__((aligned(64)));
	struct iovec all = {.iov_base = whole, .iov_len = sizeof(whole)};
	unsigned long size;
	long result;

	result = call(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &all);
	if (result < 0)
		return result;
	size = part->iov_len < all.iov_len ? part->iov_len : all.iov_len;
	if (request == PTRACE_SETREGSET) {
		copy(whole, part->iov_base, size);
		return call(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &all);
	}
	copy(part->iov_base, whole, size);
	part->iov_len = size;
	return 0;
}

long ptrace(long request, long pid, long address, void *data)
{
	long result, word;

	if ((request == PTRACE_GETREGSET || request == PTRACE_SETREGSET) &&
	    address == NT_X86_XSTATE) {
		result = xstate(request, pid, data);
	} else if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSR) {
		/* The C library returns the word that the kernel stores. */
		result = call(request, pid, address, &word);
		if (result >= 0) {
			*__errno_location() = 0;
			return word;
		}
	} else {
		result = call(request, pid, address, data);
	}
	if (result < 0) {
		*__errno_location() = (int)-result;
		return -1;
	}
	return result;
}
