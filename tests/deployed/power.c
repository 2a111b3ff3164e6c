/* Which bytes of the files below a folder would survive a power cut: those of the last fsync.

   Preloaded into a process. When it syncs a file, the file's content is copied to a second folder;
   when it syncs a directory, the directory's names are. Nothing else counts as durable. power.py
   puts a folder back to that state.

   A process can also be told to kill itself at its n-th call that changes or syncs such a file. */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char root[PATH_MAX];
static char shadow[PATH_MAX];
static long calls_left;

void covey_power_watch(const char *folder, const char *copies) {
    snprintf(root, sizeof root, "%s/", folder);
    snprintf(shadow, sizeof shadow, "%s", copies);
}

/* Kill this process at its n-th call from now on; 0: never. */
void covey_power_cut(long n) {
    __atomic_store_n(&calls_left, n, __ATOMIC_SEQ_CST);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return 1;
}

static int below_root(const char *path) {
    return root[0] && strncmp(path, root, strlen(root)) == 0;
}

static int watched(int fd) {
    char path[PATH_MAX];
    return root[0] && path_of(fd, path) && below_root(path);
}

static void count_call(void) {
    if (__atomic_load_n(&calls_left, __ATOMIC_SEQ_CST) <= 0) return;
    if (__atomic_sub_fetch(&calls_left, 1, __ATOMIC_SEQ_CST) == 0) {
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
}

/* The name of a file's copy: its inode, and when it was made, as inodes are used again. */
static int copy_name(int at, const char *name, int flags, char *out, mode_t *mode) {
    struct statx facts;
    if (statx(at, name, flags | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &facts))
        return 0;
    snprintf(out, 64, "%llu-%lld.%u", (unsigned long long)facts.stx_ino,
             (long long)facts.stx_btime.tv_sec, facts.stx_btime.tv_nsec);
    *mode = facts.stx_mode;
    return 1;
}

static void copy_file(int fd, int out) {
    char buffer[1 << 16];
    off_t place = 0;
    for (;;) {
        ssize_t got = pread(fd, buffer, sizeof buffer, place);
        if (got <= 0) break;
        if (syscall(SYS_pwrite64, out, buffer, got, place) != got) break;
        place += got;
    }
}

static void copy_names(const char *path, int out) {
    DIR *folder = opendir(path);
    if (folder == NULL) return;
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        char name[64];
        char line[PATH_MAX];
        mode_t mode;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (!copy_name(dirfd(folder), entry->d_name, 0, name, &mode)) continue;
        int length = snprintf(line, sizeof line, "%s %s\n", name, entry->d_name);
        syscall(SYS_write, out, line, length);
    }
    closedir(folder);
}

/* What is in a file or directory now survives a power cut. */
static void keep(int fd) {
    char path[PATH_MAX], copy[64], temporary[PATH_MAX + 128], final[PATH_MAX + 128];
    mode_t mode;
    if (!path_of(fd, path) || !copy_name(fd, "", AT_EMPTY_PATH, copy, &mode)) return;
    snprintf(final, sizeof final, "%s/%s", shadow, copy);
    snprintf(temporary, sizeof temporary, "%s/%s.%d", shadow, copy, (int)gettid());
    int out = open(temporary, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out < 0) return;
    if (S_ISDIR(mode))
        copy_names(path, out);
    else
        copy_file(fd, out);
    close(out);
    rename(temporary, final);
}

static int synced(int fd, long number) {
    if (!watched(fd)) return syscall(number, fd);
    count_call();
    keep(fd);
    count_call();
    return 0;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }

int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

ssize_t pwrite(int fd, const void *data, size_t size, off_t place) {
    if (calls_left > 0 && watched(fd)) count_call();
    return syscall(SYS_pwrite64, fd, data, size, place);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t place) {
    return pwrite(fd, data, size, place);
}

ssize_t write(int fd, const void *data, size_t size) {
    if (calls_left > 0 && watched(fd)) count_call();
    return syscall(SYS_write, fd, data, size);
}

int ftruncate(int fd, off_t size) {
    if (calls_left > 0 && watched(fd)) count_call();
    return syscall(SYS_ftruncate, fd, size);
}

int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }

int unlink(const char *path) {
    if (calls_left > 0 && below_root(path)) count_call();
    return syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
