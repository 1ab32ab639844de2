// What each back-end puts on a real disk, and what it leaves behind in the process.
#include "checkpoint/save/file_writers.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>

#include "checkpoint/checkpointer.h"
#include "checkpoint/save/io_backend.h"
#include "checkpoint/save/snapshot_writer.h"
#include "common/fail_point.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/support/no_io_uring.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

constexpr int64_t kChunk = 64 << 10;

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

class EachBackend : public ::testing::TestWithParam<IoBackend> {
 protected:
  void SetUp() override {
    fs_ = dir_.Open();
    ThrowIfError(fs_->MakeDirectory("d"));
    const Status refused = fs_->MakeWriteQueue(1).status();
    if (GetParam() == IoBackend::kIoUring && !refused.ok())
      GTEST_SKIP() << "NOT TESTED: " << refused.ToString();
    if (WritesBlocks(GetParam()) && !fs_->Create("probe", {.direct = true}).ok())
      GTEST_SKIP() << "NOT TESTED: no direct writes on " << dir_.path();
  }

  // Files of odd sizes in pieces of many.
  std::vector<FileToWrite> Files(bool stable) {
    const std::vector<std::vector<int64_t>> sizes = {
        {1, 5000, 3 * kChunk, 17}, {2 * kChunk}, {7}, {40 * kChunk + 3, 1, 12 * kChunk}};
    std::vector<FileToWrite> files;
    uint8_t value = 0;
    for (size_t f = 0; f < sizes.size(); ++f) {
      FileToWrite file{fmt::format("file-{}", f), fmt::format("header of {}", f), {}};
      expected_.push_back(file.header);
      for (const int64_t size : sizes[f]) {
        auto& memory = memory_.emplace_back(static_cast<size_t>(size));
        for (std::byte& byte : memory)
          byte = std::byte(value = static_cast<uint8_t>(value * 5 + 3));
        expected_.back().append(reinterpret_cast<const char*>(memory.data()), memory.size());
        WritePiece piece;
        piece.size = Dims{size};
        piece.view = {memory.data(), Dims{1}};
        piece.stable = stable;
        file.pieces.push_back(piece);
      }
      files.push_back(std::move(file));
    }
    return files;
  }

  void ExpectFiles(const std::vector<ChunkedDigest>& digests) {
    ASSERT_EQ(digests.size(), expected_.size());
    for (size_t f = 0; f < expected_.size(); ++f) {
      EXPECT_EQ(ReadAll(dir_ / fmt::format("d/file-{}", f)), expected_[f]) << f;
      EXPECT_EQ(digests[f].whole, DigestOfText(expected_[f], kChunk).whole) << f;
    }
  }

  const TempDir dir_;
  std::unique_ptr<FileSystem> fs_;
  std::deque<std::vector<std::byte>> memory_;
  std::vector<std::string> expected_;
};

TEST_P(EachBackend, WhatIsWrittenIsThere) {
  for (const int writers : {0, 1, 3}) {
    for (const bool stable : {false, true}) {
      const size_t before = OpenDescriptors();
      SnapshotWriter writer(*fs_, GetParam(), kChunk, writers);
      expected_.clear();
      std::atomic<int> released = 0;
      WriteHooks hooks;
      hooks.released = [&](size_t, size_t) { ++released; };
      WriteTimes times;
      Result<std::vector<ChunkedDigest>> digests =
          writer.Write("d", Files(stable), std::move(hooks), &times);
      ThrowIfError(digests.status());
      ExpectFiles(*digests);
      EXPECT_EQ(released, 9);
      EXPECT_EQ(OpenDescriptors(), before);
      for (size_t f = 0; f < expected_.size(); ++f)
        ThrowIfError(fs_->Remove(fmt::format("d/file-{}", f)));
    }
  }
}

// Columns of which lie one behind the other in memory; one of the rows is larger than what is
// written from where it lies.
TEST_P(EachBackend, MatricesThatAreTransposedInMemory) {
  for (const bool stable : {false, true}) {
    expected_ = {"header"};
    FileToWrite file{"file-0", expected_[0], {}};
    for (const auto& [rows, columns] : {std::pair{300, 700}, {3, 400'000}, {513, 2}, {1, 9}}) {
      auto& memory =
          memory_.emplace_back(static_cast<size_t>(rows) * static_cast<size_t>(columns) * 4);
      std::vector<uint32_t> values(memory.size() / 4);
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
      std::memcpy(memory.data(), values.data(), memory.size());
      for (int row = 0; row < rows; ++row) {
        for (int column = 0; column < columns; ++column)
          expected_[0].append(reinterpret_cast<const char*>(
                                  &values[static_cast<size_t>(column) * static_cast<size_t>(rows) +
                                          static_cast<size_t>(row)]),
                              4);
      }
      file.pieces.push_back({{rows, columns}, {memory.data(), {1, rows}}, 4, stable});
    }
    SnapshotWriter writer(*fs_, GetParam(), kChunk, 2);
    WriteTimes times;
    ExpectFiles(ValueOrThrow(writer.Write("d", {file}, {}, &times)));
    ThrowIfError(fs_->Remove("d/file-0"));
  }
}

TEST_P(EachBackend, InTheBackgroundAndInWaves) {
  for (const std::optional<int64_t> cap : {std::optional<int64_t>(), std::optional(2 * kChunk)}) {
    SnapshotWriter writer(*fs_, GetParam(), kChunk, 2);
    expected_.clear();
    std::vector<FileToWrite> files = Files(false);
    ThrowIfError(writer.Reserve(files, cap));
    ThrowIfError(writer.Stage(std::move(files), {}));
    WriteTimes times;
    Result<std::vector<ChunkedDigest>> digests = writer.WriteTo("d", &times);
    ThrowIfError(digests.status());
    ExpectFiles(*digests);
    for (size_t f = 0; f < expected_.size(); ++f)
      ThrowIfError(fs_->Remove(fmt::format("d/file-{}", f)));
  }
}

TEST_P(EachBackend, EveryThreadHasALaneOfSpans) {
  SpanRecorder recorder;
  recorder.SetStep(1, true);
  for (const bool background : {false, true}) {
    SnapshotWriter writer(*fs_, GetParam(), kChunk, 2);
    std::vector<FileToWrite> files = Files(false);
    ThrowIfError(writer.Reserve(files, std::nullopt));
    WriteHooks hooks;
    hooks.spans = &recorder;
    hooks.step = 9;
    WriteTimes times;
    if (background) {
      ThrowIfError(writer.Stage(std::move(files), std::move(hooks)));
      ThrowIfError(writer.WriteTo("d", &times).status());
    } else {
      ThrowIfError(writer.Write("d", std::move(files), std::move(hooks), &times).status());
    }
    const SpanLane copier = background ? SpanLane::kCopier : SpanLane::kSaver;
    std::map<std::string, int> count;
    std::map<SpanLane, int64_t> ended;
    for (const Span& span : recorder.Take().first) {
      EXPECT_EQ(span.step, 9);
      ++count[span.name];
      const bool copies = std::string(span.name) == "copy";
      EXPECT_EQ(span.lane == copier, copies) << span.name;
      EXPECT_TRUE(copies || span.lane == WriterLane(0) || span.lane == WriterLane(1));
      EXPECT_LE(ended[span.lane], span.begin_ns) << span.name << ": spans of a lane overlap";
      ended[span.lane] = span.end_ns;
    }
    EXPECT_EQ(count["copy"], 4) << "one a file";
    EXPECT_EQ(count["sync"], 4);
    EXPECT_GE(count["write"], 59);
    for (size_t f = 0; f < 4; ++f) ThrowIfError(fs_->Remove(fmt::format("d/file-{}", f)));
  }
}

// What may be overwritten is said of what was copied alone.
TEST_P(EachBackend, WithoutThreadsNothingIsLetGoBeforeItIsCopied) {
  SnapshotWriter writer(*fs_, GetParam(), kChunk, 2);
  expected_.clear();
  std::vector<FileToWrite> files = Files(false);
  ThrowIfError(writer.Reserve(files, std::nullopt));
  std::atomic<int> released = 0, gave_up = 0;
  WriteHooks hooks;
  hooks.released = [&](size_t, size_t) { ++released; };
  hooks.gave_up = [&] { ++gave_up; };
  // No thread has room for such a stack.
  pthread_attr_t usual, huge;
  ASSERT_EQ(pthread_getattr_default_np(&usual), 0);
  ASSERT_EQ(pthread_attr_init(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 46), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  const Status refused = writer.Stage(files, hooks);
  EXPECT_EQ(pthread_setattr_default_np(&usual), 0);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("no thread for a save"));
  EXPECT_FALSE(writer.staging());
  writer.Abandon();
  EXPECT_EQ(released, 0);
  EXPECT_EQ(gave_up, 0);
  WriteTimes times;
  const auto digests = writer.Write("d", std::move(files), hooks, &times);
  ThrowIfError(digests.status());
  ExpectFiles(*digests);
  EXPECT_EQ(released, 9);
}

// At each write of the save: what is under way then ends before anything is let go, and the next
// save is none the worse.
TEST_P(EachBackend, AFailureAtAnyWrite) {
  SnapshotWriter writer(*fs_, GetParam(), kChunk, 1);
  const size_t before = OpenDescriptors();
  WriteTimes times;
  for (const int n : {1, 2, 5, 20, 61}) {
    expected_.clear();
    std::atomic<int> gave_up = 0;
    WriteHooks hooks;
    hooks.gave_up = [&] { ++gave_up; };
    ThrowIfError(ArmFailPoints(fmt::format("writer.write:0:{}:EIO", n), 0));
    const Status failed = writer.Write("d", Files(false), std::move(hooks), &times).status();
    ThrowIfError(ArmFailPoints("", 0));
    EXPECT_THAT(failed.message(), HasSubstr("writer.write")) << n;
    EXPECT_EQ(gave_up, 1) << n;
    EXPECT_EQ(OpenDescriptors(), before);
    for (const FileInfo& left : ValueOrThrow(fs_->List("d")))
      ThrowIfError(fs_->Remove("d/" + left.name));
  }
  expected_.clear();
  ExpectFiles(ValueOrThrow(writer.Write("d", Files(false), {}, &times)));
}

// Whose memory it is may free it then.
TEST_P(EachBackend, NothingIsGivenUpWhileItMayBeRead) {
  SnapshotWriter writer(*fs_, GetParam(), kChunk, 1);
  std::atomic<int> over = 0, gave_up = 0, given_up_too_early = 0;
  WriteHooks hooks;
  hooks.gave_up = [&] { ++gave_up; };
  hooks.moved = [&] { ++over; };
  // The copying thread is at the second file when a write of the first one fails.
  hooks.arrived = [&](size_t file, size_t) {
    if (file != 1) return Status::Ok();
    while (over == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // and what follows a failure
    given_up_too_early += gave_up;
    return Status::Ok();
  };
  WriteTimes times;
  ThrowIfError(ArmFailPoints("writer.write:0:1:EIO", 0));
  const Status failed = writer.Write("d", Files(false), std::move(hooks), &times).status();
  ThrowIfError(ArmFailPoints("", 0));
  EXPECT_THAT(failed.message(), HasSubstr("writer.write"));
  EXPECT_EQ(given_up_too_early, 0);
  EXPECT_EQ(gave_up, 1);
}

// The disk itself refuses, in the middle of a write.
TEST_P(EachBackend, AFileThatGrowsTooLarge) {
  rlimit unlimited{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &unlimited), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  SnapshotWriter writer(*fs_, GetParam(), kChunk, 1);
  const size_t before = OpenDescriptors();
  const rlimit limit = {static_cast<rlim_t>(10 * kChunk), unlimited.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  WriteTimes times;
  const Status failed = writer.Write("d", Files(false), {}, &times).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &unlimited), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(failed.message(), AllOf(HasSubstr(dir_ / "d/file-3"), HasSubstr("errno 27")));
  EXPECT_EQ(OpenDescriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Backends, EachBackend,
                         ::testing::Values(IoBackend::kBuffered, IoBackend::kDirect,
                                           IoBackend::kIoUring),
                         [](const auto& one) { return std::string(NameOf(one.param)); });

TEST(MeasureBackends, FastestFirstAndNothingIsLeft) {
  const TempDir dir;
  const auto fs = dir.Open();
  ThrowIfError(fs->MakeDirectory("d"));
  const std::vector<BackendSpeed> speeds = MeasureBackends(*fs, "d", 1 << 20);
  ASSERT_FALSE(speeds.empty());
  for (size_t i = 1; i < speeds.size(); ++i)
    EXPECT_GE(speeds[i - 1].bytes_per_s, speeds[i].bytes_per_s);
  EXPECT_GT(speeds.back().bytes_per_s, 0);
  EXPECT_EQ(std::count_if(speeds.begin(), speeds.end(),
                          [](const auto& one) { return one.backend == IoBackend::kBuffered; }),
            1);
  EXPECT_EQ(std::any_of(speeds.begin(), speeds.end(),
                        [](const auto& one) { return one.backend == IoBackend::kIoUring; }),
            fs->MakeWriteQueue(1).ok() && speeds.size() > 1);
  EXPECT_TRUE(ValueOrThrow(fs->List("d")).empty());
}

// In a child process without io_uring: `body` returns what went wrong, or nothing.
std::string WithoutIoUring(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe");
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = ::keel::testing::RefuseIoUring(EPERM) ? body() : "no seccomp";
    _exit(write(ends[1], text.data(), text.size()) < 0 ? 1 : 0);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t size = read(ends[0], text.data(), text.size());
  close(ends[0]);
  waitpid(child, nullptr, 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, size)));
  return text;
}

TEST(NoIoUring, AskedForByNameItIsRefusedAtTheStart) {
  const TempDir dir;
  const std::string found = WithoutIoUring([&]() -> std::string {
    const auto fs = dir.Open();
    Cut cut({1}, 1);
    cut.Fill(MakeTrainingState(1));
    CheckpointOptions options = SmallOptions();
    options.io = IoChoice::kIoUring;
    LocalCoordinatorHub hub(1);
    Logger log(Quiet());
    Checkpointer checkpointer(*fs, hub.rank(0), SystemClock(), log, options);
    ThrowIfError(checkpointer.Open());
    SaveRequest request;
    request.step = 1;
    request.roles = cut.Roles(0);
    const Status prepared = checkpointer.Prepare(request, true).status();
    const Status saved = checkpointer.Save(request).status();
    return prepared.ToString() + "\n" + saved.ToString();
  });
  if (found == "no seccomp") GTEST_SKIP() << "NOT TESTED: " << found;
  const auto refusal =
      AllOf(HasSubstr("io is io_uring, which cannot be had"), HasSubstr("kernel.io_uring_disabled"),
            HasSubstr("set it to direct or auto"));
  EXPECT_THAT(found.substr(0, found.find('\n')), refusal);
  EXPECT_THAT(found.substr(found.find('\n') + 1), refusal);  // without Prepare too
  EXPECT_FALSE(std::filesystem::exists(dir / "global_step_1"));
}

TEST(NoIoUring, AutoDoesNotChooseIt) {
  const TempDir dir;
  const std::string found = WithoutIoUring([&]() -> std::string {
    const auto fs = dir.Open();
    ThrowIfError(fs->MakeDirectory("d"));
    std::string names;
    for (const BackendSpeed& speed : MeasureBackends(*fs, "d", 1 << 20))
      names += fmt::format("{} ", NameOf(speed.backend));
    return names;
  });
  if (found == "no seccomp") GTEST_SKIP() << "NOT TESTED: " << found;
  EXPECT_THAT(found, AllOf(HasSubstr("buffered"), ::testing::Not(HasSubstr("io_uring"))));
}

// Whoever writes the last piece of a file ends it: once, however writers and producer interleave.
TEST(FileWritersTest, EachOfManyFilesIsSyncedOnce) {
  SimFileSystem disk;
  ThrowIfError(disk.MakeDirectory("d"));
  std::mutex mutex;
  std::map<std::string, int, std::less<>> syncs;
  disk.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    if (operation == "fsync") {
      const std::lock_guard lock(mutex);
      ++syncs[std::string(path)];
    }
    return Status::Ok();
  });
  std::vector<std::byte> memory(64, std::byte{7});
  std::vector<FileToWrite> files;
  for (int f = 0; f < 4'000; ++f) {
    FileToWrite file{fmt::format("file-{}", f), "", {}};
    file.pieces.push_back({Dims{64}, {memory.data(), Dims{1}}, 1, false});
    files.push_back(std::move(file));
  }
  SnapshotWriter writer(disk, IoBackend::kBuffered, kChunk, 2);
  WriteTimes times;
  const auto digests = writer.Write("d", std::move(files), {}, &times);
  ASSERT_TRUE(digests.ok()) << digests.status().ToString();
  EXPECT_EQ(syncs.size(), 4'000U);
  for (const auto& [path, count] : syncs) EXPECT_EQ(count, 1) << path;
}

}  // namespace
}  // namespace keel::checkpoint
