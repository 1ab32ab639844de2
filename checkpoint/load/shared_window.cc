#include "checkpoint/load/shared_window.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <utility>

#include "common/files/posix_file.h"
#include "common/wire.h"

namespace keel::checkpoint {
namespace {

// The nonce has a page of its own, so that the rest begins on one.
int64_t FirstPage() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Process ids mean the same to two processes with equal, not empty, answers.
std::string HostIdentity() {
  char boot[64];
  const Descriptor file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const ssize_t size = file.get() < 0 ? -1 : ::read(file.get(), boot, sizeof boot);
  char space[64];
  const ssize_t length = ::readlink("/proc/self/ns/pid", space, sizeof space);
  if (size <= 0 || length <= 0) return {};
  return std::string(boot, static_cast<size_t>(size)) +
         std::string(space, static_cast<size_t>(length));
}

// Maps all of it where huge pages fit; null when that is not possible.
std::byte* MapAligned(int fd, int64_t bytes, int protection) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const auto size = static_cast<size_t>(bytes);
  // 1. Addresses enough for a huge page's more, of which the ends are given back.
  const size_t pages = (size + 4095) / 4096 * 4096;
  const size_t room = pages + kHugePage;
  void* reserved = ::mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(reserved);
  const size_t head = -reinterpret_cast<uintptr_t>(begin) % kHugePage;
  if (head > 0) (void)::munmap(begin, head);
  (void)::munmap(begin + head + pages, room - head - pages);
  // 2. The memory itself in their place.
  void* memory = ::mmap(begin + head, size, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (memory != MAP_FAILED) return static_cast<std::byte*>(memory);
  (void)::munmap(begin + head, pages);
  return nullptr;
}

// Takes memory: a plain touch has no way to say that there is none.
bool PopulatePages(std::byte* memory, int64_t bytes) {
#ifdef MADV_POPULATE_WRITE
  return ::madvise(memory, static_cast<size_t>(bytes), MADV_POPULATE_WRITE) == 0;
#else
  (void)memory, (void)bytes;
  return false;
#endif
}

}  // namespace

std::string SharedWindow::Offer::Serialize() const {
  WireWriter out;
  out.U32(valid ? 1 : 0).I64(pid).Pod(fd).I64(bytes).Pods(nonce).Raw(host);
  std::string text = std::move(out).Take();
  text.resize(256);  // of all ranks alike, so that one exchange carries them
  return text;
}

SharedWindow::Offer SharedWindow::Offer::Parse(std::string_view text) {
  Offer offer;
  WireReader in(text);
  uint32_t valid = 0;
  std::string_view rest;
  if (!in.U32(&valid) || !in.I64(&offer.pid) || !in.Pod(&offer.fd) || !in.I64(&offer.bytes) ||
      !in.Pods(std::span(offer.nonce)) || !in.Raw(in.remaining(), &rest))
    return {};
  offer.host = rest.substr(0, rest.find('\0'));
  offer.valid = valid == 1 && offer.pid > 0 && offer.pid <= INT_MAX && offer.fd >= 0 &&
                offer.bytes >= 0 && offer.bytes < int64_t{1} << 40 && !offer.host.empty();
  return offer;
}

SharedWindow::Offer SharedWindow::Create(int64_t bytes, int64_t ready) {
  Offer offer;
  offer.host = HostIdentity();
  offer.pid = ::getpid();
  offer.bytes = bytes;
  const int64_t all = FirstPage() + bytes;
  if (offer.host.empty() ||
      ::getrandom(offer.nonce, sizeof offer.nonce, 0) != static_cast<ssize_t>(sizeof offer.nonce))
    return offer;
  Descriptor fd(::memfd_create("keel-load", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0 || ::ftruncate(fd.get(), all) != 0) return offer;
  std::byte* const memory = MapAligned(fd.get(), all, PROT_READ | PROT_WRITE);
  if (memory == nullptr) return offer;
  mapping_ = {memory, static_cast<size_t>(all)};
#ifdef F_SEAL_FUTURE_WRITE
  (void)::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);  // nobody else writes; since Linux 5.1
#endif
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return offer;
  (void)::madvise(memory, static_cast<size_t>(all), MADV_HUGEPAGE);  // a hint: may fail
  // Where the kernel cannot do it by parts, all of it is taken now: MADV_POPULATE_WRITE is there
  // since Linux 5.14.
  if (!PopulatePages(memory, FirstPage() + ready)) {
    if (::fallocate(fd.get(), 0, 0, all) != 0) return offer;
    all_taken_ = true;
  }
  std::memcpy(mapping_.data(), offer.nonce, sizeof offer.nonce);
  own_ = mapping_.subspan(static_cast<size_t>(FirstPage()));
  fd_ = fd.Release();
  offer.fd = fd_;
  offer.valid = true;
  return offer;
}

// Leaves the peer far when anything is not as it says.
void SharedWindow::Open(const Offer& offer, const Offer& mine, Peer* peer) const {
  if (!offer.valid || !mine.valid || offer.host != mine.host) return;
  // 1. The process first: what is found under its number from here on is its own, or nothing.
  Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(offer.pid), 0)));
  if (process.get() < 0) return;
  const std::string path = fmt::format("/proc/{}/fd/{}", offer.pid, offer.fd);
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return;
  // 2. Memory of this size that can get no smaller: reading what is ready can never fail.
  struct stat info {};
  const int64_t all = FirstPage() + offer.bytes;
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size != all) return;
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) return;
  const std::byte* const memory = MapAligned(fd.get(), all, PROT_READ);
  if (memory == nullptr) return;
  peer->mapping = {memory, static_cast<size_t>(all)};
  // 3. That very window.
  if (std::memcmp(peer->mapping.data(), offer.nonce, sizeof offer.nonce) != 0) {
    Forget(peer);
    return;
  }
  peer->bytes = peer->mapping.subspan(static_cast<size_t>(FirstPage()));
  peer->process = process.Release();
}

void SharedWindow::Forget(Peer* peer) {
  if (!peer->mapping.empty())
    (void)::munmap(const_cast<std::byte*>(peer->mapping.data()), peer->mapping.size());
  if (peer->process >= 0) ::close(peer->process);
  *peer = Peer();
}

Result<std::unique_ptr<SharedWindow>> SharedWindow::Make(PeerChannel& channel, bool share,
                                                         int64_t bytes, int64_t ready,
                                                         std::chrono::milliseconds deadline) {
  std::unique_ptr<SharedWindow> window(new SharedWindow);
  const auto world = static_cast<size_t>(channel.world());
  window->peers_.resize(world);
  // 1. Each tells all where its window is ...
  Offer mine;
  if (share) mine = window->Create(bytes, ready);
  const std::string text = mine.Serialize();
  std::vector<std::string> texts(world, std::string(text.size(), '\0'));
  std::vector<PeerChannel::Send> sends;
  std::vector<PeerChannel::Receive> receives;
  for (size_t p = 0; p < world; ++p) {
    const int peer = static_cast<int>(p);
    if (peer == channel.rank()) continue;
    sends.push_back({peer, std::as_bytes(std::span(text))});
    receives.push_back({peer, std::as_writable_bytes(std::span(texts[p]))});
  }
  KEEL_RETURN_IF_ERROR(channel.Exchange(sends, receives, deadline));
  // 2. ... and each other whether it was found there. Two are near when both have found.
  std::vector<uint64_t> found(world, 0), theirs(world, 0);
  sends.clear();
  receives.clear();
  for (size_t p = 0; p < world; ++p) {
    const int peer = static_cast<int>(p);
    if (peer == channel.rank()) continue;
    window->Open(Offer::Parse(texts[p]), mine, &window->peers_[p]);
    found[p] = window->near(peer) ? 1 : 0;
    sends.push_back({peer, std::as_bytes(std::span(&found[p], 1))});
    receives.push_back({peer, std::as_writable_bytes(std::span(&theirs[p], 1))});
  }
  KEEL_RETURN_IF_ERROR(channel.Exchange(sends, receives, deadline));
  for (size_t p = 0; p < world; ++p) {
    if (theirs[p] != 1) Forget(&window->peers_[p]);
  }
  if (const int fd = std::exchange(window->fd_, -1); fd >= 0) ::close(fd);
  // 3. Without memory to share, other memory does for far peers.
  if (!mine.valid) {
    window->private_ = AllocatePages(bytes);
    if (window->private_ == nullptr) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("no memory for {} bytes to hand on what is read", bytes));
    }
    window->own_ = {window->private_.get(), static_cast<size_t>(bytes)};
    std::memset(window->own_.data(), 0, window->own_.size());
  }
  return window;
}

Status SharedWindow::Populate(int64_t begin, int64_t bytes) {
  if (all_taken_ || private_ != nullptr) return Status::Ok();
  const int64_t first = begin / FirstPage() * FirstPage();
  if (PopulatePages(own_.data() + first, begin + bytes - first)) return Status::Ok();
  return Status(StatusCode::kUnavailable,
                fmt::format("no memory for {} bytes to hand on what is read", bytes));
}

SharedWindow::~SharedWindow() {
  for (Peer& peer : peers_) Forget(&peer);
  if (!mapping_.empty()) (void)::munmap(mapping_.data(), mapping_.size());
  if (fd_ >= 0) ::close(fd_);
}

bool SharedWindow::Alive(int peer) const {
  pollfd process{peers_[static_cast<size_t>(peer)].process, POLLIN, 0};
  return ::poll(&process, 1, 0) <= 0;  // readable once it has ended
}

}  // namespace keel::checkpoint
