#include "tools/row_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace keel::tools {
namespace {

namespace fs = std::filesystem;

class RowOutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("keel-rows-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    path_ = folder_ / "out.jsonl";
  }
  void TearDown() override { fs::remove_all(folder_); }
  static std::string Read(const fs::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  fs::path folder_;
  std::string path_;
};

TEST_F(RowOutputTest, RowsAppearInOrderAsTheyAreDoneAndTheOldFileStaysUntilTheEnd) {
  std::ofstream(path_) << "old\n";
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", path_));
  ThrowIfError(out.Put(1, "one"));
  EXPECT_EQ(Read(out.written_to()), "");
  ThrowIfError(out.Put(0, "zero"));
  EXPECT_EQ(Read(out.written_to()), "zero\none\n");
  EXPECT_EQ(Read(path_), "old\n");
  ThrowIfError(out.Put(2, "two"));
  ThrowIfError(out.Finish());
  EXPECT_EQ(Read(path_), "zero\none\ntwo\n");
  EXPECT_FALSE(fs::exists(path_ + ".partial"));
}

TEST_F(RowOutputTest, RowsThatWaitAreInOrderInMemoryOrNot) {
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", path_));
  // Of two rounds the second begins where nothing waits any more.
  const size_t rows = 400;
  const auto line = [](size_t row) {
    return std::string(row % 9 * 20'000 + (row == 77 ? RowOutput::kHeld + 3 : 0),
                       static_cast<char>('a' + row % 26)) +
           std::to_string(row);
  };
  std::string expected;
  for (size_t begin = 0; begin < rows; begin += rows / 2) {
    for (size_t row = begin + rows / 2 - 1; row > begin; --row)
      ThrowIfError(out.Put(row, line(row)));
    EXPECT_EQ(Read(out.written_to()), expected);
    ThrowIfError(out.Put(begin, line(begin)));
    for (size_t row = begin; row < begin + rows / 2; ++row) expected += line(row) + "\n";
    EXPECT_TRUE(Read(out.written_to()) == expected);
  }
  ThrowIfError(out.Finish());
  EXPECT_TRUE(Read(path_) == expected);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

TEST_F(RowOutputTest, WhatDoesNotFitIntoMemoryLiesBesideTheOutput) {
  EXPECT_EQ(SpillFolder(path_), folder_.string());
  EXPECT_EQ(SpillFolder(folder_), folder_.string());
  EXPECT_EQ(SpillFolder(folder_ / "not" / "there" / "x.jsonl"), folder_.string());
  EXPECT_EQ(SpillFolder("-"), fs::temp_directory_path().string());
  EXPECT_EQ(SpillFolder("/dev/stdout"), fs::temp_directory_path().string());
}

TEST_F(RowOutputTest, WhoEndsBeforeTheLastRowLeavesTheOldFileAndWhatIsKept) {
  std::ofstream(path_) << "old\n";
  for (const Part part : {Part::kRemoved, Part::kKept}) {
    {
      RowOutput out = ValueOrThrow(RowOutput::Open("--output", path_, part));
      ThrowIfError(out.Put(0, "zero"));
    }
    EXPECT_EQ(Read(path_), "old\n");
    EXPECT_EQ(Read(path_ + ".partial"), part == Part::kKept ? "zero\n" : "");
    EXPECT_EQ(fs::exists(path_ + ".partial"), part == Part::kKept);
  }
}

TEST_F(RowOutputTest, ASignalRemovesAPart) {
  for (const Part part : {Part::kRemoved, Part::kKept}) {
    const pid_t child = ::fork();
    if (child == 0) {
      RowOutput done = ValueOrThrow(RowOutput::Open("--output", path_));
      ThrowIfError(done.Finish());
      const RowOutput out = ValueOrThrow(RowOutput::Open("--output", path_, part));
      raise(SIGTERM);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
    EXPECT_TRUE(fs::exists(path_));
    EXPECT_EQ(fs::exists(path_ + ".partial"), part == Part::kKept);
  }
}

TEST_F(RowOutputTest, AHoleIsNoEnd) {
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", path_));
  ThrowIfError(out.Put(1, "one"));
  EXPECT_EQ(out.Finish().code(), StatusCode::kInternal);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(RowOutputTest, APipeIsWrittenAsItIs) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = Read(path_); });
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", path_));
  ThrowIfError(out.Put(0, "zero"));
  ThrowIfError(out.Finish());
  reader.join();
  EXPECT_EQ(read, "zero\n");
  EXPECT_TRUE(fs::is_fifo(path_));
}

// `--output /dev/stdout > file`: the device is a link to a regular file, and stays a link.
TEST_F(RowOutputTest, WhatTheShellHasOpenedIsWrittenAndNotReplaced) {
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(fd, 0);
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", "/proc/self/fd/" + std::to_string(fd)));
  EXPECT_TRUE(out.streams());
  EXPECT_EQ(out.written_to(), "/proc/self/fd/" + std::to_string(fd));
  ThrowIfError(out.Put(0, "zero"));
  ThrowIfError(out.Finish());
  ::close(fd);
  EXPECT_EQ(Read(path_), "zero\n");
  EXPECT_TRUE(ValueOrThrow(RowOutput::Open("--output", "-")).streams());
  EXPECT_EQ(ValueOrThrow(RowOutput::Open("--output", "/dev/stdout")).written_to(), "/dev/stdout");
}

TEST_F(RowOutputTest, ALinkStaysALink) {
  const fs::path target = folder_ / "target.jsonl";
  std::ofstream(target) << "old\n";
  fs::create_symlink(target, path_);
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", path_));
  ThrowIfError(out.Put(0, "zero"));
  ThrowIfError(out.Finish());
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(Read(target), "zero\n");
}

TEST_F(RowOutputTest, ATemporaryNameIsOneWritersAlone) {
  RowOutput first = ValueOrThrow(RowOutput::Open("--output", path_));
  ThrowIfError(first.Put(0, "zero"));
  const auto second = RowOutput::Open("--output", path_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), ::testing::HasSubstr("another keel is writing"));
  ThrowIfError(first.Finish());
  EXPECT_EQ(Read(path_), "zero\n");
  ASSERT_EQ(mkfifo((path_ + ".partial").c_str(), 0600), 0);
  EXPECT_FALSE(RowOutput::Open("--output", path_).ok());
}

TEST_F(RowOutputTest, WhatIsReadIsNotOverwritten) {
  const std::string input = folder_ / "in.jsonl", link = folder_ / "link";
  std::ofstream(input) << "{}\n";
  fs::create_symlink(input, link);
  const auto apart = [&](const std::string& output, const std::string& other) {
    return CheckApart({"--output", output}, {"--input", other}).ok();
  };
  EXPECT_FALSE(apart(input, input));
  EXPECT_FALSE(apart(link, input));
  EXPECT_FALSE(apart(folder_ / "." / "in.jsonl", input));
  EXPECT_FALSE(apart(path_, path_));  // neither is there yet
  fs::copy(input, path_ + ".partial");
  EXPECT_FALSE(apart(path_, path_ + ".partial"));
  EXPECT_TRUE(apart(path_, input));
  EXPECT_TRUE(apart("/dev/stdout", "/dev/stdin"));
  EXPECT_TRUE(apart(path_, ""));
}

TEST_F(RowOutputTest, WhatCannotBeWrittenIsNamed) {
  const auto directory = RowOutput::Open("--output", folder_);
  ASSERT_FALSE(directory.ok());
  EXPECT_EQ(directory.status().code(), StatusCode::kCannotCreate);
  EXPECT_THAT(directory.status().message(), ::testing::HasSubstr("is a directory"));
  const auto nameless = RowOutput::Open("--output", "");
  EXPECT_THAT(nameless.status().message(), ::testing::HasSubstr("name is empty"));
  const auto nowhere = RowOutput::Open("--output", folder_ / "none" / "out.jsonl");
  ASSERT_FALSE(nowhere.ok());
  EXPECT_THAT(nowhere.status().message(), ::testing::HasSubstr("No such file"));
  RowOutput full = ValueOrThrow(RowOutput::Open("--output", "/dev/full"));
  const Status status = full.Put(0, "zero");
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("/dev/full"));
}

}  // namespace
}  // namespace keel::tools
