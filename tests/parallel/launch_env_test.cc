#include "parallel/launch_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "parallel/rank_status.h"

namespace keel::parallel {
namespace {

Result<LaunchEnv> Detect(const std::map<std::string, std::string>& variables) {
  return DetectLaunchEnv([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    if (it == variables.end()) return std::nullopt;
    return it->second;
  });
}

TEST(LaunchEnvTest, TorchVariablesComeFirst) {
  const LaunchEnv env = ValueOrThrow(Detect({{"RANK", "3"},
                                             {"WORLD_SIZE", "8"},
                                             {"LOCAL_RANK", "1"},
                                             {"LOCAL_WORLD_SIZE", "2"},
                                             {"GROUP_RANK", "1"},
                                             {"MASTER_ADDR", "fd00::1"},
                                             {"MASTER_PORT", "1234"},
                                             {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                             {"TORCHELASTIC_RUN_ID", "job"},
                                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                                             {"SLURM_PROCID", "0"},
                                             {"OMPI_COMM_WORLD_RANK", "7"}}));
  EXPECT_EQ(env.launcher, Launcher::kTorchrun);
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.master_addr, "fd00::1");
  EXPECT_EQ(env.master_port, 1234);
  EXPECT_EQ(env.store_host, StoreHost::kAgent);
  EXPECT_EQ(env.run_id, "job");
  EXPECT_EQ(env.restart_count, 2);
}

TEST(LaunchEnvTest, ARequeueIsCountedOnceUnderEachLauncher) {
  const LaunchEnv single = ValueOrThrow(Detect({{"SLURM_RESTART_COUNT", "2"}}));
  EXPECT_EQ(single.requeue_count, 2);
  const LaunchEnv launched = ValueOrThrow(Detect({{"RANK", "0"},
                                                  {"WORLD_SIZE", "1"},
                                                  {"TORCHELASTIC_RESTART_COUNT", "1"},
                                                  {"SLURM_RESTART_COUNT", "2"}}));
  EXPECT_EQ(launched.restart_count, 1);
  EXPECT_EQ(launched.requeue_count, 2);
  const LaunchEnv srun = ValueOrThrow(
      Detect({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_RESTART_COUNT", "2"}}));
  EXPECT_EQ(srun.restart_count, 2);
  EXPECT_EQ(srun.requeue_count, 0);
}

TEST(LaunchEnvTest, TheTerminalsWidthIsWhatItSaysOrNotSaid) {
  EXPECT_EQ(ValueOrThrow(Detect({{"COLUMNS", "93"}})).columns, 93);
  for (const char* const text : {"", "0", "-80", "80x", "99999999999"})
    EXPECT_EQ(ValueOrThrow(Detect({{"COLUMNS", text}})).columns, 0) << text;
  EXPECT_EQ(ValueOrThrow(Detect({})).columns, 0);
}

TEST(LaunchEnvTest, MpiThenSlurmThenSingle) {
  const LaunchEnv mpi = ValueOrThrow(Detect({{"OMPI_COMM_WORLD_RANK", "1"},
                                             {"OMPI_COMM_WORLD_SIZE", "4"},
                                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                             {"SLURM_PROCID", "0"},
                                             {"SLURM_NTASKS", "9"}}));
  EXPECT_EQ(mpi.launcher, Launcher::kMpi);
  EXPECT_EQ(mpi.world_size, 4);
  EXPECT_EQ(mpi.master_addr, "127.0.0.1");
  const LaunchEnv slurm = ValueOrThrow(Detect({{"SLURM_PROCID", "5"},
                                               {"SLURM_NTASKS", "16"},
                                               {"SLURM_STEP_NUM_TASKS", "8"},
                                               {"SLURM_LOCALID", "1"},
                                               {"SLURM_NODEID", "1"},
                                               {"SLURM_STEP_NODELIST", "gpu[003-004,9],other"},
                                               {"SLURM_JOB_ID", "4097"},
                                               {"SLURM_TASKS_PER_NODE", "4(x2)"}}));
  EXPECT_EQ(slurm.launcher, Launcher::kSlurm);
  EXPECT_EQ(slurm.rank, 5);
  EXPECT_EQ(slurm.master_addr, "gpu003");
  EXPECT_EQ(slurm.master_port, 61440 + 1);
  EXPECT_EQ(slurm.local_world_size, 4);
  EXPECT_EQ(slurm.store_host, StoreHost::kRankZero);
  for (const auto& [nodes, first] :
       {std::pair{"rack[1-2]n[3-4],x", "rack1n3"}, std::pair{"n[7,9]", "n7"}, std::pair{"a,b", "a"},
        std::pair{"p[10-12]-ib", "p10-ib"}}) {
    EXPECT_EQ(ValueOrThrow(Detect({{"SLURM_PROCID", "0"},
                                   {"SLURM_STEP_NUM_TASKS", "8"},
                                   {"SLURM_STEP_NODELIST", nodes},
                                   {"SLURM_TASKS_PER_NODE", "4(x2)"}}))
                  .master_addr,
              first);
  }
  // The name of the only node need not resolve, and its store is for nobody else.
  const LaunchEnv one_node = ValueOrThrow(Detect({{"SLURM_PROCID", "1"},
                                                  {"SLURM_STEP_NUM_TASKS", "2"},
                                                  {"SLURM_STEP_NODELIST", "gpu003"},
                                                  {"SLURM_TASKS_PER_NODE", "2"}}));
  EXPECT_EQ(one_node.master_addr, "127.0.0.1");
  // Inside salloc and in the shell of a batch script there are Slurm's variables without srun,
  // which alone starts as many tasks: that is no job.
  for (const char* tasks : {"1", "8"}) {
    EXPECT_EQ(ValueOrThrow(Detect({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", tasks}})).launcher,
              Launcher::kNone);
  }
  const LaunchEnv single = ValueOrThrow(Detect({}));
  EXPECT_EQ(single.world_size, 1);
  EXPECT_TRUE(single.master_addr.empty());
}

TEST(LaunchEnvTest, OfKeelLaunchTheStartOfTheJob) {
  std::map<std::string, std::string> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"KEEL_STATUS_FILE", "status"}};
  EXPECT_FALSE(ValueOrThrow(Detect(variables)).job_start);
  variables["KEEL_JOB_START"] = "86400";
  const LaunchEnv env = ValueOrThrow(Detect(variables));
  EXPECT_EQ(env.launcher, Launcher::kKeelLaunch);
  EXPECT_EQ(env.job_start, std::chrono::hours(24));
  variables["KEEL_JOB_START"] = "soon";
  EXPECT_FALSE(Detect(variables).ok());
}

TEST(LaunchEnvTest, TheLaunchersStoreIsKnownByItsAddress) {
  std::map<std::string, std::string> variables = {{"RANK", "0"},
                                                  {"WORLD_SIZE", "2"},
                                                  {"MASTER_ADDR", "n0"},
                                                  {"MASTER_PORT", "29500"},
                                                  {"KEEL_STORE", "n0:29500"},
                                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(ValueOrThrow(Detect(variables)).store_host, StoreHost::kLauncher);
  // torchrun below keel launch: the store is torchrun's.
  variables["MASTER_PORT"] = "29501";
  EXPECT_EQ(ValueOrThrow(Detect(variables)).store_host, StoreHost::kAgent);
}

TEST(LaunchEnvTest, AShortSecretIsNone) {
  std::map<std::string, std::string> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"KEEL_JOB_SECRET", "0123456789abcde"}};
  const Status status = Detect(variables).status();
  EXPECT_EQ(status.code(), StatusCode::kUsage);
  EXPECT_EQ(status.message().find("0123456789"), std::string::npos) << status.message();
  variables["KEEL_JOB_SECRET"] += "f";
  EXPECT_EQ(ValueOrThrow(Detect(variables)).job_secret, "0123456789abcdef");
}

// Each process of such a start would train by itself.
TEST(LaunchEnvTest, HalfOfALaunchersVariablesIsRefused) {
  const auto message = [](const std::map<std::string, std::string>& variables) {
    return Detect(variables).status().message();
  };
  EXPECT_EQ(message({{"RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29600"}}),
            "RANK=1 without WORLD_SIZE: a launcher sets both; unset it, or start the ranks with "
            "keel launch or torchrun");
  EXPECT_THAT(message({{"RANK", "0"}}), ::testing::HasSubstr("RANK=0 without WORLD_SIZE"));
  EXPECT_THAT(message({{"PMI_RANK", "0"}}), ::testing::HasSubstr("PMI_RANK=0 without PMI_SIZE"));
  // The shell of a batch script has the size of what srun is to start; and what another launcher
  // left behind counts for nothing.
  EXPECT_EQ(message({{"WORLD_SIZE", "16"}}), "");
  EXPECT_EQ(message({{"OMPI_COMM_WORLD_RANK", "0"},
                     {"OMPI_COMM_WORLD_SIZE", "2"},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                     {"PMI_RANK", "3"}}),
            "");
  const LaunchEnv task = ValueOrThrow(Detect({{"WORLD_SIZE", "2"},
                                              {"SLURM_PROCID", "1"},
                                              {"SLURM_STEP_NUM_TASKS", "2"},
                                              {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                              {"SLURM_LOCALID", "1"}}));
  EXPECT_EQ(task.rank, 1);
  EXPECT_EQ(task.world_size, 2);
}

TEST(LaunchEnvTest, NonsenseNamesTheVariable) {
  const auto text = Detect({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}).status();
  EXPECT_EQ(text.code(), StatusCode::kUsage);
  EXPECT_NE(text.message().find("RANK=\"x\""), std::string::npos) << text.message();
  EXPECT_FALSE(Detect({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}}).ok());
  EXPECT_FALSE(Detect({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).ok()) << "no MASTER_ADDR";
  EXPECT_FALSE(Detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "70000"}}).ok());
  EXPECT_FALSE(
      Detect(
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "0"}})
          .ok());
}

TEST(RankStatusTest, OutlivesItsWriter) {
  const std::string path = ::testing::TempDir() + "/rank_status_test";
  std::remove(path.c_str());
  EXPECT_FALSE(RankStatus::Read(path));
  {
    RankStatus status(path);
    EXPECT_FALSE(RankStatus::Read(path)) << "nothing was set";
    status.Set(41, "a phase with a name that is much too long");
  }
  const auto reading = RankStatus::Read(path);
  ASSERT_TRUE(reading);
  EXPECT_EQ(reading->step, 41);
  EXPECT_EQ(reading->phase, "a phase with a name tha");
  EXPECT_FALSE(reading->stopped);
  RankStatus("").Set(1, "x");  // no file, no effect
  RankStatus("").SetStopped();
  std::remove(path.c_str());
}

TEST(RankStatusTest, SaysThatItWasToldToStop) {
  const std::string path = ::testing::TempDir() + "/rank_status_stopped_test";
  std::remove(path.c_str());
  RankStatus status(path);
  status.Set(3, "save");
  status.SetStopped();
  const auto reading = RankStatus::Read(path);
  ASSERT_TRUE(reading);
  EXPECT_TRUE(reading->stopped);
  EXPECT_EQ(reading->step, 3);
  EXPECT_EQ(reading->phase, "save");
  std::remove(path.c_str());
}

}  // namespace
}  // namespace keel::parallel
