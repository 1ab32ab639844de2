#include "trainer/data/token_plan.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "common/files/posix_file.h"
#include "common/text.h"
#include "trainer/data/files/byte_source.h"
#include "trainer/data/files/data_file.h"
#include "trainer/data/files/table_rows.h"
#include "trainer/data/rows/chat_rules.h"
#include "trainer/data/rows/row_text.h"

namespace keel::trainer {

namespace {

Digest128 DigestOfText(std::string_view text) { return Hash128(std::as_bytes(std::span(text))); }

int64_t ChangedNs(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

// A file that is open to be looked at here and there.
class Probe {
 public:
  static Result<Probe> Open(const std::string& path) {
    // Refuses what is no file of rows, with its reason, before anything is written.
    if (IsTable(path)) {
      KEEL_RETURN_IF_ERROR(OpenTable(path).status());
    } else {
      KEEL_RETURN_IF_ERROR(DataFile::Open(path).status());
    }
    Probe probe(Descriptor(Retry([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); })),
                path);
    if (!probe.fd_.valid()) return Status::FromErrno(errno, "open", path);
    if (::fstat(probe.fd_.get(), &probe.info_) != 0) return Status::FromErrno(errno, "stat", path);
    return probe;
  }

  int64_t size() const { return info_.st_size; }
  int64_t changed_ns() const { return ChangedNs(info_); }

  Result<std::span<const char>> Read(int64_t offset, size_t bytes) {
    buffer_.resize(bytes);
    const ssize_t got = Retry([&] { return ::pread(fd_.get(), buffer_.data(), bytes, offset); });
    if (got < 0) return Status::FromErrno(errno, "read", path_);
    return std::span<const char>(buffer_).first(static_cast<size_t>(got));
  }

  // Of the beginning, the end and pages between.
  Result<Digest128> Sample() {
    constexpr size_t kPage = 16384;
    constexpr int64_t kPages = 64;
    Hasher128 hasher;
    for (int64_t i = 0; i < kPages; ++i) {
      const int64_t last = std::max<int64_t>(0, size() - static_cast<int64_t>(kPage));
      KEEL_ASSIGN_OR_RETURN(const auto page, Read(last / (kPages - 1) * i, kPage));
      hasher.Update(std::as_bytes(page));
    }
    return hasher.Finish();
  }

  // The first byte behind a line that ends at or after `offset`.
  Result<int64_t> NextLine(int64_t offset) {
    constexpr size_t kStep = size_t{64} << 10;
    while (offset < size()) {
      KEEL_ASSIGN_OR_RETURN(const auto piece, Read(offset, kStep));
      if (piece.empty()) break;
      const auto found = std::find(piece.begin(), piece.end(), '\n');
      if (found != piece.end()) return offset + (found - piece.begin()) + 1;
      offset += static_cast<int64_t>(piece.size());
    }
    return size();
  }

 private:
  Probe(Descriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  Descriptor fd_;
  std::string path_;
  struct stat info_ {};
  std::vector<char> buffer_;
};

Result<std::vector<TokenPart>> PartsOf(size_t file, const std::string& path, Probe& probe,
                                       int64_t part_bytes) {
  KEEL_ASSIGN_OR_RETURN(const bool packed, IsPacked(path));
  std::vector<TokenPart> parts;
  if (packed || IsTable(path) || !HoldsJsonLines(path) || probe.size() <= part_bytes) {
    parts.push_back({file, std::nullopt, probe.size()});
    return parts;
  }
  for (int64_t begin = 0; begin < probe.size();) {
    // A line may be longer than a part.
    KEEL_ASSIGN_OR_RETURN(const int64_t end, probe.NextLine(begin + part_bytes - 1));
    parts.push_back({file, LineRange{begin, end, 1}, end - begin});
    begin = end;
  }
  return parts;
}

}  // namespace

TokenizerName NameTokenizer(const TextRules& rules) {
  if (rules.tokenizer == nullptr) return {"ids", {}};
  if (rules.tokenizer_name != "bytes") {
    Hasher128 hasher;
    const std::array<int64_t, 3> how = {rules.tokenizer->eos().value_or(-1),
                                        rules.tokenizer->bos().value_or(-1), rules.frames_text};
    hasher.Update(std::as_bytes(std::span(how)));
    const std::string files = rules.tokenizer->digest().ToHex();
    hasher.Update(std::as_bytes(std::span(files)));
    return {rules.tokenizer_name, hasher.Finish()};
  }
  // What it makes of every id, and of a text with something of everything in it.
  const model::Tokenizer& tokenizer = *rules.tokenizer;
  Hasher128 hasher;
  const std::array<int64_t, 3> numbers = {tokenizer.vocab_size(), tokenizer.bos().value_or(-1),
                                          tokenizer.eos().value_or(-1)};
  hasher.Update(std::as_bytes(std::span(numbers)));
  for (int32_t id = 0; id < numbers[0]; ++id) {
    const std::string text = tokenizer.Decode(std::span(&id, 1));
    const uint64_t bytes = text.size();
    hasher.Update(std::as_bytes(std::span(&bytes, 1)));
    hasher.Update(std::as_bytes(std::span(text)));
  }
  const std::vector<int32_t> ids =
      tokenizer.Encode("The  quick brown fox's 12345\tjump\xc3\xa9\xe2\x80\xa6\n\n<|im_end|>");
  hasher.Update(std::as_bytes(std::span(ids)));
  return {"bytes", hasher.Finish()};
}

std::string NameMessages(const TextRules& rules) {
  if (rules.tokenizer == nullptr || !rules.no_chat.empty()) return kRefusesMessages;
  return FingerprintOf(rules.chat != nullptr ? *rules.chat : *ChatMlRules());
}

Status CheckUnchanged(const TokenPlan& plan, size_t file) {
  const std::string& path = plan.files[file];
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return Status::FromErrno(errno, "stat", path);
  const Json& planned = plan.document["files"][file];
  if (planned["bytes"] == int64_t{info.st_size} && planned["changed_ns"] == ChangedNs(info))
    return Status::Ok();
  return Status(
      StatusCode::kInvalidData,
      fmt::format("{}: was changed while it was read; start again when it is complete, and "
                  "nothing writes to it",
                  Printable(path)));
}

Result<TokenPlan> MakeTokenPlan(const std::vector<std::string>& files, const PlanOptions& options) {
  TokenPlan plan;
  plan.files = files;
  Json list = Json::array();
  for (size_t i = 0; i < files.size(); ++i) {
    KEEL_ASSIGN_OR_RETURN(Probe probe, Probe::Open(files[i]));
    KEEL_ASSIGN_OR_RETURN(const Digest128 sample, probe.Sample());
    KEEL_ASSIGN_OR_RETURN(std::vector<TokenPart> parts,
                          PartsOf(i, files[i], probe, options.part_bytes));
    list.push_back({{"name", std::filesystem::path(files[i]).filename().string()},
                    {"bytes", probe.size()},
                    {"changed_ns", probe.changed_ns()},
                    {"sample", sample.ToHex()},
                    {"parts", parts.size()}});
    plan.parts.insert(plan.parts.end(), parts.begin(), parts.end());
  }
  const RowKeys& keys = options.rows.keys;
  const TextRules& rules = options.rows.rules;
  plan.document = {{"files", std::move(list)},
                   {"part_bytes", options.part_bytes},
                   {"tokenizer", NameTokenizer(rules).digest.ToHex()},
                   {"vocab_size", options.vocab_size},
                   {"messages", NameMessages(rules)}};
  // Conversations have no masks then.
  if (options.rows.learns_all) plan.document["learns"] = "all";
  // What was made with the end of a text behind its prompts is made again.
  if (EndsTexts(rules)) plan.document["prompts"] = "without an end";
  // Or with answers of text by themselves.
  plan.document["answers"] = "behind their prompts";
  if (options.records != nullptr) {
    plan.document["records"] = options.records->settings;
  } else {
    plan.document["keys"] = {{"text", keys.text},
                             {"prompt", keys.prompt},
                             {"response", keys.response},
                             {"messages", keys.messages}};
  }
  plan.digest = DigestOfText(plan.document.dump());
  return plan;
}

}  // namespace keel::trainer
