#include "common/files/io_uring_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <set>

#include "common/files/posix_file.h"
#include "tests/support/no_io_uring.h"

namespace keel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kDepth = 4;
constexpr size_t kPiece = 64 << 10;

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class IoUringQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "keel-ring-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
    fs_ = ValueOrThrow(OpenPosixFileSystem(root_, true));
    Result<std::unique_ptr<WriteQueue>> queue = fs_->MakeWriteQueue(kDepth);
    if (!queue.ok()) GTEST_SKIP() << "NOT TESTED: " << queue.status().ToString();
    queue_ = std::move(queue).value();
  }
  void TearDown() override {
    queue_.reset();
    std::filesystem::remove_all(root_);
  }

  // Pieces of `file`, each of its own bytes, with as many under way as there may be.
  Status WritePieces(File& file, size_t pieces) {
    Status first;
    std::set<uint64_t> over;
    const auto wait = [&] {
      const WriteQueue::Done done = queue_->Wait();
      EXPECT_TRUE(over.insert(done.id).second) << done.id;
      if (first.ok()) first = done.status;
    };
    for (size_t i = 0; i < pieces; ++i) {
      if (i >= kDepth) wait();
      memory_.emplace_back(kPiece, std::byte(i * 7 + 1));
      queue_->Begin(i, file, static_cast<int64_t>(i * kPiece), memory_.back());
    }
    while (over.size() < pieces) wait();
    return first;
  }

  std::string Expected(size_t pieces) const {
    std::string text;
    for (size_t i = 0; i < pieces; ++i) text.append(kPiece, static_cast<char>(i * 7 + 1));
    return text;
  }

  std::string root_;
  std::unique_ptr<FileSystem> fs_;
  std::unique_ptr<WriteQueue> queue_;
  std::deque<std::vector<std::byte>> memory_;
};

TEST_F(IoUringQueueTest, EveryPieceIsWrittenAndSaidToBeSoOnce) {
  const auto file = ValueOrThrow(fs_->Create("a", {.preallocate = 40 * kPiece}));
  ThrowIfError(WritePieces(*file, 40));
  ThrowIfError(file->Sync());
  ThrowIfError(file->Close());
  EXPECT_EQ(*ReadFile(*fs_, "a", 1 << 30), Expected(40));
}

TEST_F(IoUringQueueTest, FilesShareAQueue) {
  const auto a = ValueOrThrow(fs_->Create("a", {}));
  const auto b = ValueOrThrow(fs_->Create("b", {}));
  const std::vector<std::byte> one(100, std::byte{1}), two(200, std::byte{2});
  queue_->Begin(10, *a, 0, one);
  queue_->Begin(20, *b, 50, two);
  queue_->Begin(30, *b, 0, {});
  std::set<uint64_t> over;
  for (int i = 0; i < 3; ++i) {
    const WriteQueue::Done done = queue_->Wait();
    EXPECT_EQ(done.status.ToString(), "ok");
    over.insert(done.id);
  }
  EXPECT_EQ(over, (std::set<uint64_t>{10, 20, 30}));
  EXPECT_EQ(*ReadFile(*fs_, "a", 1000), std::string(100, 1));
  EXPECT_EQ(*ReadFile(*fs_, "b", 1000), std::string(50, 0) + std::string(200, 2));
}

TEST_F(IoUringQueueTest, AFullDiskIsAnErrorWithTheFilesName) {
  PosixFile full(Descriptor(open("/dev/full", O_WRONLY | O_CLOEXEC)), "/runs/a/full");
  const Status status = WritePieces(full, 6);
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("write /runs/a/full: "), HasSubstr("errno 28")));
  EXPECT_EQ(status.ToString(), full.WriteAt(0, memory_.front()).ToString());
}

TEST_F(IoUringQueueTest, AFileThatIsNotOpenForWriting) {
  ThrowIfError(WriteFileDurably(*fs_, "a", "old"));
  const auto file = ValueOrThrow(fs_->Open("a"));
  EXPECT_THAT(WritePieces(*file, 1).message(),
              AllOf(HasSubstr("write " + root_ + "/a: "), HasSubstr("errno 9")));
}

// The limit cuts one write, whose rest then fails: so both are seen to be handled.
TEST_F(IoUringQueueTest, TheRestOfAShortWriteIsWrittenToo) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const auto file = ValueOrThrow(fs_->Create("a", {}));
  const rlimit limit = {kPiece + kPiece / 2, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status = WritePieces(*file, 2);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("write " + root_ + "/a: "), HasSubstr("errno 27")));
  EXPECT_EQ(*ReadFile(*fs_, "a", 1 << 30), Expected(2).substr(0, kPiece + kPiece / 2));
}

TEST_F(IoUringQueueTest, SignalsDoNotDisturb) {
  struct sigaction quiet {};
  struct sigaction before {};
  quiet.sa_handler = [](int) {};  // without SA_RESTART: calls return EINTR
  ASSERT_EQ(sigaction(SIGALRM, &quiet, &before), 0);
  const itimerval often = {{0, 200}, {0, 200}};
  ASSERT_EQ(setitimer(ITIMER_REAL, &often, nullptr), 0);
  const auto file = ValueOrThrow(fs_->Create("a", {}));
  const Status status = WritePieces(*file, 400);
  const itimerval never{};
  ASSERT_EQ(setitimer(ITIMER_REAL, &never, nullptr), 0);
  ASSERT_EQ(sigaction(SIGALRM, &before, nullptr), 0);
  ThrowIfError(status);
  EXPECT_EQ(*ReadFile(*fs_, "a", 1 << 30), Expected(400));
}

TEST_F(IoUringQueueTest, NothingIsWrittenToADeadFile) {
  const auto file = ValueOrThrow(fs_->Create("a", {}));
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const int fd = static_cast<PosixFile&>(*file).descriptor();
  const int saved = dup(fd);
  ASSERT_EQ(dup2(pipe_ends[1], fd), fd);  // a pipe cannot be synced
  const Status failed = file->Sync();
  ASSERT_EQ(dup2(saved, fd), fd);
  for (const int end : {saved, pipe_ends[0], pipe_ends[1]}) close(end);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(WritePieces(*file, 1).ToString(), failed.ToString());
  EXPECT_EQ(*file->Size(), 0);
}

TEST_F(IoUringQueueTest, AQueueThatIsDroppedHasWrittenOrNotButHoldsNothing) {
  const size_t before = OpenDescriptors();
  {
    const auto file = ValueOrThrow(fs_->Create("a", {}));
    std::vector<std::byte> memory(kDepth * kPiece, std::byte{1});
    auto dropped = ValueOrThrow(fs_->MakeWriteQueue(kDepth));
    for (size_t i = 0; i < kDepth; ++i) {
      dropped->Begin(i, *file, static_cast<int64_t>(i * kPiece),
                     std::span(memory).subspan(i * kPiece, kPiece));
    }
    dropped.reset();
    std::fill(memory.begin(), memory.end(), std::byte{9});  // nobody reads it any more
  }
  EXPECT_EQ(OpenDescriptors(), before);
  const std::string content = *ReadFile(*fs_, "a", 1 << 30);
  EXPECT_TRUE(std::all_of(content.begin(), content.end(), [](char c) { return c == 1; }));
}

TEST_F(IoUringQueueTest, OneWriteTooManyIsAnErrorOfThatWriteAlone) {
  const auto file = ValueOrThrow(fs_->Create("a", {}));
  const std::vector<std::byte> memory(100, std::byte{1});
  for (uint64_t i = 0; i <= kDepth; ++i) queue_->Begin(i, *file, 0, memory);
  for (uint64_t i = 0; i <= kDepth; ++i) {
    const WriteQueue::Done done = queue_->Wait();
    EXPECT_EQ(done.status.ok(), done.id != kDepth) << done.id;
  }
}

// What the refusal says, from a child process without io_uring.
std::string RefusalWith(int error) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe");
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = ::keel::testing::RefuseIoUring(error)
                                 ? MakeIoUringQueue(kDepth).status().ToString()
                                 : "no seccomp";
    _exit(write(ends[1], text.data(), text.size()) < 0 ? 1 : 0);
  }
  close(ends[1]);
  char text[512];
  const ssize_t size = Retry([&] { return read(ends[0], text, sizeof text); });
  close(ends[0]);
  return {text, static_cast<size_t>(std::max<ssize_t>(0, size))};
}

TEST(IoUringQueue, ARefusalSaysWhy) {
  const std::string forbidden = RefusalWith(EPERM);
  if (forbidden == "no seccomp") GTEST_SKIP() << "NOT TESTED: " << forbidden;
  EXPECT_THAT(forbidden, AllOf(HasSubstr("unavailable"), HasSubstr("kernel.io_uring_disabled")));
  EXPECT_THAT(RefusalWith(ENOSYS), HasSubstr("has none"));
  EXPECT_THAT(RefusalWith(ENOMEM), HasSubstr("ulimit -l"));
  EXPECT_THAT(RefusalWith(EMFILE), HasSubstr("errno 24"));
}

}  // namespace
}  // namespace keel
