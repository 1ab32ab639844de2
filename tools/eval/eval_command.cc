// keel eval: n samples of each row, scored as training scores them.
//
// Copy r of the model has the rows r, r + copies, ... Its ranks put the same requests into their
// engines; the first one has the finished ones scored beside the generation, and writes them down.
// What a folder holds already is not made again, and what is made is a function of (seed, row,
// sample): so it does not matter how often the work was cut off, nor by how many it is done.

#include "tools/eval/eval_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "checkpoint/format/names.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/terminal.h"
#include "common/text.h"
#include "model/config/context_length.h"
#include "rewards/reward_check.h"
#include "rewards/reward_functions.h"
#include "rewards/reward_pool.h"
#include "rewards/verifier_factory.h"
#include "rollout/engine.h"
#include "tools/eval/eval_folder.h"
#include "tools/eval/eval_statistics.h"
#include "tools/inference/asked_facts.h"
#include "tools/inference/inference_model.h"
#include "tools/inference/request_feed.h"
#include "tools/inference/step_weights.h"
#include "tools/row_output.h"
#include "trainer/config/config.h"
#include "trainer/data/prompt_data.h"
#include "trainer/inputs/rl_inputs.h"

namespace keel::tools {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using trainer::rl::Prompt;
using trainer::rl::PromptSet;
using Key = std::pair<int64_t, int>;           // row, sample
constexpr std::chrono::seconds kReport{10};    // between two words on how far it is
constexpr std::chrono::milliseconds kLook{2};  // between two looks whether a score has come
constexpr int64_t kMostWaiting = 8;  // samples that wait for scores, for each that is computed
// How long a step may be put off for verifiers: the other ranks of the copy wait in it, and give up
// after ten minutes.
constexpr std::chrono::minutes kStepPatience{2};

struct Rewarding {
  trainer::Config config;
  Json given;  // what of it counts, by key
};

// Of the YAML and the overrides what says how responses are scored and how rows are read.
Rewarding ReadRewarding(const EvalArguments& a) {
  Rewarding found;
  for (const std::string& override : a.overrides) {
    const size_t key = override.find_first_not_of("+~");
    const auto rest = std::string_view(override).substr(std::min(key, override.size()));
    if (rest.starts_with("reward.") || rest.starts_with("data.")) continue;
    throw Error(StatusCode::kUsage,
                fmt::format("{}: keel eval reads reward.* and data.* alone; the others are flags",
                            Printable(override, 80)));
  }
  options::Schema schema = trainer::MakeSchema(found.config);
  options::Source source{"no --config", "{}"};
  if (!a.config.empty()) {
    auto loaded = ValueOrThrow(trainer::LoadConfig(a.config, {}));
    source = {a.config, loaded.resolved};
  }
  ThrowIfError(schema.Load(source, a.overrides));
  ThrowIfError(rewards::CheckReward(found.config.reward));
  // Of files it is the content that counts.
  found.given = {{"files", ValueOrThrow(rewards::RewardFileDigests(found.config.reward))}};
  const auto paths = trainer::PerNodeKeys();
  for (const auto& [key, value] : ValueOrThrow(options::Flatten({"", schema.Dump(false)})))
    if (key.starts_with("reward.") && !paths.contains(key)) found.given[key] = value;
  return found;
}

PromptSet LoadRows(const EvalArguments& a, const trainer::Config& c, const InferenceModel& model) {
  trainer::rl::PromptOptions options = trainer::PromptOptionsOf(c, model.config().vocab_size);
  options.max_prompt_length = model::LongestGenerated(model.config()).tokens - 1;
  options.limit_is_models = true;
  const bool text = rewards::AnyFunction(
      c.reward, [](const auto& one) { return rewards::ReadsText(TypeOf(one)); });
  if (text && model.text().tokenizer() == nullptr) {
    throw Error(StatusCode::kConfig,
                fmt::format("--model {}: the reward reads the text of responses, and the model has "
                            "no tokenizer",
                            a.model));
  }
  // Rows lie on the disk, beside the output, and not in the memory of each rank.
  options.cache.spill = SpillFolder(a.output);
  auto rows = PromptSet::Load(a.data, options, model.source().text);
  if (!rows.ok()) throw Error(rows.status().WithContext("--data"));
  if (model.leads() && model.replica() == 0)
    for (const std::string& warning : rows->warnings())
      WriteStderr(fmt::format("keel: {}\n", warning));
  return *std::move(rows);
}

// What turns text into tokens and back, and conversations into text: a digest of each file that was
// read for it. config.json is written here as this program says it, and DigestOfModel has it.
Json TextFilesOf(const InferenceModel& model) {
  Json digests = Json::object();
  for (const checkpoint::Document& document : model.source().documents) {
    const std::string name = fs::path(document.path).filename().string();
    if (name == "config.json" || name == "generation_config.json") continue;
    digests[name] = Hash128(std::as_bytes(std::span(document.content))).ToHex();
  }
  return digests;
}

// Of a directory's weights and configuration, in the order of their names: whatever path leads to
// it. Of a step its manifest says all.
std::string DigestOfModel(const std::string& path) {
  std::vector<fs::path> files;
  if (IsCheckpoint(path)) {
    files.push_back(fs::path(path) / std::string(checkpoint::kManifestName));
  } else {
    for (const auto& entry : fs::directory_iterator(path)) {
      const std::string name = entry.path().filename().string();
      if (entry.is_regular_file() &&
          (name.ends_with(".safetensors") || name == "config.json" ||
           name == checkpoint::kAdapterConfigName || name == "generation_config.json"))
        files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  Hasher128 hasher;
  std::vector<char> block(size_t{4} << 20);
  for (const fs::path& file : files) {
    const std::string name = file.filename().string();
    hasher.Update(std::as_bytes(std::span(name)));
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.c_str(), "rb"),
                                                             &std::fclose);
    if (in == nullptr) throw Error(Status::FromErrno(errno, "open", file.native()));
    for (size_t got = 0; (got = std::fread(block.data(), 1, block.size(), in.get())) > 0;)
      hasher.Update(std::as_bytes(std::span(block).first(got)));
    if (std::ferror(in.get()) != 0) throw Error(Status::FromErrno(errno, "read", file.native()));
  }
  return hasher.Finish().ToHex();
}

std::string DigestOfModel(const NamedModel& model) {
  const std::string own = DigestOfModel(model.path);
  return model.has_adapters() ? own + " beside " + DigestOfModel(model.base) : own;
}

Json SettingsOf(const EvalArguments& a, const InferenceModel& model, const Rewarding& rewarding,
                const PromptSet& rows, int64_t count) {
  const rollout::SamplingParams& p = a.sampling;
  return {{"keel_eval", 1},
          {"model", DigestOfModel(model.named())},
          {"tokenizer", TextFilesOf(model)},
          {"dtype", model.dtype()},
          {"data", rows.digest().ToHex()},
          {"data_for_verifiers", rows.verifiers_digest().ToHex()},
          {"rows", count},
          {"n", a.n},
          {"temperature", p.temperature},
          {"top_k", p.top_k},
          {"top_p", p.top_p},
          {"min_p", p.min_p},
          {"repetition_penalty", p.repetition_penalty},
          {"max_new_tokens", p.max_tokens},
          {"stop", p.stop},
          {"seed", p.seed},
          {"right_at", a.right_at},
          {"reward", rewarding.given}};
}

// What the first rank of a copy does with finished samples.
class Scorer {
 public:
  Scorer(const EvalArguments& a, const rewards::RewardSection& reward, const PromptSet& rows,
         const model::Tokenizer* tokenizer, EvalFolder& folder)
      : a_(a), reward_(reward), rows_(rows), tokenizer_(tokenizer), folder_(folder) {
    pool_ = std::make_unique<rewards::RewardPool>(
        static_cast<int>(reward.num_workers), rewards::PoolBatch(reward),
        ValueOrThrow(rewards::MakeVerifierFactory(reward)));
    ThrowIfError(pool_->Start());
  }

  void Take(const rollout::Completion& done) {
    const auto row = static_cast<int64_t>(done.prompt_id);
    ThrowIfError(done.error.WithContext(fmt::format("--data: row {}", row)));
    const Prompt prompt = rows_.Get(row);
    Json sample = {{"row", row},
                   {"sample", done.sample},
                   {"data_source", prompt.data_source},
                   {"finish_reason", rollout::FinishReasonName(done.finish)},
                   {"tokens", done.tokens.size()}};
    rewards::RewardSample to_score;
    to_score.id = next_++;
    to_score.data_source = prompt.data_source;
    to_score.prompt = prompt.text;
    to_score.ground_truth = prompt.ground_truth;
    to_score.extra_info = prompt.extra_info;
    if (tokenizer_ != nullptr) {
      to_score.response = done.text.value_or("");
      sample["output"] = to_score.response;
    } else {
      to_score.prompt_ids = prompt.tokens;
      to_score.response_ids = done.tokens;
      sample["output_ids"] = done.tokens;
    }
    waiting_.emplace(to_score.id, std::move(sample));
    pool_->Submit(std::move(to_score), rewards::CollectLimit(reward_, std::ssize(waiting_)));
  }

  // Writes down what has been scored by now.
  void Write() {
    for (const rewards::RewardResult& result : pool_->Poll()) {
      const auto at = waiting_.find(result.id);
      Json sample = std::move(at->second);
      waiting_.erase(at);
      AddScore(result, &sample);
      ThrowIfError(folder_.Append(sample));
      ++written_;
    }
  }
  // While verifiers are slower than the model, no more than so many samples wait for them, unless
  // they need longer than until then.
  void WaitForRoom(int64_t most, Clock::time_point until) {
    while (std::ssize(waiting_) > most && Clock::now() < until) {
      Write();
      std::this_thread::sleep_for(kLook);
    }
  }
  void WaitForAll() { WaitForRoom(0, Clock::time_point::max()); }
  int64_t written() const { return written_; }

 private:
  void AddScore(const rewards::RewardResult& result, Json* sample) {
    if (!result.ok()) {
      if (reward_.on_error == rewards::OnRewardError::kStop) {
        throw Error(StatusCode::kUnavailable,
                    fmt::format("reward.on_error stop: row {}, sample {}: {}",
                                (*sample)["row"].get<int64_t>(), (*sample)["sample"].get<int>(),
                                result.error));
      }
      (*sample)["error"] = result.error;
      return;
    }
    const auto acc = result.extra.find("acc");
    (*sample)["score"] = result.score;
    (*sample)["right"] = acc != result.extra.end() ? acc->second > 0 : result.score >= a_.right_at;
    (*sample)["answer"] = result.answer;
    if (!result.extra.empty()) (*sample)["extra"] = result.extra;
  }

  const EvalArguments& a_;
  const rewards::RewardSection& reward_;
  const PromptSet& rows_;
  const model::Tokenizer* tokenizer_;
  EvalFolder& folder_;
  std::unique_ptr<rewards::RewardPool> pool_;
  std::map<int64_t, Json> waiting_;  // for their scores
  int64_t next_ = 0, written_ = 0;
};

// Which of this copy's samples are to be made, as its first rank knows and the others hear.
std::vector<Key> KeysOf(const EvalArguments& a, InferenceModel& model, int64_t count,
                        const EvalFolder* folder) {
  std::vector<Key> keys;
  if (folder != nullptr) {
    Prompts relayed(1);
    for (int64_t row = model.replica(); row < count; row += model.replicas()) {
      for (int sample = 0; sample < a.n; ++sample) {
        if (folder->done().HasScore(row, sample)) continue;
        keys.emplace_back(row, sample);
        relayed[0].push_back(static_cast<int32_t>(row));
        relayed[0].push_back(sample);
      }
    }
    model.relay().Send(relayed);
    return keys;
  }
  const Prompts relayed = model.relay().Receive().value();
  for (size_t i = 0; i + 1 < relayed[0].size(); i += 2)
    keys.emplace_back(relayed[0][i], relayed[0][i + 1]);
  return keys;
}

ScoredSample SampleOf(int64_t row, int sample, const Json& line,
                      const rewards::RewardSection& reward) {
  ScoredSample s;
  s.row = row;
  s.sample = sample;
  s.data_source = line.value("data_source", "");
  s.cut =
      line.value("finish_reason", "") == rollout::FinishReasonName(rollout::FinishReason::kLength);
  s.failed = line.contains("error");
  s.counts = !s.failed || !rewards::Excludes(reward.on_error);
  if (s.failed) return s;
  s.score = line.value("score", 0.0);
  s.right = line.value("right", false);
  s.answer = line.value("answer", "");
  return s;
}

void PrintSummary(const Json& summary) {
  const auto line = [](const std::string& name, const Json& of) {
    fmt::print("{}: {} rows, {} samples", name, of["rows"].get<int64_t>(),
               of["samples"].get<int64_t>());
    if (of["errors"] > 0) fmt::print(", {} without a score", of["errors"].get<int64_t>());
    fmt::print("\n");
    for (const auto& [key, value] : of.items()) {
      if (!value.is_object()) continue;
      fmt::print("  {:<12} {:.4f}", key, value["mean"].get<double>());
      if (!value["low"].is_null()) {
        fmt::print("  [{:.4f}, {:.4f}]", value["low"].get<double>(), value["high"].get<double>());
      }
      fmt::print("\n");
    }
  };
  for (const auto& [source, of] : summary["by_data_source"].items())
    line(source.empty() ? "(no data source)" : Printable(source, 80), of);
  if (summary["by_data_source"].size() > 1) line("all", summary["all"]);
}

void Conclude(const EvalArguments& a, const rewards::RewardSection& reward, const Json& settings,
              int64_t count, EvalFolder& folder) {
  ThrowIfError(folder.Gather(a.n, count));
  EvalSummary sum(a.n, a.ks);
  std::string first_error;
  ThrowIfError(folder.done().ForEachSample([&](int64_t row, int sample, const Json& line) {
    ScoredSample scored = SampleOf(row, sample, line, reward);
    if (scored.failed && sum.errors() == 0) first_error = line.value("error", "");
    sum.Add(std::move(scored));
    return Status::Ok();
  }));
  if (sum.errors() == sum.samples() && !rewards::GoesOnWithoutAnyScore(reward.on_error)) {
    throw Error(
        StatusCode::kUnavailable,
        fmt::format("no response has a score: {}; once the reward answers, the same command asks "
                    "it again about those in {}; another reward wants another folder",
                    Printable(first_error, 200), a.output));
  }
  Json summary = sum.Finish();
  summary["model"] = a.model;
  summary["n"] = a.n;
  summary["k"] = a.ks;
  summary["interval"] = kIntervalMethod;
  summary["settings"] = settings;
  ThrowIfError(folder.Finish(summary));
  PrintSummary(summary);
  fmt::print("-> {}/summary.json\n", a.output);
  std::fflush(stdout);
}

}  // namespace

void Evaluate(const EvalArguments& a) {
  // 1. What is asked: model, rows, rewards.
  const Rewarding rewarding = ReadRewarding(a);
  const rewards::RewardSection& reward = rewarding.config.reward;
  trainer::SharedFacts asked = FactsOf(a.sampling);
  asked.merge(EngineFacts(a.max_num_seqs, a.cache_megabytes));
  asked["--n"] = fmt::format("{}", a.n);
  InferenceModel model({.path = a.model,
                        .base = a.base,
                        .dtype = a.dtype,
                        .device = a.device,
                        .env = a.env,
                        .tp = a.tp,
                        .todays_date = false,
                        .asked = std::move(asked)});
  const PromptSet rows = LoadRows(a, rewarding.config, model);
  const int64_t count = std::min(rows.size(), a.most_rows.value_or(rows.size()));
  model.Agree("rows", {{"content of --data",
                        fmt::format("{} rows with digest {}", rows.size(), rows.digest().ToHex())},
                       {"--rows", fmt::format("{}", count)}});
  rollout::EngineOptions options;
  options.scheduler.max_num_seqs = a.max_num_seqs;
  options.kv_cache_bytes = a.cache_megabytes << 20;
  options.calculate_log_probs = false;
  options.batch_invariant = true;
  rollout::Engine engine = model.MakeEngine(options);

  // 2. What is left to do. The first copy makes the folder.
  Logger log{LogOptions{}};
  const bool first = model.leads() && model.replica() == 0;
  const Json settings = model.leads() ? SettingsOf(a, model, rewarding, rows, count) : Json();
  std::optional<EvalFolder> folder;
  if (first) folder = ValueOrThrow(EvalFolder::Open(a.output, settings, 0));
  model.WaitForAll();
  if (model.leads() && !first)
    folder = ValueOrThrow(EvalFolder::Open(a.output, settings, model.replica()));
  const std::vector<Key> keys = KeysOf(a, model, count, folder ? &*folder : nullptr);
  std::optional<Scorer> scorer;
  if (folder) {
    if (first && folder->done().size() > 0) {
      const int64_t failed = folder->done().without_score();
      log.Info("{} of {} samples are done already{}", folder->done().size() - failed, count * a.n,
               failed == 0
                   ? ""
                   : fmt::format("; the reward failed on {} others, and is asked again", failed));
    }
    if (!keys.empty()) scorer.emplace(a, reward, rows, model.text().tokenizer(), *folder);
  }

  // 3. Samples, and their scores beside them. Each of the copy's ranks has the same requests.
  auto said = Clock::now();
  RequestFeed feed([&, next = keys.begin()]() mutable -> std::optional<rollout::Request> {
    if (next == keys.end()) return std::nullopt;
    const auto& [row, sample] = *next++;
    const Prompt prompt = rows.Get(row);
    rollout::Request request{static_cast<uint64_t>(row), sample, prompt.tokens, a.sampling};
    if (prompt.max_tokens > 0)
      request.sampling.max_tokens = std::min(a.sampling.max_tokens, prompt.max_tokens);
    return request;
  });
  const auto take = [&](const rollout::Completion& completion) {
    if (scorer) scorer->Take(completion);
  };
  feed.Run(engine, take, [&] {
    if (!scorer) return;
    scorer->Write();
    scorer->WaitForRoom(kMostWaiting * a.max_num_seqs, Clock::now() + kStepPatience);
    if (!first || Clock::now() - said < kReport) return;
    said = Clock::now();
    log.Info("{} samples written by the first of {} copies", scorer->written(), model.replicas());
  });
  if (scorer) scorer->WaitForAll();

  // 4. What they say.
  model.WaitForAll();
  if (first) Conclude(a, reward, settings, count, *folder);
  model.Leave();
}

}  // namespace keel::tools
