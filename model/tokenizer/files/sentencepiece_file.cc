#include "model/tokenizer/files/sentencepiece_file.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/text.h"
#include "model/tokenizer/files/token_list.h"

namespace keel::model {

namespace {

constexpr size_t kMostPieces = size_t{1} << 22;
// All splits of a token are tried; SentencePiece itself makes none of more than some 200 bytes.
constexpr size_t kLongestPiece = 512;

// The fields of one message of a protocol buffer, one after another. What is cut off ends it, with
// damaged() set.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}

  bool Next() {
    if (rest_.empty() || damaged_) return false;
    const uint64_t key = Varint();
    number_ = static_cast<int64_t>(key >> 3);
    const auto kind = key & 7;
    if (kind == 0) {
      integer_ = static_cast<int64_t>(Varint());
    } else if (kind == 1) {
      Take(8);
    } else if (kind == 2) {
      const uint64_t size = Varint();
      if (size > rest_.size()) damaged_ = true;
      if (!damaged_) text_ = Take(static_cast<size_t>(size));
    } else if (kind == 5) {
      const std::string_view four = Take(4);
      if (!damaged_) std::memcpy(&number32_, four.data(), 4);
    } else {
      damaged_ = true;  // groups, which nobody writes any more
    }
    return !damaged_;
  }
  int64_t number() const { return number_; }
  int64_t integer() const { return integer_; }
  std::string_view text() const { return text_; }
  float number32() const { return number32_; }
  bool damaged() const { return damaged_; }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    damaged_ = true;
    return 0;
  }
  std::string_view Take(size_t size) {
    if (size > rest_.size()) {
      damaged_ = true;
      return {};
    }
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  std::string_view rest_, text_;
  int64_t number_ = 0, integer_ = 0;
  float number32_ = 0;
  bool damaged_ = false;
};

class Reader {
 public:
  Reader(std::string_view where, const Json& settings) : where_(where), settings_(settings) {}

  Result<TokenizerDocument> Read(std::string_view bytes) {
    Fields model(bytes);
    while (model.Next()) {
      if (model.number() == 1) KEEL_RETURN_IF_ERROR(AddPiece(model.text()));
      if (model.number() == 2) KEEL_RETURN_IF_ERROR(ReadTrainer(model.text()));
      if (model.number() == 3) KEEL_RETURN_IF_ERROR(ReadNormalizer(model.text()));
    }
    if (model.damaged() || list_.tokens.empty()) return Damaged();
    if (removes_spaces_)
      return Wrong(
          "removes extra white space, which is not supported: convert it to tokenizer.json");
    KEEL_RETURN_IF_ERROR(SetSpecials());
    std::unordered_map<std::string_view, int64_t> ids;
    for (size_t id = 0; id < list_.tokens.size(); ++id) {
      const auto [there, added] = ids.emplace(list_.tokens[id], static_cast<int64_t>(id));
      if (!added)
        return Wrong(fmt::format("pieces {} and {} are both \"{}\"", there->second, id,
                                 Printable(list_.tokens[id], 60)));
    }
    list_.merges = MergesByScore(list_, scores_, ids);
    TokenizerDocument out;
    out.json = SentencePieceTokenizer(list_, ids_, space_);
    const auto name = [&](const std::optional<int64_t>& id) -> std::optional<std::string> {
      if (!id) return std::nullopt;
      return list_.tokens[static_cast<size_t>(*id)];
    };
    out.names = {name(ids_.bos), name(ids_.eos), name(ids_.padding)};
    return out;
  }

 private:
  Status Wrong(std::string_view what) const {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where_, what));
  }
  Status Damaged() const { return Wrong("no SentencePiece model, or a damaged one"); }

  Status AddPiece(std::string_view bytes) {
    std::string_view piece;
    float score = 0;
    int64_t kind = 1;
    Fields fields(bytes);
    while (fields.Next()) {
      if (fields.number() == 1) piece = fields.text();
      if (fields.number() == 2) score = fields.number32();
      if (fields.number() == 3) kind = fields.integer();
    }
    const size_t id = list_.tokens.size();
    const bool whole = !fields.damaged() && !piece.empty() && piece.size() <= kLongestPiece &&
                       FindNotUtf8(piece) == std::string_view::npos && std::isfinite(score) &&
                       kind >= 1 && kind <= 6 && id < kMostPieces;
    if (!whole) {
      return Wrong(
          fmt::format("piece {}: damaged, of another kind than 1 to 6, or of more than {} "
                      "bytes",
                      id, kLongestPiece));
    }
    list_.tokens.emplace_back(piece);
    list_.kinds.push_back(static_cast<TokenKind>(kind));
    scores_.push_back(score);
    return Status::Ok();
  }

  Status ReadTrainer(std::string_view bytes) {
    Fields fields(bytes);
    int64_t kind = 1;
    while (fields.Next()) {
      const auto id = fields.integer();
      if (fields.number() == 3) kind = id;
      if (fields.number() == 24 && id != 0)
        return Wrong("treats white space as a suffix, which is not supported");
      if (fields.number() == 40) unknown_ = id;
      if (fields.number() == 41) bos_ = id;
      if (fields.number() == 42) eos_ = id;
      if (fields.number() == 43) pad_ = id;
    }
    if (fields.damaged()) return Damaged();
    constexpr const char* kKinds[] = {"?", "Unigram", "BPE", "Word", "Char"};
    if (kind == 2) return Status::Ok();
    return Wrong(fmt::format("a model of kind {}: expected BPE; give the model's tokenizer.json",
                             kind >= 1 && kind <= 4 ? kKinds[kind] : "unknown"));
  }

  Status ReadNormalizer(std::string_view bytes) {
    Fields fields(bytes);
    removes_spaces_ = true;
    while (fields.Next()) {
      if (fields.number() == 2 && !fields.text().empty())
        return Wrong(
            "has a table of replacements (precompiled_charsmap), which is not supported, nor is "
            "the tokenizer.json that it becomes: rows must bring their ids");
      if (fields.number() == 3) space_before_ = fields.integer() != 0;
      if (fields.number() == 4) removes_spaces_ = fields.integer() != 0;
      if (fields.number() == 5 && fields.integer() == 0)
        return Wrong("does not escape white space, which is not supported");
    }
    return fields.damaged() ? Damaged() : Status::Ok();
  }

  Status SetSpecials() {
    const auto size = std::ssize(list_.tokens);
    const auto set = [&](int64_t id, std::optional<int64_t>* to) {
      if (id >= 0 && id < size) *to = id;
    };
    set(unknown_, &ids_.unknown);
    set(bos_, &ids_.bos);
    set(eos_, &ids_.eos);
    set(pad_, &ids_.padding);
    const auto flag = [&](const char* key, bool fallback, bool* to) -> Status {
      *to = fallback;
      if (!settings_.contains(key) || settings_[key].is_null()) return Status::Ok();
      KEEL_ASSIGN_OR_RETURN(*to, GetBool(settings_, key, "tokenizer_config.json"));
      return Status::Ok();
    };
    KEEL_RETURN_IF_ERROR(flag("add_bos_token", ids_.bos.has_value(), &ids_.adds_bos));
    KEEL_RETURN_IF_ERROR(flag("add_eos_token", false, &ids_.adds_eos));
    bool before = false, each = false;
    KEEL_RETURN_IF_ERROR(flag("add_prefix_space", space_before_, &before));
    KEEL_RETURN_IF_ERROR(flag("legacy", true, &each));
    space_ = !before ? SpaceBefore::kNone : each ? SpaceBefore::kEachPart : SpaceBefore::kFirstPart;
    if ((ids_.adds_bos && !ids_.bos) || (ids_.adds_eos && !ids_.eos))
      return Wrong("tokenizer_config.json adds a token that the file does not name");
    return Status::Ok();
  }

  std::string_view where_;
  const Json& settings_;
  TokenList list_;
  std::vector<float> scores_;
  SpecialIds ids_;
  int64_t unknown_ = 0, bos_ = 1, eos_ = 2, pad_ = -1;
  bool space_before_ = true;
  SpaceBefore space_ = SpaceBefore::kEachPart;
  bool removes_spaces_ = false;  // without a normalizer nothing is
};

}  // namespace

Result<TokenizerDocument> ReadSentencePiece(std::string_view bytes, const Json& settings,
                                            std::string_view where) {
  return Reader(where, settings).Read(bytes);
}

}  // namespace keel::model
