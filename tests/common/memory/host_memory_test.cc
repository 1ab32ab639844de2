#include "common/memory/host_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace keel {
namespace {

namespace fs = std::filesystem;

class HostMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("keel-memory-" + std::to_string(::getpid()));
    Write("proc/meminfo",
          "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 600 kB\nSwapTotal: 24 kB\nSwapFree: 4 "
          "kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }
  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(HostMemoryTest, TheMachinesWithItsSwap) {
  Write("proc/self/cgroup", "0::/\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.total, 1024 * 1024);
  EXPECT_EQ(memory.available, 604 * 1024);
}

TEST_F(HostMemoryTest, TheNearestLimitAboveCounts) {
  Write("proc/self/cgroup", "0::/job/rank0\n");
  Write("sys/fs/cgroup/job/rank0/memory.max", "max\n");
  Write("sys/fs/cgroup/job/memory.max", "409600\n");
  Write("sys/fs/cgroup/job/memory.current", "9600\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.total, 409600);
  EXPECT_EQ(memory.available, 400000);
}

TEST_F(HostMemoryTest, TheFirstVersionOfControlGroups) {
  Write("proc/self/cgroup", "9:name=systemd:/\n4:cpu,cpuacct:/a\n3:memory:/a/b\n");
  Write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "204800\n");
  Write("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "104800\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  const HostMemory memory = ReadHostMemory(root_);
  EXPECT_EQ(memory.total, 204800);
  EXPECT_EQ(memory.available, 100000);
}

TEST_F(HostMemoryTest, WhatIsNotKnownIsNoLimit) {
  const HostMemory memory = ReadHostMemory("/nowhere");
  EXPECT_EQ(memory.total, HostMemory::kUnknown);
  EXPECT_EQ(memory.available, HostMemory::kUnknown);
}

TEST_F(HostMemoryTest, BytesForPeople) {
  EXPECT_EQ(FormatBytes(3.0 * (1 << 20)), "3 MiB");
  EXPECT_EQ(FormatBytes(1.5 * (1 << 30)), "1.5 GiB");
  EXPECT_EQ(FormatBytes(3e24), "3.0e+24 bytes");
}

}  // namespace
}  // namespace keel
