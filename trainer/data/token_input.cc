#include "trainer/data/token_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/text.h"
#include "trainer/data/tokenize.h"
#include "trainer/data/tokens/megatron_file.h"
#include "trainer/data/tokens/raw_ids_file.h"
#include "trainer/data/tokens/shard_folder.h"

namespace keel::trainer {

namespace {

Result<std::shared_ptr<const TokenStore>> OpenShards(const std::string& path,
                                                     const TokenInputOptions& options,
                                                     const TextRules& rules,
                                                     std::vector<std::string>* warnings) {
  KEEL_ASSIGN_OR_RETURN(const ShardFolder folder, ShardFolder::Open(path));
  const ShardFolderIndex& index = folder.index;
  const std::string where = "token shards " + Printable(path);
  if (index.id_bytes == kRecordIdBytes) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: holds rows of another task, prompts or pairs, and no tokens: "
                              "name the files that they are of",
                              where));
  }
  if (index.largest_id >= options.vocab_size) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: token {} is outside the model's vocabulary of {}; tokenize with "
                              "the model's tokenizer",
                              where, index.largest_id, options.vocab_size));
  }
  // Ids that came with their rows, or for a run without a tokenizer, are whatever they are.
  const bool known = index.tokenizer_digest != Digest128{} && rules.tokenizer != nullptr;
  if (known && index.tokenizer_digest != NameTokenizer(rules).digest) {
    return Status(StatusCode::kConfig,
                  fmt::format("{}: were made by another tokenizer ({}) than the run's; tokenize "
                              "again with keel data tokenize --tokenizer, or name the model that "
                              "they were made for",
                              where, Printable(index.tokenizer)));
  }
  warnings->insert(warnings->end(), index.warnings.begin(), index.warnings.end());
  const auto messages = index.plan.find("messages");
  const std::string mine = NameMessages(rules);
  if (known && !options.learns_all && messages != index.plan.end() && *messages != mine &&
      *messages != kRefusesMessages && mine != kRefusesMessages) {
    warnings->push_back(fmt::format(
        "{}: conversations in them, if there are any, are written, and masked, otherwise than "
        "data.chat_template, data.apply_chat_template_kwargs and data.train_on of this run say, "
        "which count for rows alone: keel data tokenize takes these, too",
        where));
  }
  return folder.tokens();
}

class Opening {
 public:
  Opening(const TokenInputOptions& options, const TextRules& rules)
      : options_(options), rules_(rules) {}

  Status Add(const std::string& path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) {
      KEEL_ASSIGN_OR_RETURN(auto store, OpenShards(path, options_, rules_, &input_.warnings));
      return Take(std::move(store));
    }
    if (const auto prefix = MegatronFile::PrefixOf(path)) {
      KEEL_ASSIGN_OR_RETURN(auto store, MegatronFile::Open(*prefix));
      return Take(std::move(store));
    }
    if (path.ends_with(".bin")) {
      KEEL_ASSIGN_OR_RETURN(auto store, RawIdsFile::Open(path));
      return Take(std::move(store));
    }
    if (!options_.cache.folder.empty()) return AddCached(path);
    if (const auto bytes = std::filesystem::file_size(path, error); !error) text_bytes_ += bytes;
    return AddRows(path);
  }

  Result<TokenInput> Finish() {
    if (text_bytes_ > kMuchText) input_.warnings.push_back(MuchTextWarning(text_bytes_));
    EndMemory();
    if (stores_.empty()) return Status(StatusCode::kInvalidData, "no data file is named");
    if (stores_.size() == 1 && last_memory_ != nullptr) input_.memory = last_memory_;
    input_.store =
        stores_.size() == 1 ? stores_.front() : std::make_shared<JoinedTokens>(std::move(stores_));
    return std::move(input_);
  }

 private:
  Status Take(std::shared_ptr<const TokenStore> store) {
    EndMemory();
    if (store->documents() > 0) stores_.push_back(std::move(store));
    return Status::Ok();
  }

  void EndMemory() {
    if (memory_ == nullptr) return;
    if (options_.learns_all) memory_->LearnAll();
    last_memory_ = memory_;
    stores_.push_back(std::move(memory_));
    memory_ = nullptr;
  }

  Status AddCached(const std::string& path) {
    TokenizeOptions options;
    options.plan.rows = {options_.keys, rules_, options_.learns_all};
    options.plan.vocab_size = options_.vocab_size;
    options.plan.part_bytes = options_.cache.part_bytes;
    options.threads = options_.cache.threads;
    options.deadline_seconds = options_.cache.deadline_seconds;
    KEEL_ASSIGN_OR_RETURN(const TokenPlan plan, MakeTokenPlan({path}, options.plan));
    const std::string folder =
        (std::filesystem::path(options_.cache.folder) / plan.digest.ToHex()).string();
    const auto made = Tokenize(plan, folder, options);
    if (!made.ok()) return made.status();
    KEEL_ASSIGN_OR_RETURN(auto store, OpenShards(folder, options_, rules_, &input_.warnings));
    return Take(std::move(store));
  }

  Status AddRows(const std::string& path) {
    if (memory_ == nullptr) memory_ = std::make_shared<MemoryTokens>();
    const RowOptions rows{options_.keys, rules_, options_.learns_all};
    return ReadRows(path, rows, &input_.warnings,
                    [&](TokenRow row, const std::string& where) -> Status {
                      KEEL_RETURN_IF_ERROR(CheckTokens(row.tokens, options_.vocab_size, where));
                      if (options_.max_length > 0) {
                        KEEL_ASSIGN_OR_RETURN(const bool stays, Truncate(&row, where));
                        if (!stays) return Status::Ok();
                      }
                      memory_->Add(row.tokens, row.learn);
                      return Status::Ok();
                    });
  }

  // False when the row is left out.
  Result<bool> Truncate(TokenRow* row, const std::string& where) {
    const auto limit = static_cast<size_t>(options_.max_length) + 1;
    if (row->tokens.size() > limit) {
      switch (options_.truncation) {
        case Truncation::kError:
          return Status(
              StatusCode::kInvalidData,
              fmt::format("{}: {} tokens, of which {} are inputs, more than data.max_length "
                          "{}; raise it, or set data.truncation to right, left or skip",
                          where, row->tokens.size(), row->tokens.size() - 1, options_.max_length));
        case Truncation::kSkip:
          ++input_.skipped_rows;
          return false;
        case Truncation::kRight:
          row->tokens.resize(limit);
          row->learn.resize(limit);
          ++input_.cut_rows;
          break;
        case Truncation::kLeft: {
          const auto extra = static_cast<std::ptrdiff_t>(row->tokens.size() - limit);
          row->tokens.erase(row->tokens.begin(), row->tokens.begin() + extra);
          row->learn.erase(row->learn.begin(), row->learn.begin() + extra);
          ++input_.cut_rows;
          break;
        }
      }
    }
    // A row that teaches nothing only costs time.
    const bool teaches = row->tokens.size() >= 2 &&
                         std::find(row->learn.begin() + 1, row->learn.end(), 1) != row->learn.end();
    if (!teaches) {
      ++input_.skipped_rows;
      if (input_.unlearnt_rows++ == 0) input_.unlearnt_where = where;
    }
    return teaches;
  }

  const TokenInputOptions& options_;
  const TextRules& rules_;
  TokenInput input_;
  std::vector<std::shared_ptr<const TokenStore>> stores_;
  std::shared_ptr<MemoryTokens> memory_;  // of the rows that are being read
  std::shared_ptr<const MemoryTokens> last_memory_;
  uintmax_t text_bytes_ = 0;
};

}  // namespace

std::string MuchTextWarning(uintmax_t bytes) {
  return fmt::format(
      "{} MiB of rows are tokenized into the memory of every rank at every start: data.cache_dir "
      "keeps them as shards on the disk",
      bytes >> 20);
}

Result<TokenInput> OpenTokens(const std::vector<std::string>& files,
                              const TokenInputOptions& options, const TextRules& rules) {
  Opening opening(options, rules);
  for (const std::string& path : files) KEEL_RETURN_IF_ERROR(opening.Add(path));
  return opening.Finish();
}

}  // namespace keel::trainer
