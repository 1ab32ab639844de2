// The simulated disk keeps the promises of common/file_system.h that the crash tests rely on.

#include "tests/checkpoint/sim_file_system.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace keel::checkpoint::testing {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(SimFileSystem, AFileIsDeadAfterAFailedSync) {
  SimFileSystem disk;
  const auto file = ValueOrThrow(disk.Create("a", {}));
  ThrowIfError(file->WriteAt(0, Bytes("lost")));
  disk.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "fsync" ? Status::FromErrno(5, operation, path) : Status::Ok();
  });
  const std::string failed = file->Sync().ToString();
  EXPECT_THAT(failed, HasSubstr("fsync a: "));
  disk.SetFault({});
  std::vector<std::byte> buffer(4);
  EXPECT_EQ(file->Sync().ToString(), failed);
  EXPECT_EQ(file->WriteAt(0, Bytes("more")).ToString(), failed);
  EXPECT_EQ(file->ReadAt(0, buffer).status().ToString(), failed);
  EXPECT_EQ(file->Truncate(0).ToString(), failed);
  EXPECT_EQ(file->Close().ToString(), failed);
  EXPECT_EQ(disk.Content("a"), "lost");
  EXPECT_TRUE(disk.AfterPowerCut(SimFileSystem::Survives::kNothing, 1)->AllFiles().empty());
}

TEST(SimFileSystem, OneHolderOfALock) {
  SimFileSystem disk;
  auto held = ValueOrThrow(disk.Lock("lock", "the first"));
  const Status refused = disk.Lock("lock", "the second").status();
  EXPECT_EQ(refused.code(), StatusCode::kBusy);
  EXPECT_THAT(refused.message(), HasSubstr("held by the first"));
  held.reset();
  EXPECT_TRUE(disk.Lock("lock", "the second").ok());
}

}  // namespace
}  // namespace keel::checkpoint::testing
