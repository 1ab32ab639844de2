// To be preloaded (LD_PRELOAD): calls that read or write a regular file do at most half of what
// they are asked for, as the system may (write(2): a signal, a quota, a network file system). With
// KEEL_FAIL_FIRST_WRITE=NAME the first write to a file of that name fails with EIO.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>

namespace {

constexpr size_t kDirectBlock = 4096;  // which O_DIRECT goes by

size_t Part(int fd, size_t bytes) {
  struct stat info {};
  const int error = errno;
  const bool on_disk = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  const int flags = on_disk ? fcntl(fd, F_GETFL) : 0;
  errno = error;
  // What /proc says has no size, and comes whole.
  if (!on_disk || bytes < 2 || (info.st_size == 0 && (flags & O_ACCMODE) == O_RDONLY)) return bytes;
  if ((flags & O_DIRECT) == 0) return bytes / 2;
  return bytes <= kDirectBlock ? bytes
                               : (bytes / 2 + kDirectBlock - 1) / kDirectBlock * kDirectBlock;
}

bool Fails(int fd, const char* text, std::atomic<bool>* failed) {
  if (text == nullptr || *failed) return false;
  char link[64];
  char path[4096];
  (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return false;
  path[size] = '\0';
  if (strstr(path, text) == nullptr || failed->exchange(true)) return false;
  errno = EIO;
  return true;
}

bool FailsToWrite(int fd) {
  static const char* const text = getenv("KEEL_FAIL_FIRST_WRITE");
  static std::atomic<bool> failed{false};
  return Fails(fd, text, &failed);
}

bool FailsToRead(int fd) {
  static const char* const text = getenv("KEEL_FAIL_FIRST_READ");
  static std::atomic<bool> failed{false};
  return Fails(fd, text, &failed);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t read(int fd, void* to, size_t bytes) {
  static auto* const next = Next<ssize_t(int, void*, size_t)>("read");
  return FailsToRead(fd) ? -1 : next(fd, to, Part(fd, bytes));
}

ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  static auto* const next = Next<ssize_t(int, void*, size_t, off_t)>("pread");
  return FailsToRead(fd) ? -1 : next(fd, to, Part(fd, bytes), offset);
}
ssize_t pread64(int fd, void* to, size_t bytes, off_t offset) {
  return pread(fd, to, bytes, offset);
}

ssize_t write(int fd, const void* from, size_t bytes) {
  static auto* const next = Next<ssize_t(int, const void*, size_t)>("write");
  return FailsToWrite(fd) ? -1 : next(fd, from, Part(fd, bytes));
}

ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off_t)>("pwrite");
  return FailsToWrite(fd) ? -1 : next(fd, from, Part(fd, bytes), offset);
}
ssize_t pwrite64(int fd, const void* from, size_t bytes, off_t offset) {
  return pwrite(fd, from, bytes, offset);
}

}  // extern "C"
