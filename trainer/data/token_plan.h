// TokenPlan: what is tokenized, or made records of, by what, and in which parts: all that a folder
// of shards follows from. Two processes with the same plan may work on one folder; another plan is
// another folder's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/hash.h"
#include "common/json.h"
#include "common/status.h"
#include "trainer/data/rows/record_rule.h"
#include "trainer/data/rows/row_reader.h"

namespace keel::trainer {

// Who makes the ids: its name for people, and the digest by which ids of one tokenizer are told
// from those of another; zeros where rows bring their ids.
struct TokenizerName {
  std::string name;
  Digest128 digest;
};
// Of the rules' tokenizer.
TokenizerName NameTokenizer(const TextRules& rules);
// By which messages that they write are told from those of other rules, as `messages` of a plan.
inline constexpr const char* kRefusesMessages = "refused";
std::string NameMessages(const TextRules& rules);

// One shard's share of the inputs.
struct TokenPart {
  size_t file = 0;                 // of the plan's
  std::optional<LineRange> range;  // none: all of it
  int64_t bytes = 0;               // of the input
};

struct TokenPlan {
  std::vector<std::string> files;
  std::vector<TokenPart> parts;
  Json document;     // names, sizes, times and samples of the files, tokenizer, keys, parts
  Digest128 digest;  // of the document
};

struct PlanOptions {
  RowOptions rows;
  // Where rows become records: how, not owned. Then of `rows` the TextRules alone count, and
  // vocab_size is for the rule to check.
  const RecordRule* records = nullptr;
  int64_t vocab_size = 0;                  // ids are below it
  int64_t part_bytes = int64_t{64} << 20;  // of JSON Lines that are not packed, a shard
};

// A file of JSON Lines is cut at the ends of lines; one that is packed, and text, which is one row,
// are a part each. Reads little of the files. A file counts as the same while its name, size, time
// of change and pages from all over it are.
Result<TokenPlan> MakeTokenPlan(const std::vector<std::string>& files, const PlanOptions& options);

// kInvalidData where a file of the plan, by number, is not any more what it was for it: of other
// size or changed since. What was read of it meanwhile is then of no plan.
Status CheckUnchanged(const TokenPlan& plan, size_t file);

}  // namespace keel::trainer
