// What `keel ckpt` and a resume show of texts that others have chosen.

#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <utility>

#include "checkpoint/format/manifest.h"
#include "common/json.h"
#include "common/text.h"
#include "tests/tools/ckpt_commands_fixture.h"

namespace keel::tools {
namespace {

// What every command prints of a checkpoint whose maker chose each of its texts: no byte that a
// terminal would act on, and no line that begins with what was chosen.
TEST_F(CkptCommands, HostileTextIsShownAndDoesNothing) {
  namespace fs = std::filesystem;
  const std::string evil =
      "\x1b]0;x\x07\n2026-11-21T07:00:00.123Z info  all is well\r\x7f\u009b31m\u202e";
  const std::string step = dir_ / "global_step_40";
  const std::string good = ReadAll(step + "/manifest.json");
  const checkpoint::Manifest manifest = ValueOrThrow(checkpoint::Manifest::Parse(good, "m"));
  int shown = 0;
  const auto check = [&](const std::string& text) {
    shown += text.find("all is well") != std::string::npos;
    for (const char c : text) {
      ASSERT_TRUE(c == '\n' || (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f)) << text;
    }
    EXPECT_EQ(text.find("\u009b"), std::string::npos) << text;
    EXPECT_EQ(text.find("\u202e"), std::string::npos) << text;
    EXPECT_EQ(("\n" + text).find("\n2026-"), std::string::npos) << text;
  };
  const auto all_commands = [&] {
    const TempDir other;
    CkptDiffOptions diff;
    diff.a = dir_ / "global_step_20";
    diff.b = step;
    CkptDiffOptions diff_json = diff;
    diff_json.json = true;
    CkptReshardOptions reshard;
    reshard.source = step;
    reshard.run = other / "run";
    reshard.world = 1;
    CkptReshardOptions like = reshard;
    like.source = dir_ / "global_step_20";
    like.run = other / "like";
    like.world = 0;
    like.like = step;
    CkptExportOptions exports;
    exports.step = step;
    exports.output = other / "exported";
    CkptPruneOptions prune;
    prune.directory = dir_.path();
    prune.dry_run = true;
    for (const Outcome& run :
         {Call(CkptLs, CkptLsOptions{dir_.path()}), Call(CkptLs, CkptLsOptions{dir_.path(), true}),
          Call(CkptLs, CkptLsOptions{step}),
          Call(CkptInspect, CkptInspectOptions{step, false, true}),
          Call(CkptInspect, CkptInspectOptions{step, true, true}),
          Call(CkptVerify, CkptVerifyOptions{step, 1}), Call(CkptDiff, diff),
          Call(CkptDiff, diff_json), Call(CkptReshard, reshard), Call(CkptReshard, like),
          Call(CkptExportHf, exports), Call(CkptPrune, prune), Call(CkptPin, {{step}}),
          Call(CkptUnpin, {{step}})}) {
      check(run.out);
      check(run.err);
    }
    // What a run that would resume from it says and logs.
    LogOptions options = Quiet();
    options.file = other / "log";
    const auto disk = dir_.Open();
    const auto loaded = LoadFrom(
        *disk, cut_, [](checkpoint::LoadRequest& request) { request.config_digest = "another"; });
    check(PrintableLines(loaded.status().ToString()));
    Logger log(options);
    log.Warning("{}", loaded.status().ToString());
    std::string logged = ReadAll(options.file);
    while (!logged.empty()) {  // its own lines begin with a time
      const size_t end = logged.find('\n');
      if (logged.starts_with("20")) logged.erase(0, 1);
      check(logged.substr(0, end));
      logged.erase(0, logged.find('\n') + 1);
    }
  };
  const auto hostile = [&](const std::function<void(checkpoint::Manifest&)>& change) {
    const int before = shown;
    checkpoint::Manifest changed = manifest;
    change(changed);
    WriteAll(step + "/manifest.json", changed.Serialize());
    all_commands();
    EXPECT_GT(shown, before);
  };
  hostile([&](auto& m) { m.run_id = evil; });
  hostile([&](auto& m) { m.save_id = evil; });
  hostile([&](auto& m) { m.created = evil; });
  hostile([&](auto& m) { m.config_digest = evil; });
  hostile([&](auto& m) { m.layout = Json{{evil, 1}, {"x", evil}}; });
  hostile([&](auto& m) { m.roles.push_back(evil); });
  hostile([&](auto& m) { m.files[0].path = evil; });
  // Taken as a name, which index and manifest do not agree on: it need not be shown.
  checkpoint::Manifest renamed = manifest;
  renamed.files[0].path = "a\u009b31m\u202e";
  WriteAll(step + "/manifest.json", renamed.Serialize());
  all_commands();
  // Of another version, and with a key, a content and a role that nobody knows.
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"\"format_version\": \"1.",
                                                                     "\"format_version\": \"EVIL"},
                                 {"\"format\": \"", "\"format\": \"EVIL"},
                                 {"\"metric\": null", "\"metric\": null, \"EVIL\": 1"},
                                 {"\"optimizer\",", "\"EVIL\","},
                                 {"\"role\": \"model\"", "\"role\": \"EVIL\""}}) {
    const int before = shown;
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const std::string quoted = Json(evil).dump();
    text.replace(text.find("EVIL"), 4, quoted.substr(1, quoted.size() - 2));
    WriteAll(step + "/manifest.json", Sign(text));
    all_commands();
    EXPECT_GT(shown, before) << to;
  }
  // A file beside it, and names of tensors.
  WriteAll(step + "/manifest.json", good);
  WriteAll(step + "/all is well\x1b[2J\n2026-", "");
  const int before = shown;
  all_commands();
  EXPECT_GT(shown, before);
  fs::remove_all(step);
  checkpoint::testing::Cut named({1}, 1, checkpoint::testing::ModelSize::kTiny);
  named.model[0] = RankPart();
  named.model[0].AddBox({evil, DType::kF32, Dims{3}}, Box::Whole(Dims{3}));
  named.model[0].Clear(1);
  ThrowIfError(checkpoint::testing::SaveOn(*dir_.Open(), named, 40, SmallOptions()));
  const int unnamed = shown;
  all_commands();
  FlipByte("global_step_40/actor/model/rank_00000.safetensors",
           ReadAll(step + "/actor/model/rank_00000.safetensors").size() - 1);
  all_commands();
  EXPECT_GT(shown, unnamed);
}

}  // namespace
}  // namespace keel::tools
