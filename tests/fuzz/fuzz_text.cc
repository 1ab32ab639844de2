// Text that people write: configurations in YAML, data and model configurations in JSON.
#include <cstdio>

#include "common/json.h"
#include "tests/fuzz/targets.h"
#include "trainer/config/config.h"

namespace keel::fuzz {

void FuzzConfig(std::string_view bytes) {
  trainer::Config config;
  options::Schema schema = trainer::MakeSchema(config);
  const Status loaded = schema.Load({"fuzz.yaml", std::string(bytes)}, {});
  if (!loaded.ok()) {
    KEEL_REQUIRE(loaded.code() == StatusCode::kConfig);
    KEEL_REQUIRE(!loaded.message().empty());
    return;
  }
  // The resolved dump loads back to itself.
  const std::string dump = schema.Dump(false);
  trainer::Config again;
  options::Schema reread = trainer::MakeSchema(again);
  const Status read_back = reread.Load({"dump.yaml", dump}, {});
  if (!read_back.ok()) std::fprintf(stderr, "%s\n", read_back.ToString().c_str());
  KEEL_REQUIRE(read_back.ok());
  KEEL_REQUIRE(reread.Dump(false) == dump);
  (void)trainer::ValidateConfig(config, 4);
}

std::vector<std::string> ConfigSeeds() {
  return {
      "trainer:\n  total_training_steps: 200\n  save_freq: 20\n  max_ckpts_to_keep: 3\n"
      "  logger: [console, jsonl]\ndata:\n  train_files: [a.txt]\n  val_split: 0.05\n",
      "actor_rollout_ref:\n  model:\n    config: {model_type: llama, hidden_size: 128}\n"
      "  actor:\n    optim: {lr: 1e-3, betas: [0.9, 0.95]}\n    checkpoint:\n"
      "      save_contents: [model, optimizer, extra]\n      staging: {host_memory_cap: null}\n",
      "trainer: {seed: \"1\", resume_mode: 'auto'}\n", "# nothing\n", ""};
}

void FuzzJson(std::string_view bytes) {
  JsonLimits limits;
  limits.max_bytes = 1 << 20;
  const Result<Json> json = ParseJson(bytes, "fuzz", limits);
  if (!json.ok()) {
    RequireNames(json.status());
    return;
  }
  // What is accepted can be written, and says the same when it is read again.
  const std::string text = json->dump();
  const Result<Json> again = ParseJson(text, "again", limits);
  KEEL_REQUIRE(again.ok());
  KEEL_REQUIRE(again->dump() == text);
}

std::vector<std::string> JsonSeeds() {
  return {R"({"model_type": "llama", "hidden_size": 128, "tie": true, "eps": 1e-5, "x": null})",
          R"([1, -2, 3.5, "a\n\u00e9\ud83d\ude00", [], {}, [[["deep"]]]])", "\"text\"", " 12 "};
}

}  // namespace keel::fuzz
