#include "trainer/desk/job_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keel::trainer::desk {
namespace {

TEST(JobAddressTest, AWorkerThatJoinsFindsTheJobsStore) {
  parallel::LaunchEnv job;
  job.master_addr = "10.0.0.1";
  job.master_port = 29500;
  job.store_host = parallel::StoreHost::kAgent;
  job.run_id = "run \"7\"";
  job.restart_count = 3;
  job.job_secret = "not to be sent";
  const std::string address = JobAddressOf(job);
  EXPECT_EQ(address.find(job.job_secret), std::string::npos);

  parallel::LaunchEnv own;
  own.rank = 1;
  own.world_size = 2;
  own.local_rank = 1;
  own.master_addr = "127.0.0.1";
  own.job_secret = "the same";
  const parallel::LaunchEnv env = ValueOrThrow(EnvOfJoined(own, address, 9));
  EXPECT_EQ(env.rank, 9);
  EXPECT_GT(env.world_size, 9);
  EXPECT_EQ(env.local_rank, 1) << "its device";
  EXPECT_EQ(env.master_addr, "10.0.0.1");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_EQ(env.store_host, parallel::StoreHost::kAgent);
  EXPECT_EQ(env.run_id, job.run_id);
  EXPECT_EQ(env.restart_count, 3);
  EXPECT_EQ(env.job_secret, "the same");
}

TEST(JobAddressTest, WhatIsNoneIsRefused) {
  const std::string good = JobAddressOf({});
  ASSERT_TRUE(EnvOfJoined({}, good, 1).ok());
  for (const char* bad : {"", "{", "[]", "{}", R"({"master_addr": 3})"})
    EXPECT_EQ(EnvOfJoined({}, bad, 1).status().code(), StatusCode::kInvalidData) << bad;
  std::string other = good;
  other.replace(other.find("\"store_host\":") + 13, 1, "9");
  EXPECT_FALSE(EnvOfJoined({}, other, 1).ok());
}

TEST(JobAddressTest, HostsAndPorts) {
  EXPECT_EQ(ValueOrThrow(ParseDeskAddress("node7:29600")), std::pair(std::string("node7"), 29600));
  EXPECT_EQ(ValueOrThrow(ParseDeskAddress("[::1]:80")), std::pair(std::string("::1"), 80));
  for (const char* bad :
       {"", "node7", ":29600", "node7:", "node7:0", "node7:65536", "node7:29600x", "node7:-1"}) {
    const auto parsed = ParseDeskAddress(bad);
    EXPECT_EQ(parsed.status().code(), StatusCode::kUsage) << bad;
    EXPECT_THAT(parsed.status().message(), ::testing::HasSubstr("HOST:PORT"));
  }
}

}  // namespace
}  // namespace keel::trainer::desk
