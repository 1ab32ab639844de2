#include "trainer/rl/preference_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "trainer/data/split.h"

namespace keel::trainer::rl {

namespace {

// Stream of the draws that decide which pairs are set apart.
constexpr uint64_t kPairSplitStream = 0x70616972;

// An answer's tokens behind a prompt, the end mark included.
Result<std::vector<int32_t>> ReadAnswer(const Json& row, const std::string& key,
                                        const model::Tokenizer& tokenizer,
                                        const std::string& where) {
  if (!row.contains(key)) {
    return Malformed(where,
                     fmt::format("expected the keys prompt, chosen and rejected, found no {}; "
                                 "data.*_key name others",
                                 key));
  }
  std::string text;
  if (row[key].is_array()) {
    if (row[key].empty()) return Malformed(where, key + ": expected messages, found none");
    const Json& last = row[key].back();
    KEEL_ASSIGN_OR_RETURN(const std::string role, GetString(last, "role", where + ": " + key));
    if (role != "assistant")
      return Malformed(
          where, fmt::format("{}: the last message is the {}'s, not the assistant's", key, role));
    KEEL_ASSIGN_OR_RETURN(text, GetString(last, "content", where + ": " + key));
  } else {
    KEEL_ASSIGN_OR_RETURN(text, GetString(row, key, where));
  }
  const bool chat = row[key].is_array();
  std::vector<int32_t> tokens = tokenizer.Encode(chat ? text + "<|im_end|>" : text);
  if (!chat && tokenizer.eos()) tokens.push_back(*tokenizer.eos());
  if (tokens.empty()) return Malformed(where, key + ": the answer is empty");
  return tokens;
}

TokenRow Join(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  TokenRow row;
  row.tokens = prompt;
  row.tokens.insert(row.tokens.end(), answer.begin(), answer.end());
  row.learn.assign(prompt.size(), 0);
  row.learn.resize(row.tokens.size(), 1);
  return row;
}

Sample SampleOf(const TokenRow& row, int64_t id) { return {row.tokens, row.learn, id}; }

}  // namespace

Result<PreferenceSet> PreferenceSet::Load(const std::vector<std::string>& files,
                                          const PreferenceOptions& options,
                                          const model::Tokenizer& tokenizer) {
  PreferenceSet set;
  int64_t rows = 0;
  const auto take = [&](const Json& row, const std::string& where) -> Status {
    if (!row.is_object() || !row.contains(options.prompt_key)) {
      return Malformed(where,
                       fmt::format("expected an object with {}, {} and {}", options.prompt_key,
                                   options.chosen_key, options.rejected_key));
    }
    const int64_t id = rows++;
    KEEL_ASSIGN_OR_RETURN(std::vector<int32_t> prompt,
                          PromptTokens(row, options.prompt_key, tokenizer, where));
    KEEL_ASSIGN_OR_RETURN(auto chosen, ReadAnswer(row, options.chosen_key, tokenizer, where));
    KEEL_ASSIGN_OR_RETURN(auto rejected, ReadAnswer(row, options.rejected_key, tokenizer, where));

    const auto prompt_limit = static_cast<size_t>(options.max_prompt_length);
    const auto answer_limit = static_cast<size_t>(options.max_response_length);
    const size_t answer = std::max(chosen.size(), rejected.size());
    if (prompt.size() > prompt_limit || answer > answer_limit) {
      if (options.truncation == Truncation::kSkip) {
        ++set.skipped_rows_;
        return Status::Ok();
      }
      if (options.truncation == Truncation::kError) {
        return Malformed(where,
                         fmt::format("a prompt of {} and an answer of {} tokens, more than "
                                     "data.max_prompt_length {} or data.max_response_length {}; "
                                     "raise them, or set data.truncation to left, right or skip",
                                     prompt.size(), answer, prompt_limit, answer_limit));
      }
      if (prompt.size() > prompt_limit) {
        if (options.truncation == Truncation::kLeft)
          prompt.erase(prompt.begin(), prompt.end() - options.max_prompt_length);
        prompt.resize(prompt_limit);
      }
      chosen.resize(std::min(chosen.size(), answer_limit));
      rejected.resize(std::min(rejected.size(), answer_limit));
    }
    for (const auto* tokens : {&prompt, &chosen, &rejected})
      KEEL_RETURN_IF_ERROR(CheckTokens(*tokens, options.vocab_size, where));
    set.pairs_.push_back({id, Join(prompt, chosen), Join(prompt, rejected)});
    return Status::Ok();
  };
  for (const std::string& path : files) KEEL_RETURN_IF_ERROR(ReadJsonLines(path, take));
  if (set.pairs_.empty()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("no preference pair in {} ({} rows left out)", fmt::join(files, ", "),
                              set.skipped_rows_));
  }
  set.Seal();
  return set;
}

PreferenceSet PreferenceSet::SplitOff(double share, uint64_t seed) {
  PreferenceSet apart;
  apart.pairs_ = keel::trainer::SplitOff(&pairs_, share, seed, kPairSplitStream);
  Seal();
  apart.Seal();
  return apart;
}

void PreferenceSet::Seal() {
  Hasher128 hasher;
  for (const PreferencePair& pair : pairs_) {
    for (const TokenRow* row : {&pair.chosen, &pair.rejected}) {
      const auto length = static_cast<int64_t>(row->tokens.size());
      hasher.Update(std::as_bytes(std::span(&length, 1)));
      hasher.Update(std::as_bytes(std::span(row->tokens)));
      hasher.Update(std::as_bytes(std::span(row->learn)));
    }
  }
  digest_ = hasher.Finish();
}

PreferenceBatch MakePreferenceBatch(const PreferenceSet& data,
                                    const std::function<int64_t(int64_t)>& at, int64_t cursor,
                                    int64_t count, const BatchOptions& options) {
  PreferenceBatch step;
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back(at(cursor + i));
    const PreferencePair& pair = data.Get(chosen.back());
    ++step.pairs;
    step.chosen_tokens += std::count(pair.chosen.learn.begin() + 1, pair.chosen.learn.end(), 1);
    step.tokens +=
        static_cast<int64_t>(pair.chosen.tokens.size() + pair.rejected.tokens.size()) - 2;
  }
  const int64_t per_rank = options.batch_size / options.dp;
  for (int64_t begin = 0; begin < per_rank; begin += options.micro_batch_size) {
    MicroBatch batch;
    batch.boundaries.push_back(0);
    for (int64_t i = begin; i < std::min(begin + options.micro_batch_size, per_rank); ++i) {
      const int64_t position = options.dp_rank * per_rank + i;
      if (position >= count) continue;
      const PreferencePair& pair = data.Get(chosen[static_cast<size_t>(position)]);
      AppendSample(batch, SampleOf(pair.chosen, pair.id));
      AppendSample(batch, SampleOf(pair.rejected, pair.id));
    }
    PadTokens(batch, options.pad_to_multiple);
    step.microbatches.push_back(std::move(batch));
  }
  return step;
}

}  // namespace keel::trainer::rl
