#include "trainer/run/run_state.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "common/text.h"

namespace keel::trainer {

namespace {

constexpr int64_t kTrainerFormat = 2;
constexpr int64_t kDataFormat = 1;

}  // namespace

std::string TrainerStateJson(const RunState& state) {
  const Json json = {{"format_version", kTrainerFormat},
                     {"step", state.step},
                     {"optimizer_steps", state.optimizer_steps},
                     {"tokens_consumed", state.tokens_consumed},
                     {"skipped_steps", state.skipped_steps},
                     {"consecutive_skips", state.consecutive_skips},
                     {"ref_digest", fmt::format("{:016x}", state.ref_digest)}};
  return json.dump(1) + "\n";
}

std::string DataStateJson(const RunState& state, const DataIdentity& identity,
                          const ReadContents& contents) {
  Json json = {{"format_version", kDataFormat}, {"samples_consumed", state.samples_consumed},
               {"digest", identity.digest},     {"samples", identity.samples},
               {"seed", identity.seed},         {"shuffle", identity.shuffle}};
  if (!identity.tokenizer.empty()) json["tokenizer"] = identity.tokenizer;
  if (!contents.empty()) json["contents"] = contents;
  return json.dump(1) + "\n";
}

Result<ReadContents> ContentsOf(const std::string& data_state) {
  const char* where = "data_state.json";
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(data_state, where));
  ReadContents contents;
  if (!json.is_object() || !json.contains("contents")) return contents;
  const Json& saved = json["contents"];
  if (!saved.is_object())
    return Status(StatusCode::kInvalidData, fmt::format("{}: contents: expected a map", where));
  for (const auto& item : saved.items()) {
    KEEL_ASSIGN_OR_RETURN(contents[item.key()], GetString(saved, item.key(), where));
  }
  return contents;
}

namespace {

// What one number says of another.
Status CheckConsistent(const RunState& state, int64_t step, const char* where) {
  const auto refuse = [&](std::string what) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {}: it was not written by the run that saved this checkpoint",
                              where, what));
  };
  if (state.step != step)
    return refuse(fmt::format("step is {}, the checkpoint's manifest says {}", state.step, step));
  if (state.consecutive_skips > state.skipped_steps) {
    return refuse(fmt::format("consecutive_skips is {}, more than skipped_steps, {}",
                              state.consecutive_skips, state.skipped_steps));
  }
  return Status::Ok();
}

Result<int64_t> FormatOf(const Json& json, const char* name, int64_t newest) {
  KEEL_ASSIGN_OR_RETURN(const int64_t version, GetInt(json, "format_version", name));
  if (version >= 1 && version <= newest) return version;
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: format_version {}, this release reads 1{}; use a newer Keel", name,
                            version, newest == 1 ? "" : fmt::format(" to {}", newest)));
}

}  // namespace

Result<int64_t> OptimizerStepsOf(const std::string& trainer_state) {
  const char* where = "trainer_state.json";
  KEEL_ASSIGN_OR_RETURN(const Json trainer, ParseJson(trainer_state, where));
  KEEL_RETURN_IF_ERROR(FormatOf(trainer, where, kTrainerFormat).status());
  return GetCount(trainer, "optimizer_steps", where);
}

Result<RunState> ParseRunState(const std::string& trainer_state, const std::string& data_state,
                               const DataIdentity& identity, int64_t step) {
  const char* trainer_name = "trainer_state.json";
  const char* data_name = "data_state.json";
  KEEL_ASSIGN_OR_RETURN(const Json trainer, ParseJson(trainer_state, trainer_name));
  KEEL_ASSIGN_OR_RETURN(const Json data, ParseJson(data_state, data_name));
  KEEL_ASSIGN_OR_RETURN(const int64_t trainer_format,
                        FormatOf(trainer, trainer_name, kTrainerFormat));
  KEEL_RETURN_IF_ERROR(FormatOf(data, data_name, kDataFormat).status());
  RunState state;
  KEEL_ASSIGN_OR_RETURN(state.step, GetCount(trainer, "step", trainer_name));
  KEEL_ASSIGN_OR_RETURN(state.optimizer_steps, GetCount(trainer, "optimizer_steps", trainer_name));
  KEEL_ASSIGN_OR_RETURN(state.tokens_consumed, GetCount(trainer, "tokens_consumed", trainer_name));
  KEEL_ASSIGN_OR_RETURN(state.skipped_steps, GetCount(trainer, "skipped_steps", trainer_name));
  KEEL_ASSIGN_OR_RETURN(state.consecutive_skips,
                        GetCount(trainer, "consecutive_skips", trainer_name));
  KEEL_ASSIGN_OR_RETURN(state.ref_digest, GetHex64(trainer, "ref_digest", trainer_name));
  if (trainer_format < 2) state.ref_digest = 0;  // made by another rule: none to compare
  KEEL_ASSIGN_OR_RETURN(state.samples_consumed, GetCount(data, "samples_consumed", data_name));
  KEEL_RETURN_IF_ERROR(CheckConsistent(state, step, trainer_name));
  DataIdentity saved;
  KEEL_ASSIGN_OR_RETURN(saved.digest, GetString(data, "digest", data_name));
  KEEL_ASSIGN_OR_RETURN(saved.samples, GetCount(data, "samples", data_name));
  KEEL_ASSIGN_OR_RETURN(saved.seed, GetInt(data, "seed", data_name));
  KEEL_ASSIGN_OR_RETURN(saved.shuffle, GetBool(data, "shuffle", data_name));
  saved.tokenizer = identity.tokenizer;
  if (data.contains("tokenizer") && !identity.tokenizer.empty()) {
    KEEL_ASSIGN_OR_RETURN(const std::string tokenizer, GetString(data, "tokenizer", data_name));
    if (tokenizer != identity.tokenizer) {
      return Status(
          StatusCode::kConfig,
          fmt::format(
              "the checkpoint was trained by another tokenizer: digest {}, now {}: give the "
              "same tokenizer files, or leave extra out of load_contents",
              Printable(tokenizer, 80), identity.tokenizer));
    }
  }
  if (!(saved == identity)) {
    return Status(
        StatusCode::kConfig,
        fmt::format("the checkpoint was trained on other data or in another order: {} samples with "
                    "digest {}, seed {}, shuffle {}; "
                    "now {} samples with digest {}, seed {}, shuffle {}. Give the same data.*, "
                    "trainer.seed and data.shuffle, "
                    "or leave extra out of load_contents to start the data anew with these weights",
                    saved.samples, saved.digest, saved.seed, saved.shuffle, identity.samples,
                    identity.digest, identity.seed, identity.shuffle));
  }
  return state;
}

Result<int64_t> GetCount(const Json& json, const char* key, const char* where) {
  KEEL_ASSIGN_OR_RETURN(const int64_t count, GetInt(json, key, where));
  if (count >= 0 && count <= kMostCounted) return count;
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: {}: expected 0 to {}, found {}", where, key, kMostCounted, count));
}

Result<uint64_t> GetHex64(const Json& json, const char* key, const char* where) {
  KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(json, key, where));
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16) {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{}: {}: expected 16 hexadecimal digits, found \"{}\"", where, key, text));
  }
  return value;
}

}  // namespace keel::trainer
