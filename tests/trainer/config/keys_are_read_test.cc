// Every key of the schema is read by the program: what is documented and read by nothing is a
// promise that nobody keeps. Of the sources' text: a field is read where it is named as one,
// `section.field`, outside of the configuration's own files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace keel::trainer {
namespace {

namespace fs = std::filesystem;

// Keys that no other file needs to read, and why.
const std::map<std::string, std::string>& Exceptions() {
  static const std::map<std::string, std::string> exceptions = {
      {"actor_rollout_ref.actor.megatron.use_distributed_optimizer",
       "verl's switch; ValidateConfig refuses false, which there is not"},
      {"actor_rollout_ref.rollout.dtype",
       "verl's choice; ValidateRolloutConfig refuses another than the model's"},
      {"critic.enable", "HasCritic (config_rl.h) reads it for all others"},
      {"actor_rollout_ref.ref.ref_model_sync_steps",
       "RefSection::SyncsAfter (config_rl.h) reads it for all others"},
      {"trainer.logger", "TrainerSection::LogsTo (sections.h) reads it for all others"},
      {"trainer.n_gpus_per_node", "RolesOf (config_async.h) reads it for all others"},
      {"trainer.trace.steps", "TraceSection::Covers (sections.h) reads it for all others"},
  };
  return exceptions;
}

// Sections whose fields are read through references of these names, or as members (".loss").
const std::map<std::string, std::vector<std::string>>& Aliases() {
  static const std::map<std::string, std::vector<std::string>> aliases = {
      {"actor_rollout_ref.model", {"section"}},
      {"actor_rollout_ref.actor", {"section", ".loss"}},  // ActorLossSection
      {"actor_rollout_ref.actor.megatron", {"megatron"}},
      {"actor_rollout_ref.actor.optim", {"optim"}},
      {"actor_rollout_ref.rollout", {"r"}},
      {"actor_rollout_ref.rollout.val_kwargs", {"v"}},
      {"async_training", {"async"}},
      {"critic", {"critic"}},
      {"critic.optim", {"optim"}},              // OptimSection: see WholeSections
      {"reward", {"reward", "w", "verifier"}},  // VerifierSection
      {"reward.overlong_buffer", {"overlong"}},
      {"trainer", {"trainer"}},
  };
  return aliases;
}

// Sections of a type that another one has, too: what reads their fields under an alias may read the
// other's alone. So the code must hand each on as a whole, in each of these places.
const std::map<std::string, std::vector<std::string>>& WholeSections() {
  static const std::map<std::string, std::vector<std::string>> whole = {
      {"critic.optim", {"OptimSection&optim=c_.critic.optim;", "Schedule(c_.critic.optim,"}}};
  return whole;
}

bool InName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Without comments, literals and white space, so that neither a message that names a key nor the
// place of a line's end counts.
std::string CodeOf(const std::string& text) {
  std::string code;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "//") == 0) {
      i = std::min(text.find('\n', i), text.size());
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !InName(text[i - 1])))) {
      const char quote = text[i];
      for (++i; i < text.size() && text[i] != quote; ++i) i += text[i] == '\\';
      code += quote;
    } else if (std::isspace(static_cast<unsigned char>(text[i])) == 0) {
      code += text[i];
    } else if (!code.empty() && InName(code.back()) && i + 1 < text.size() && InName(text[i + 1])) {
      code += ' ';  // between two words
    }
  }
  return code;
}

std::string ProductCode() {
  const char* root = std::getenv("KEEL_SOURCE_DIR");
  std::string code;
  for (const char* folder : {"common", "parallel", "model", "checkpoint", "rollout", "rewards",
                             "trainer", "turns", "serve", "tools"}) {
    const fs::path top = fs::path(root != nullptr ? root : ".") / folder;
    if (!fs::exists(top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(top)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cc") continue;
      if (entry.path().parent_path().filename() == "config") continue;
      if (entry.path().filename() == "reward_table.cc") continue;
      std::ifstream file(entry.path());
      std::stringstream text;
      text << file.rdbuf();
      code += CodeOf(text.str()) + "\n";
    }
  }
  return code;
}

// Whether `name` stands in the code as a whole word and as a member of something, or of nothing.
bool Names(const std::string& code, const std::string& name, bool member) {
  for (size_t at = code.find(name); at != std::string::npos; at = code.find(name, at + 1)) {
    const char before = at > 0 ? code[at - 1] : '\n';
    const size_t end = at + name.size();
    if (end < code.size() && InName(code[end])) continue;
    const bool of_something = before == '.' || before == '>';
    if (member ? of_something : !of_something && !InName(before)) return true;
  }
  return false;
}

bool EndsWith(const std::string& path, const std::string& end) {
  return path == end || path.ends_with("." + end);
}

// The shortest end of `path` that no other path has.
std::string OwnEnd(const std::string& path, const std::vector<options::Option>& all) {
  for (size_t dot = path.rfind('.'); dot != std::string::npos; dot = path.rfind('.', dot - 1)) {
    const std::string end = path.substr(dot + 1);
    if (std::count_if(all.begin(), all.end(),
                      [&](const options::Option& other) { return EndsWith(other.path, end); }) == 1)
      return end;
    if (dot == 0) break;
  }
  return path;
}

bool IsRead(const std::string& code, const std::string& path,
            const std::vector<options::Option>& all) {
  if (Names(code, OwnEnd(path, all), true)) return true;
  const size_t dot = path.rfind('.');
  const auto aliases = Aliases().find(path.substr(0, dot));
  if (aliases == Aliases().end()) return false;
  if (const auto whole = WholeSections().find(aliases->first); whole != WholeSections().end()) {
    for (const std::string& place : whole->second)
      if (code.find(place) == std::string::npos) return false;
  }
  return std::any_of(aliases->second.begin(), aliases->second.end(), [&](const std::string& alias) {
    const bool member = alias.front() == '.';
    return Names(code, alias.substr(member ? 1 : 0) + path.substr(dot), member);
  });
}

TEST(KeysAreReadTest, EveryKeyOfTheSchemaIsReadByTheProgram) {
  Config config;
  const options::Schema schema = MakeSchema(config);
  const std::string code = ProductCode();
  ASSERT_GT(code.size(), 500'000u) << "the sources were not found";
  for (const options::Option& option : schema.options()) {
    const bool excepted = Exceptions().contains(option.path);
    EXPECT_NE(IsRead(code, option.path, schema.options()), excepted)
        << option.path
        << (excepted ? " is read: take it off the exceptions" : " is read by nothing");
  }
  EXPECT_GT(schema.options().size(), 150u);
}

TEST(KeysAreReadTest, AMessageOrACommentReadsNothing) {
  const std::string code = CodeOf(
      "// c.ref.dead\nSay(\"a.ref.dead\");\nint64_t dead = 1'000; x.ref\n    .live(a.deadly);");
  EXPECT_FALSE(Names(code, "dead", true));
  EXPECT_TRUE(Names(code, "ref.live", true));
  EXPECT_TRUE(Names(code, "dead", false));
}

}  // namespace
}  // namespace keel::trainer
