#include "tools/launch/launch_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <thread>

namespace keel::tools {
namespace {

using Environment = std::map<std::string, std::string>;

Result<LaunchOptions> Parse(const std::vector<std::string>& arguments,
                            const Environment& env = {}) {
  return ParseLaunchFlags(arguments, "/bin/keel",
                          [&](const std::string& name) -> std::optional<std::string> {
                            const auto it = env.find(name);
                            if (it == env.end()) return std::nullopt;
                            return it->second;
                          });
}

// Every member; the id of a job without one is random.
std::string Text(const LaunchOptions& o) {
  const bool random = std::regex_match(o.run_id, std::regex("[0-9a-f]{16}"));
  return fmt::format(
      "nnodes {} nproc {} node {} addr [{}] port {} id {} restarts {} logs [{}] role {} trainers "
      "{} filter {} "
      "tee {} "
      "shutdown {} failure {} join {} silence {} command {}",
      o.nnodes, o.nproc_per_node, o.node_rank, o.master_addr, o.master_port,
      random ? "random" : o.run_id, o.max_restarts, o.log_dir, o.role, o.trainers.value_or(-1),
      o.local_ranks_filter, o.tee,
      o.shutdown_timeout.value_or(std::chrono::milliseconds(-1)).count(), o.failure_grace.count(),
      o.join_timeout.count(), o.silence_limit.count(), o.command);
}

struct Case {
  std::string flag;
  std::string value;  // of a switch: "1"
  std::function<void(LaunchOptions&)> effect;
  Environment context = {};  // other variables that the value needs
};

std::vector<Case> Cases() {
  const auto nothing = [](LaunchOptions&) {};
  const int cpus = static_cast<int>(std::thread::hardware_concurrency());
  return {
      {"nnodes", "2:2",
       [](auto& o) {
         o.nnodes = 2;
         o.master_port = 29500;
         o.run_id = "none";
       }},
      {"nproc-per-node", "3", [](auto& o) { o.nproc_per_node = 3; }},
      {"nproc-per-node", "cpu", [=](auto& o) { o.nproc_per_node = cpus; }},
      {"node-rank", "1", [](auto& o) { o.node_rank = 1; }},
      {"master-addr", "host", [](auto& o) { o.master_addr = "host"; }},
      {"master-port", "1234", [](auto& o) { o.master_port = 1234; }},
      {"rdzv-backend", "c10d", nothing},
      {"rdzv-endpoint", "host:1234",
       [](auto& o) {
         o.master_addr = "host";
         o.master_port = 1234;
       }},
      {"rdzv-endpoint", "[fd00::1]:1234",
       [](auto& o) {
         o.master_addr = "fd00::1";
         o.master_port = 1234;
       }},
      {"rdzv-endpoint",
       "host",
       [](auto& o) {
         o.master_addr = "host";
         o.master_port = 77;
       },
       {{"PET_MASTER_ADDR", "other"}, {"PET_MASTER_PORT", "77"}}},
      {"rdzv-id", "job", [](auto& o) { o.run_id = "job"; }},
      {"rdzv-conf", "join_timeout=7,is_host=1,keep_alive_timeout=9",
       [](auto& o) {
         o.join_timeout = std::chrono::seconds(7);
         o.silence_limit = std::chrono::seconds(9);
       }},
      {"max-restarts", "4", [](auto& o) { o.max_restarts = 4; }},
      {"monitor-interval", "0.5", nothing},
      {"log-dir", "logs", [](auto& o) { o.log_dir = "logs"; }},
      {"redirects", "3", [](auto& o) { o.tee = false; }},
      {"redirects", "0", nothing},
      {"tee", "3", nothing, {{"PET_REDIRECTS", "3"}}},
      {"tee", "0", [](auto& o) { o.tee = false; }, {{"PET_REDIRECTS", "3"}}},
      {"local-ranks-filter", "0,2",
       [](auto& o) {
         o.local_ranks_filter = {0, 2};
       }},
      {"role", "trainer", [](auto& o) { o.role = "trainer"; }},
      {"roles",
       "trainer:2,rollout:1",
       [](auto& o) {
         o.nproc_per_node = 3;
         o.trainers = 2;
       },
       {{"PET_NPROC_PER_NODE", "3"}}},
      {"signals-to-handle", "SIGTERM", nothing},
      {"shutdown-timeout", "5", [](auto& o) { o.shutdown_timeout = std::chrono::seconds(5); }},
      {"local-addr", "host", nothing},
      {"start-method", "fork", nothing},
      {"standalone",
       "1",
       [](auto& o) {
         o.master_addr = "127.0.0.1";
         o.master_port = 0;
       },
       {{"PET_MASTER_PORT", "29999"}, {"PET_RDZV_ENDPOINT", "elsewhere:1"}}},
      {"no-python", "1", nothing},
  };
}

bool IsSwitch(const std::string& flag) { return flag == "standalone" || flag == "no-python"; }

std::string Variable(const std::string& flag) {
  std::string name = "PET_" + flag;
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

TEST(LaunchFlagsTest, EveryFlagInEverySpellingAndAsAVariable) {
  for (const Case& c : Cases()) {
    LaunchOptions expected = ValueOrThrow(Parse({"train", "c.yaml"}));
    c.effect(expected);
    std::string underscored = c.flag;
    std::replace(underscored.begin(), underscored.end(), '-', '_');
    std::vector<std::vector<std::string>> spellings;
    for (const std::string& name : {c.flag, underscored}) {
      if (IsSwitch(c.flag)) {
        spellings.push_back({"--" + name});
      } else {
        spellings.push_back({"--" + name, c.value});
        spellings.push_back({"--" + name + "=" + c.value});
      }
    }
    for (std::vector<std::string> arguments : spellings) {
      arguments.insert(arguments.end(), {"train", "c.yaml"});
      EXPECT_EQ(Text(ValueOrThrow(Parse(arguments, c.context))), Text(expected))
          << fmt::format("{}", arguments);
      if (IsSwitch(c.flag)) continue;
      // The flag wins over its variable.
      Environment context = c.context;
      context[Variable(c.flag)] = "nonsense";
      EXPECT_EQ(Text(ValueOrThrow(Parse(arguments, context))), Text(expected))
          << fmt::format("{}", arguments);
    }
    Environment context = c.context;
    context[Variable(c.flag)] = c.value;
    EXPECT_EQ(Text(ValueOrThrow(Parse({"train", "c.yaml"}, context))), Text(expected))
        << Variable(c.flag);
  }
}

TEST(LaunchFlagsTest, NoFlagOfTheHelpIsLeftOutAbove) {
  std::set<std::string> tested;
  for (const Case& c : Cases()) tested.insert(c.flag);
  std::set<std::string> listed;
  const std::string help = LaunchFlagHelp();
  const std::regex line("\n  --([a-z-]+) ");
  for (std::sregex_iterator it(help.begin(), help.end(), line), end; it != end; ++it)
    listed.insert((*it)[1]);
  EXPECT_EQ(listed, tested);
}

TEST(LaunchFlagsTest, RolesFillTheJob) {
  for (const char* roles : {"trainer:2", "trainer:2,rollout:2", "trainer:0,rollout:3",
                            "trainer:3,rollout:0", "trainer:1,trainer:2", "trainer:2;rollout:1",
                            "trainer:2,worker:1", "trainer:x,rollout:1"}) {
    const auto options = Parse({"--nproc-per-node", "3", "--roles", roles, "train"});
    EXPECT_EQ(options.status().code(), StatusCode::kUsage) << roles;
  }
}

TEST(LaunchFlagsTest, RanksThatJoinAnotherJobAllWorkForIt) {
  const std::vector<std::string> join = {"rollout", "c.yaml", "--join", "host:1"};
  const auto with = [&](std::vector<std::string> flags, const std::vector<std::string>& command) {
    flags.insert(flags.end(), command.begin(), command.end());
    return Parse(flags);
  };
  EXPECT_EQ(ValueOrThrow(Parse(join)).trainers, 0);
  EXPECT_EQ(ValueOrThrow(Parse({"rollout", "c.yaml", "--join=host:1"})).trainers, 0);
  EXPECT_EQ(ValueOrThrow(with({"--roles", "rollout:1"}, join)).trainers, 0);
  EXPECT_EQ(ValueOrThrow(Parse({"rollout", "c.yaml"})).trainers, std::nullopt);
  EXPECT_EQ(ValueOrThrow(Parse({"train", "--join", "host:1"})).trainers, std::nullopt);
  EXPECT_EQ(ValueOrThrow(with({"--roles", "rollout:1"}, {"--", "sh", "-c", "true"})).trainers, 0);
  EXPECT_EQ(with({"--nproc-per-node", "2", "--roles", "trainer:1,rollout:1"}, join).status().code(),
            StatusCode::kUsage);
  EXPECT_EQ(with({"--roles", "rollout:1"}, {"train", "c.yaml"}).status().code(),
            StatusCode::kUsage);
}

TEST(LaunchFlagsTest, ASwitchThatIsOffInTheEnvironment) {
  const LaunchOptions options =
      ValueOrThrow(Parse({"train"}, {{"PET_STANDALONE", "0"}, {"PET_MASTER_PORT", "5"}}));
  EXPECT_EQ(options.master_port, 5);
}

TEST(LaunchFlagsTest, WhatFollowsTheFlagsIsTheCommand) {
  using Command = std::vector<std::string>;
  EXPECT_EQ(ValueOrThrow(Parse({"train", "c.yaml", "--nnodes", "a.b=c"})).command,
            (Command{"/bin/keel", "train", "c.yaml", "--nnodes", "a.b=c"}));
  EXPECT_EQ(ValueOrThrow(Parse({"--nproc-per-node", "2", "--", "./program", "--", "-x"})).command,
            (Command{"./program", "--", "-x"}));
  EXPECT_TRUE(ValueOrThrow(Parse({"--nproc-per-node", "2"})).command.empty());
  EXPECT_EQ(ValueOrThrow(Parse({"-r", "3", "-t", "3", "train"})).command,
            (Command{"/bin/keel", "train"}));
}

TEST(LaunchFlagsTest, RefusedWithTheFlagAndWhatWasExpected) {
  struct Bad {
    std::vector<std::string> arguments;
    std::string expected;
  };
  const std::vector<Bad> cases = {
      {{"--nproc_per_nod", "2", "train"}, "did you mean --nproc-per-node?"},
      {{"-x", "train"}, "unknown flag -x"},
      {{"--=3"}, "unknown flag --=3"},
      {{"--nproc-per-node"}, "--nproc-per-node needs a value"},
      {{"--nproc-per-node", "two", "train"}, "--nproc-per-node two: expected a number"},
      {{"--nproc-per-node", "99999999999", "train"}, "expected a number"},
      {{"--nnodes", "1:4", "train"}, "--nnodes 1:4: a changing number of nodes"},
      {{"--master-port", "80a", "train"}, "--master-port 80a"},
      {{"--rdzv-endpoint", "host:port", "train"}, "--rdzv-endpoint port"},
      {{"--rdzv-backend", "etcd", "train"}, "--rdzv-backend etcd: expected static or c10d"},
      {{"--rdzv-conf", "join_timeout=soon", "train"}, "--rdzv-conf soon"},
      {{"--rdzv-conf", "join_timout=60", "train"},
       "--rdzv-conf join_timout: expected join_timeout"},
      {{"--standalone=1", "train"}, "--standalone takes no value"},
      {{"--standalone", "--nnodes", "2", "train"}, "--standalone is for one node"},
      {{"--local-ranks-filter", "0,x", "train"}, "--local-ranks-filter x"},
  };
  for (const Bad& bad : cases) {
    const auto options = Parse(bad.arguments);
    ASSERT_FALSE(options.ok()) << bad.expected;
    EXPECT_EQ(options.status().code(), StatusCode::kUsage);
    EXPECT_NE(options.status().message().find(bad.expected), std::string::npos)
        << options.status().message();
  }
  const auto pet = Parse({"train"}, {{"PET_MAX_RESTARTS", "many"}});
  EXPECT_NE(pet.status().message().find("--max-restarts many"), std::string::npos);
}

TEST(LaunchFlagsTest, ValidationListsEveryProblem) {
  LaunchOptions o;
  o.nnodes = 2;
  o.nproc_per_node = 0;
  o.node_rank = 2;
  o.max_restarts = -1;
  o.tee = false;
  o.local_ranks_filter = {0};
  EXPECT_EQ(o.Validate().size(), 7u) << fmt::format("{}", fmt::join(o.Validate(), "\n"));
  o = LaunchOptions();
  o.command = {"true"};
  EXPECT_TRUE(o.Validate().empty());
  o.master_port = 65536;
  EXPECT_EQ(o.Validate().size(), 1u);
}

TEST(LaunchFlagsTest, TheSecretComesFromTheEnvironmentAlone) {
  const std::string secret = "a secret of enough characters";
  EXPECT_EQ(ValueOrThrow(Parse({"train"}, {{"KEEL_JOB_SECRET", secret}})).job_secret, secret);
  EXPECT_EQ(ValueOrThrow(Parse({"train"})).job_secret, "");
  EXPECT_EQ(Parse({"train"}, {{"KEEL_JOB_SECRET", "short"}}).status().code(), StatusCode::kUsage);
  EXPECT_EQ(Parse({"--job-secret", secret, "train"}).status().code(), StatusCode::kUsage);
}

TEST(LaunchFlagsTest, OnlyKeelsOwnCommandsAreKnownToTakeHeldSignals) {
  EXPECT_TRUE(ValueOrThrow(Parse({"train"})).own_command);
  EXPECT_FALSE(ValueOrThrow(Parse({"--", "train"})).own_command);
  EXPECT_FALSE(ValueOrThrow(Parse({})).own_command);
}

}  // namespace
}  // namespace keel::tools
