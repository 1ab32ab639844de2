// The allowed edges between folders, read from the #includes.

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

struct Include {
  std::string file;
  int line = 0;
  std::string target;
};

std::string Root() {
  const char* value = std::getenv("KEEL_SOURCE_DIR");
  return value != nullptr ? value : ".";
}

std::vector<Include> IncludesOf(const std::string& folder) {
  static const std::regex pattern(R"(^\s*#\s*include\s*[<"]([^>"]+)[>"])");
  std::vector<Include> includes;
  if (!fs::exists(Root() + "/" + folder)) return includes;
  for (const auto& entry : fs::recursive_directory_iterator(Root() + "/" + folder)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cc" && extension != ".cu" && extension != ".cuh")
      continue;
    std::ifstream file(entry.path());
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      std::smatch match;
      if (std::regex_search(line, match, pattern)) {
        includes.push_back({fs::relative(entry.path(), Root()), number, match[1]});
      }
    }
  }
  return includes;
}

bool StartsWith(const std::string& text, const std::string& start) {
  return text.rfind(start, 0) == 0;
}

// Every folder, and the folders that its files may include. What is under a folder of this list and
// no folder of it itself counts as the folder.
const std::map<std::string, std::set<std::string>>& AllowedEdges() {
  static const std::map<std::string, std::set<std::string>> edges = {
      {"common", {}},
      {"common/files", {"common"}},
      {"common/memory", {"common"}},
      {"common/process", {"common"}},
      {"common/tensors", {"common"}},
      {"common/kernels", {}},
      {"common/options", {"common"}},
      {"common/programs", {"common", "common/files"}},
      {"gpu", {}},
      {"parallel", {"common", "common/tensors"}},
      {"parallel/store", {"common", "common/process", "parallel"}},
      {"parallel/groups",
       {"common", "common/memory", "common/process", "gpu", "parallel", "parallel/store"}},
      {"parallel/tensor", {"common", "common/kernels", "gpu", "parallel", "parallel/groups"}},
      {"parallel/gradients", {"common/tensors", "parallel", "parallel/groups"}},
      {"parallel/pipeline", {"common", "parallel/groups"}},
      {"model/chat_template/unicode", {"common"}},
      {"model/chat_template/jinja", {"common", "model/chat_template/unicode"}},
      {"model/chat_template/builtins",
       {"common", "model/chat_template/unicode", "model/chat_template/jinja"}},
      {"model/chat_template",
       {"common", "common/files", "model/chat_template/unicode", "model/chat_template/jinja"}},
      {"model/tokenizer/text", {"common"}},
      {"model/tokenizer", {"common", "model/tokenizer/text"}},
      {"model/tokenizer/pipeline",
       {"common", "common/memory", "model/tokenizer/text", "model/tokenizer"}},
      {"model/tokenizer/files",
       {"common", "common/files", "model/tokenizer/text", "model/tokenizer",
        "model/tokenizer/pipeline"}},
      {"model/gguf", {"common", "common/files", "common/tensors", "model/tokenizer/files"}},
      {"model/config", {"common", "common/tensors"}},
      {"model/families", {"model/config"}},
      {"model/ops",
       {"common", "common/kernels", "gpu", "parallel", "parallel/groups", "parallel/tensor",
        "model/config"}},
      {"model/layers", {"parallel", "parallel/tensor", "model/config", "model/ops"}},
      {"model",
       {"common", "common/tensors", "parallel", "parallel/tensor", "model/config", "model/ops",
        "model/layers"}},
      {"rollout",
       {"common", "common/kernels", "parallel/groups", "parallel/tensor", "model/tokenizer",
        "model/config", "model/ops", "model"}},
      {"rewards",
       {"common", "common/files", "common/options", "common/process", "common/programs"}},
      {"turns",
       {"common", "common/files", "common/options", "common/process", "common/programs",
        "model/chat_template", "model/tokenizer", "model/tokenizer/text"}},
      {"serve", {"common", "rollout", "turns"}},
      {"checkpoint/format", {"common", "common/files", "common/tensors"}},
      {"checkpoint/base", {"common", "common/tensors", "checkpoint/format"}},
      {"checkpoint/run", {"common", "common/files", "common/process", "checkpoint/format"}},
      {"checkpoint/read",
       {"common", "common/files", "common/memory", "common/tensors", "checkpoint/format",
        "checkpoint/run"}},
      {"checkpoint/hf",
       {"common", "common/files", "common/tensors", "checkpoint/format", "checkpoint/run",
        "checkpoint/read"}},
      {"checkpoint/commit",
       {"common", "common/files", "checkpoint/format", "checkpoint/base", "checkpoint/run",
        "checkpoint/read"}},
      {"checkpoint/save",
       {"common", "common/files", "common/memory", "common/tensors", "checkpoint/format",
        "checkpoint/base", "checkpoint/run", "checkpoint/read", "checkpoint/hf",
        "checkpoint/commit"}},
      {"checkpoint/load",
       {"common", "common/files", "common/memory", "common/tensors", "checkpoint/format",
        "checkpoint/base", "checkpoint/run", "checkpoint/read", "checkpoint/hf"}},
      {"checkpoint",
       {"common", "common/files", "common/process", "checkpoint/format", "checkpoint/base",
        "checkpoint/run", "checkpoint/commit", "checkpoint/save", "checkpoint/load"}},
      {"checkpoint/tools",
       {"common", "common/files", "common/memory", "common/tensors", "checkpoint/format",
        "checkpoint/base", "checkpoint/run", "checkpoint/read", "checkpoint/hf",
        "checkpoint/commit", "checkpoint"}},
      {"library",
       {"common", "common/files", "common/process", "common/tensors", "parallel/store",
        "checkpoint/format", "checkpoint/base", "checkpoint/run", "checkpoint/read",
        "checkpoint/load", "checkpoint"}},
      {"trainer/algorithms", {"common"}},
      {"trainer/metrics", {"common", "common/files", "common/process"}},
      {"trainer/config",
       {"common", "common/files", "common/options", "model/tokenizer", "rollout", "rewards", "turns",
        "checkpoint/format", "checkpoint/base", "trainer/algorithms", "trainer/data/rows",
        "trainer/data"}},
      {"trainer/data/tokens", {"common", "common/files"}},
      {"trainer/data/files", {"common", "common/files", "common/process"}},
      {"trainer/data/rows",
       {"common", "model/chat_template", "model/tokenizer", "trainer/data/files"}},
      {"trainer/data",
       {"common", "common/files", "common/process", "rewards", "turns", "trainer/algorithms",
        "trainer/data/tokens", "trainer/data/files", "trainer/data/rows"}},
      {"trainer/data/arrow", {"common", "trainer/data/files"}},
      {"trainer/desk",
       {"common", "common/files", "parallel", "parallel/store", "rollout", "turns",
        "trainer/data"}},
      {"trainer/engine",
       {"common", "common/memory", "common/tensors", "common/kernels", "parallel/groups",
        "parallel/tensor", "parallel/gradients", "parallel/pipeline", "model/config", "model",
        "trainer/config", "trainer/data"}},
      {"trainer/foreign", {"common", "common/options", "trainer/algorithms", "trainer/config"}},
      {"trainer/sync",
       {"common", "common/tensors", "parallel", "parallel/groups", "parallel/tensor", "parallel/gradients", "model",
        "rollout", "trainer/config", "trainer/engine"}},
      {"trainer/inputs",
       {"common", "common/files", "common/process", "common/tensors", "model/chat_template",
        "model/tokenizer", "model/tokenizer/files", "model/config", "rewards", "turns",
        "checkpoint/format", "checkpoint/base", "checkpoint/hf", "trainer/metrics",
        "trainer/config", "trainer/data/rows", "trainer/data"}},
      {"trainer/run",
       {"common", "common/files", "common/memory", "common/process", "common/tensors",
        "common/options", "parallel", "parallel/store", "parallel/groups", "parallel/tensor",
        "checkpoint/format", "checkpoint/base", "checkpoint/run", "checkpoint", "trainer/metrics",
        "trainer/config", "trainer/data", "trainer/engine", "trainer/sync", "trainer/inputs"}},
      {"trainer/rl/learn",
       {"common", "parallel/groups", "parallel/tensor", "model", "trainer/algorithms",
        "trainer/metrics", "trainer/config", "trainer/data", "trainer/engine", "trainer/sync"}},
      {"trainer/rl/generation",
       {"common", "common/process", "parallel/store", "parallel/groups", "model/tokenizer",
        "model/config", "rollout", "rewards", "turns", "checkpoint/base", "trainer/metrics",
        "trainer/config", "trainer/data", "trainer/desk", "trainer/engine", "trainer/sync",
        "trainer/inputs", "trainer/run"}},
      {"trainer/rl",
       {"common", "parallel/groups", "rewards", "trainer/algorithms", "trainer/metrics",
        "trainer/config", "trainer/data", "trainer/engine", "trainer/sync", "trainer/inputs",
        "trainer/run", "trainer/rl/learn", "trainer/rl/generation"}},
      {"trainer",
       {"common", "trainer/inputs", "trainer/run", "trainer/rl/generation", "trainer/rl"}},
  };
  return edges;
}

// The folder of the list that holds a file; "" when none does.
std::string FolderOf(const std::string& file) {
  std::string folder = file;
  while (!folder.empty()) {
    const size_t slash = folder.rfind('/');
    folder = slash == std::string::npos ? "" : folder.substr(0, slash);
    if (AllowedEdges().contains(folder)) return folder;
  }
  return {};
}

bool IsTorch(const std::string& target) {
  return StartsWith(target, "ATen/") || StartsWith(target, "torch/") || StartsWith(target, "c10/");
}

const std::vector<std::string>& TopFolders() {
  static const std::vector<std::string> folders = {"common",  "gpu",        "parallel", "model",
                                                   "rollout", "checkpoint", "library",  "rewards",
                                                   "turns",   "serve",      "trainer"};
  return folders;
}

TEST(IncludeLayersTest, FoldersDependOnlyDownwards) {
  int seen = 0;
  std::map<std::string, std::set<std::string>> used;
  for (const std::string& top : TopFolders()) {
    for (const Include& include : IncludesOf(top)) {
      ++seen;
      const std::string from = FolderOf(include.file);
      const std::string to = FolderOf(include.target);
      const std::string first = include.target.substr(0, include.target.find('/'));
      EXPECT_FALSE(first == "tools" || first == "bench" || first == "tests")
          << include.file << ":" << include.line << " includes " << include.target;
      if (to.empty() || to == from) continue;
      used[from].insert(to);
      EXPECT_TRUE(AllowedEdges().at(from).contains(to))
          << include.file << ":" << include.line << " includes " << include.target;
    }
  }
  EXPECT_GT(seen, 200) << "the sources were not found under " << Root();
  for (const auto& [folder, below] : AllowedEdges())
    EXPECT_EQ(used[folder], below) << folder << ": an edge of the list that nobody needs";
}

// The programs may include all folders, but nothing ships a benchmark or a test.
TEST(IncludeLayersTest, ProgramsIncludeNoTestsAndToolsNoBenchmarks) {
  for (const std::string program : {"tools", "bench"}) {
    for (const Include& include : IncludesOf(program)) {
      EXPECT_FALSE(StartsWith(include.target, "tests/") ||
                   (program == "tools" && StartsWith(include.target, "bench/")))
          << include.file << ":" << include.line << " includes " << include.target;
    }
  }
}

// A list of edges that are allowed proves no layers by itself: no way may lead back.
TEST(IncludeLayersTest, NoFolderIsReachedFromItself) {
  std::map<std::string, std::set<std::string>> reached = AllowedEdges();
  for (bool grew = true; grew;) {
    grew = false;
    for (auto& [folder, below] : reached) {
      const std::set<std::string> before = below;
      for (const std::string& next : before) {
        ASSERT_TRUE(reached.contains(next)) << next;
        below.insert(reached[next].begin(), reached[next].end());
      }
      grew = grew || below.size() != before.size();
    }
  }
  for (const auto& [folder, below] : reached) EXPECT_FALSE(below.contains(folder)) << folder;
}

// A header with its .cc. One without a header is part of the unit that its name begins with:
// task_steps.cc of task.
std::string UnitOf(const std::string& file) {
  const std::string stem = file.substr(0, file.rfind('.'));
  for (std::string unit = stem; unit.find('_', unit.rfind('/')) != std::string::npos;) {
    if (fs::exists(Root() + "/" + unit + ".h")) return unit;
    unit = unit.substr(0, unit.rfind('_'));
    if (fs::exists(Root() + "/" + unit + ".h")) return unit;
  }
  return stem;
}

// The units (a header with its .cc) of a top folder that one must open to know all of `unit`.
std::set<std::string> ClosureOf(const std::string& unit) {
  const std::string top = unit.substr(0, unit.find('/') + 1);
  std::map<std::string, std::set<std::string>> includes;
  for (const Include& include : IncludesOf(top)) {
    if (StartsWith(include.target, top))
      includes[UnitOf(include.file)].insert(UnitOf(include.target));
  }
  std::set<std::string> closure = {unit};
  std::vector<std::string> open = {unit};
  while (!open.empty()) {
    const std::string next = open.back();
    open.pop_back();
    for (const std::string& target : includes[next]) {
      if (closure.insert(target).second) open.push_back(target);
    }
  }
  return closure;
}

TEST(IncludeLayersTest, WhatOneMustOpenStaysSmall) {
  EXPECT_LE(ClosureOf("checkpoint/save/saver").size(), 40u);
  EXPECT_LE(ClosureOf("checkpoint/load/loader").size(), 34u);
  EXPECT_LE(ClosureOf("trainer/run/lm_task").size(), 27u);
  EXPECT_GT(ClosureOf("trainer/rl/rl_task").size(), 60u) << "the includes were not followed";
}

TEST(IncludeLayersTest, TheTorchFreePartSeesNoTorch) {
  for (const char* folder :
       {"common",       "checkpoint",      "rewards",         "turns",
        "serve",        "model/gguf",      "model/tokenizer", "tools/ckpt",
        "tools/config", "tools/data",      "tools/launch",    "tools/manual",
        "tools/report", "tools/watch",     "trainer/config",  "trainer/data",
        "trainer/desk", "trainer/foreign", "trainer/inputs",  "trainer/metrics"}) {
    for (const Include& include : IncludesOf(folder)) {
      EXPECT_FALSE(IsTorch(include.target))
          << include.file << ":" << include.line << " includes " << include.target;
    }
  }
  const std::set<std::string> torch_free = {"parallel/layout",
                                            "parallel/pipeline/schedule",
                                            "parallel/launch_env",
                                            "parallel/rank_status",
                                            "parallel/gradients/bucket_layout",
                                            "parallel/store/sockets",
                                            "parallel/store/store_wire",
                                            "parallel/store/store_service",
                                            "parallel/store/store_server",
                                            "parallel/store/store_client",
                                            "library/state",
                                            "library/state_check",
                                            "library/state_checkpointer",
                                            "library/state_tables",
                                            "library/store_coordinator",
                                            "model/config/head_split",
                                            "model/config/hf_config",
                                            "model/config/hf_tensors",
                                            "model/config/layout_fit",
                                            "model/tokenizer",
                                            "rollout/block_manager",
                                            "rollout/kv_groups",
                                            "rollout/partial",
                                            "rollout/request_check",
                                            "rollout/sampler",
                                            "rollout/sampling",
                                            "rollout/scheduler",
                                            "rollout/sequence",
                                            "trainer/algorithms/advantages",
                                            "trainer/algorithms/choices",
                                            "trainer/algorithms/kl",
                                            "trainer/algorithms/packed",
                                            "trainer/algorithms/rollout_correction",
                                            "trainer/algorithms/rollout_correction_options",
                                            "trainer/engine/lr_schedule",
                                            "trainer/engine/memory_forecast",
                                            "trainer/rl/batch_metrics",
                                            "trainer/rl/console_text",
                                            "trainer/rl/reward_errors",
                                            "trainer/rl/validation",
                                            "trainer/run/run_course",
                                            "trainer/run/run_folder",
                                            "trainer/run/run_state",
                                            "trainer/run/save_session",
                                            "trainer/run/trainer_inputs"};
  for (const char* folder : {"parallel", "library", "model", "rollout", "trainer"}) {
    for (const Include& include : IncludesOf(folder)) {
      if (!torch_free.contains(include.file.substr(0, include.file.rfind('.')))) continue;
      EXPECT_FALSE(IsTorch(include.target))
          << include.file << ":" << include.line << " includes " << include.target;
    }
  }
}

TEST(IncludeLayersTest, OnlyProcessGroupsAndStoresSeeC10d) {
  for (const char* folder : {"common", "parallel", "model", "checkpoint", "library", "rollout",
                             "rewards", "turns", "serve", "trainer", "tools", "bench"}) {
    for (const Include& include : IncludesOf(folder)) {
      if (include.target.find("torch/csrc/distributed") == std::string::npos) continue;
      const bool may = StartsWith(include.file, "parallel/groups/process_group") ||
                       StartsWith(include.file, "parallel/store/store") ||
                       StartsWith(include.file, "parallel/groups/cuda/");
      EXPECT_TRUE(may) << include.file << ":" << include.line << " includes " << include.target;
    }
  }
}

TEST(IncludeLayersTest, OnlyTheHttpClientSeesLibcurl) {
  for (const char* folder : {"common", "parallel", "model", "checkpoint", "library", "rollout",
                             "rewards", "turns", "serve", "trainer", "tools", "bench"}) {
    for (const Include& include : IncludesOf(folder)) {
      EXPECT_TRUE(!StartsWith(include.target, "curl/") || include.file == "common/programs/http_client.cc")
          << include.file << ":" << include.line << " includes " << include.target;
    }
  }
}

TEST(IncludeLayersTest, OnlyTheHttpServiceSeesHttplib) {
  int seen = 0;
  for (const char* folder : {"common", "parallel", "model", "checkpoint", "library", "rollout",
                             "rewards", "turns", "serve", "trainer", "tools", "bench"}) {
    for (const Include& include : IncludesOf(folder)) {
      if (include.target != "httplib.h") continue;
      ++seen;
      EXPECT_EQ(include.file, "serve/http_service.cc");
    }
  }
  EXPECT_EQ(seen, 1);
}

// 20 s a file, and a stream that knows no errno: neither belongs where they are forbidden.
TEST(IncludeLayersTest, SomeHeadersAreForbidden) {
  for (const char* folder : {"common", "parallel", "model", "checkpoint", "library", "rollout",
                             "rewards", "turns", "serve", "trainer", "tools", "bench", "tests"}) {
    for (const Include& include : IncludesOf(folder)) {
      EXPECT_NE(include.target, "torch/torch.h") << include.file << ":" << include.line;
    }
  }
  for (const Include& include : IncludesOf("checkpoint")) {
    EXPECT_NE(include.target, "fstream")
        << include.file << ":" << include.line << ": go through FileSystem";
    EXPECT_NE(include.target, "filesystem")
        << include.file << ":" << include.line << ": go through FileSystem";
  }
}

}  // namespace
