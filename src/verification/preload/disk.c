/* A disk that fails on request, for LD_PRELOAD.
 *
 * The file named by QUORATE_DISK_FAULT holds one word and a number; while it is there, calls behave
 * as it says:
 *
 *   sync-fails 0     the next sync fails with EIO; the file is removed by it: a fault for once
 *   sync-takes MS    every sync takes so many milliseconds longer
 *   write-fails 0    every write and allocation fails with ENOSPC
 *   read-fails 0     every read fails with EIO
 *
 * Only calls that a node makes for its data are caught: it reads and writes at positions.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* The number that goes with `word`, or -1 if that is not what is asked for. */
static long asked(const char *word)
{
    const char *path = getenv("QUORATE_DISK_FAULT");
    char text[64] = "", found[32] = "";
    long number = -1;
    int kept = errno;
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        ssize_t size = read(file, text, sizeof text - 1);
        close(file);
        if (size <= 0 || sscanf(text, "%31s %ld", found, &number) != 2 || strcmp(found, word))
            number = -1;
    }
    errno = kept;
    return number;
}

static int refused(const char *word, int error)
{
    if (asked(word) < 0)
        return 0;
    errno = error;
    return 1;
}

/* Whether a sync is to fail. Several may ask at once: the one that removes the file has it. */
static int sync_fails(void)
{
    long milliseconds = asked("sync-takes");
    if (milliseconds > 0) {
        struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
        while (nanosleep(&left, &left) && errno == EINTR)
            ;
    }
    if (asked("sync-fails") < 0 || unlink(getenv("QUORATE_DISK_FAULT")))
        return 0;
    errno = EIO;
    return 1;
}

int fsync(int file)
{
    return sync_fails() ? -1 : REAL(fsync)(file);
}

int fdatasync(int file)
{
    return sync_fails() ? -1 : REAL(fdatasync)(file);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at)
{
    return refused("write-fails", ENOSPC) ? -1 : REAL(pwrite64)(file, data, size, at);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t at)
{
    return refused("write-fails", ENOSPC) ? -1 : REAL(pwritev64)(file, parts, count, at);
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t at, int flags)
{
    return refused("write-fails", ENOSPC) ? -1 : REAL(pwritev64v2)(file, parts, count, at, flags);
}

int posix_fallocate64(int file, off64_t at, off64_t size)
{
    return refused("write-fails", ENOSPC) ? ENOSPC : REAL(posix_fallocate64)(file, at, size);
}

ssize_t pread64(int file, void *data, size_t size, off64_t at)
{
    return refused("read-fails", EIO) ? -1 : REAL(pread64)(file, data, size, at);
}
