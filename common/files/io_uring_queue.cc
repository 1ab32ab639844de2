#include "common/files/io_uring_queue.h"

#include <fmt/format.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/files/posix_file.h"

namespace keel {
namespace {

// How often the kernel is asked again to take a write when it has no memory for it, a millisecond
// apart.
constexpr int kSubmitTries = 1000;

class IoUringQueue final : public WriteQueue {
 public:
  explicit IoUringQueue(int depth) : writes_(static_cast<size_t>(depth)) {
    for (Write& write : writes_) free_.push_back(&write);
  }

  // The errno of a refusal, or 0. Only after that may anything else be called.
  int Open() {
    const int error = -io_uring_queue_init(static_cast<unsigned>(writes_.size()), &ring_, 0);
    open_ = error == 0;
    return error;
  }

  bool KnowsWrites() {
    const std::unique_ptr<io_uring_probe, void (*)(io_uring_probe*)> probe(
        io_uring_get_probe_ring(&ring_), io_uring_free_probe);
    return probe != nullptr && io_uring_opcode_supported(probe.get(), IORING_OP_WRITE) != 0;
  }

  // The kernel goes on using the memory of a write after its ring is closed: so all must be over.
  ~IoUringQueue() override {
    while (in_kernel_ > 0 && Reap().first != nullptr) {
    }
    if (open_) io_uring_queue_exit(&ring_);
  }

  void Begin(uint64_t id, File& file, int64_t offset, std::span<const std::byte> data) override {
    auto* const posix = dynamic_cast<PosixFile*>(&file);
    if (posix == nullptr || free_.empty()) {
      over_.push_back(
          {id, Status(StatusCode::kInternal, posix == nullptr ? "io_uring: a file of another kind"
                                                              : "io_uring: the queue is full")});
      return;
    }
    if (!posix->dead().ok() || data.empty()) {
      over_.push_back({id, posix->dead()});
      return;
    }
    Write& write = *free_.back();
    free_.pop_back();
    write = {id, posix, offset, data};
    Submit(write);
  }

  Done Wait() override {
    while (over_.empty()) {
      const auto [write, result] = Reap();
      if (write == nullptr) throw Error(Status::FromErrno(-result, "wait for", "io_uring"));
      if (result == -EINTR || result == -EAGAIN) {
        Submit(*write);
      } else if (result < 0) {
        End(*write, Status::FromErrno(-result, "write", write->file->name()));
      } else if (result == 0) {
        End(*write, WroteNothing("write", write->file->name(), Part(*write)));
      } else {
        write->data = write->data.subspan(static_cast<size_t>(result));
        write->offset += result;
        if (write->data.empty()) {
          End(*write, Status::Ok());
        } else {
          Submit(*write);  // the rest of a short write
        }
      }
    }
    Done done = std::move(over_.front());
    over_.pop_front();
    return done;
  }

 private:
  struct Write {
    uint64_t id = 0;
    PosixFile* file = nullptr;
    int64_t offset = 0;
    std::span<const std::byte> data;  // what is not written yet
  };

  static size_t Part(const Write& write) { return std::min(write.data.size(), kMaxTransfer); }

  void End(Write& write, Status status) {
    over_.push_back({write.id, std::move(status)});
    free_.push_back(&write);
  }

  void Submit(Write& write) {
    if (!refused_.ok()) return End(write, refused_);
    // There is room: a ring has at least as many entries as there are writes.
    io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
    io_uring_prep_write(entry, write.file->descriptor(), write.data.data(),
                        static_cast<unsigned>(Part(write)), static_cast<uint64_t>(write.offset));
    io_uring_sqe_set_data(entry, &write);
    int taken = io_uring_submit(&ring_);
    for (int tries = 0; taken < 0; taken = io_uring_submit(&ring_)) {
      if (taken == -EINTR) continue;
      if ((taken != -EAGAIN && taken != -EBUSY && taken != -ENOMEM) || ++tries > kSubmitTries) {
        // The entry stays in a ring that the kernel is never asked to look at again.
        refused_ = Status::FromErrno(-taken, "submit a write to", write.file->name());
        return End(write, refused_);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ++in_kernel_;
  }

  // Waits for one that the kernel has; null when it cannot even be waited for. The result is the
  // bytes written, or -errno.
  std::pair<Write*, int> Reap() {
    io_uring_cqe* entry = nullptr;
    int error = 0;
    do {
      error = io_uring_wait_cqe(&ring_, &entry);
    } while (error == -EINTR || error == -EAGAIN);
    if (error != 0) return {nullptr, error};
    const std::pair<Write*, int> found(static_cast<Write*>(io_uring_cqe_get_data(entry)),
                                       entry->res);
    io_uring_cqe_seen(&ring_, entry);
    --in_kernel_;
    return found;
  }

  io_uring ring_{};
  bool open_ = false;
  int in_kernel_ = 0;
  std::vector<Write> writes_;  // of which those that are not under way are free
  std::vector<Write*> free_;
  std::deque<Done> over_;  // and not yet returned
  Status refused_;         // once the kernel takes no more writes
};

}  // namespace

Result<std::unique_ptr<WriteQueue>> MakeIoUringQueue(int depth) {
  auto queue = std::make_unique<IoUringQueue>(depth);
  std::string_view reason;
  switch (const int error = queue->Open(); error) {
    case 0:
      if (queue->KnowsWrites()) return std::unique_ptr<WriteQueue>(std::move(queue));
      reason = "this kernel is older than 5.6";
      break;
    case EPERM:
    case EACCES:
      reason = "it is forbidden here (sysctl kernel.io_uring_disabled, or a container's seccomp)";
      break;
    case ENOSYS:
      reason = "this kernel has none, or a container's seccomp hides it";
      break;
    case ENOMEM:
      reason = "no memory for it (ulimit -l)";
      break;
    default:
      return Status::FromErrno(error, "set up", "io_uring");
  }
  return Status(StatusCode::kUnavailable, fmt::format("io_uring: {}", reason));
}

}  // namespace keel
