#include "model/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>
#include <utility>

#include "common/text.h"
#include "model/tokenizer/utf8.h"

namespace keel::model {

namespace {

constexpr uint32_t kNoRank = ~uint32_t{0};
// Up to so many symbols each merge looks at all pairs again; above, a heap keeps them.
constexpr size_t kFewSymbols = 40;

constexpr std::string_view kMark = "\u2581";

uint64_t PairOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t Mix(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15u;
  return pair ^ pair >> 32;
}

bool IsByteToken(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.back() == '>';
}

// Where the last character of a text that is not empty begins.
size_t LastCharacter(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0u) == 0x80u) --at;
  return at;
}

Symbol Joined(const Symbol& left, const Symbol& right, int32_t id) {
  return {id, left.length + right.skipped + right.length, left.skipped};
}

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  const auto id_or_none = [&](std::string_view token) {
    return vocabulary_.IdOf(token).value_or(-1);
  };
  for (uint32_t c = 0; c < 0x800; ++c) {
    std::string character;
    AppendUtf8(c, &character);
    two_byte_ids_.push_back(id_or_none(character));
  }
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_.push_back(id_or_none(fmt::format("<0x{:02X}>", byte)));
  }
  Grow(16);
  cuts_at_marks_ = !options.ignore_merges && vocabulary_.IdOf(kMark).has_value();
  JoinUnknown();
}

// Characters that become neither their own token nor one of their byte may be fused with what
// stands beside them, or be a part of a whole piece.
void Bpe::JoinUnknown() {
  const bool all_bytes = options_.byte_fallback &&
                         std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  joins_more_ = options_.ignore_merges || !all_bytes;
  for (size_t c = 0; c < 128; ++c) {
    const bool known = two_byte_ids_[c] >= 0 || (options_.byte_fallback && byte_ids_[c] >= 0);
    for (size_t other = 0; other < 128 && (!known || options_.ignore_merges); ++other)
      joined_[c * 128 + other] = joined_[other * 128 + c] = true;
  }
}

Status Bpe::AddMerge(std::string_view left, std::string_view right) {
  const std::string whole = std::string(left) + std::string(right);
  const auto left_id = vocabulary_.IdOf(left);
  const auto right_id = vocabulary_.IdOf(right);
  const auto whole_id = vocabulary_.IdOf(whole);
  if (!left_id || !right_id || !whole_id) {
    const std::string_view missing = !left_id ? left : !right_id ? right : std::string_view(whole);
    return {StatusCode::kInvalidData,
            fmt::format("merge {} joins \"{}\" and \"{}\", but \"{}\" is not in the vocabulary",
                        merge_count_, Printable(left), Printable(right), Printable(missing))};
  }
  if (right.starts_with(kMark) && !left.ends_with(kMark)) cuts_at_marks_ = false;
  // A byte's token stands for the byte, and is spelled otherwise.
  if (left.empty() || right.empty() || IsByteToken(left) || IsByteToken(right) ||
      FindNotUtf8(whole) != std::string::npos || FindNotUtf8(left) != std::string::npos) {
    joined_.set();
    joins_more_ = true;
  } else {
    const uint32_t last = CodePointAt(left, LastCharacter(left)).value;
    const uint32_t first = CodePointAt(right, 0).value;
    if (last < 128 && first < 128) {
      joined_[last * 128 + first] = true;
    } else {
      joined_beyond_[PlaceBeyond(last, first)] = true;
    }
  }
  if (static_cast<size_t>(merge_count_) * 2 >= merges_.size()) Grow(merges_.size() * 2);
  // A pair that comes twice has the later rank, as `tokenizers` reads it.
  *SlotOf(PairOf(*left_id, *right_id)) = {PairOf(*left_id, *right_id), merge_count_++, *whole_id};
  return Status::Ok();
}

void Bpe::ReserveMerges(size_t count) { Grow(std::bit_ceil(count * 2 + 2)); }

void Bpe::Grow(size_t slots) {
  if (slots <= merges_.size()) return;
  std::vector<Merge> before = std::exchange(merges_, std::vector<Merge>(slots));
  for (const Merge& merge : before) {
    if (merge.pair != kFree) *SlotOf(merge.pair) = merge;
  }
}

Bpe::Merge* Bpe::SlotOf(uint64_t pair) {
  const size_t mask = merges_.size() - 1;
  size_t slot = Mix(pair) & mask;
  while (merges_[slot].pair != kFree && merges_[slot].pair != pair) slot = (slot + 1) & mask;
  return &merges_[slot];
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const uint64_t pair = PairOf(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t slot = Mix(pair) & mask;; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kFree) return nullptr;
  }
}

int32_t Bpe::CharacterId(std::string_view character) const {
  if (character.size() <= 2) return two_byte_ids_[CodePointAt(character, 0).value];
  return vocabulary_.IdOf(character).value_or(-1);
}

bool Bpe::AddBytes(std::string_view character, uint32_t skipped,
                   std::vector<Symbol>* symbols) const {
  const size_t before = symbols->size();
  for (const char byte : character) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id < 0) {
      symbols->resize(before);
      return false;
    }
    symbols->push_back({id, 1, std::exchange(skipped, 0)});
  }
  return true;
}

// Unknown characters wait until the next known one, as they do in `tokenizers`: bytes that stand
// for a character come before an unknown token that waits.
void Bpe::FirstSymbols(std::string_view piece, std::vector<Symbol>* symbols) const {
  std::optional<Symbol> unknown;
  uint32_t skipped = 0;
  for (size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, Utf8Length(piece[at]));
    const auto length = static_cast<uint32_t>(character.size());
    at += length;
    const int32_t id = CharacterId(character);
    if (id >= 0) {
      if (unknown) symbols->push_back(*unknown);
      unknown.reset();
      symbols->push_back({id, length, std::exchange(skipped, 0)});
      continue;
    }
    if (options_.byte_fallback && AddBytes(character, skipped, symbols)) {
      skipped = 0;
      continue;
    }
    if (!options_.unk) {
      skipped += length;
      continue;
    }
    if (unknown && options_.fuse_unk) {
      unknown->length += length;
      continue;
    }
    if (unknown) symbols->push_back(*unknown);
    unknown = Symbol{*options_.unk, length};
  }
  if (unknown) symbols->push_back(*unknown);
}

void Bpe::Encode(std::string_view piece, std::vector<Symbol>* symbols) const {
  if (options_.ignore_merges) {
    if (const auto id = vocabulary_.IdOf(piece)) {
      symbols->push_back({*id, static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  const size_t first = symbols->size();
  FirstSymbols(piece, symbols);
  if (symbols->size() - first <= kFewSymbols) {
    MergeFew(first, symbols);
  } else {
    MergeMany(first, symbols);
  }
}

void Bpe::MergeFew(size_t first, std::vector<Symbol>* symbols) const {
  struct Pair {
    uint32_t rank = kNoRank;
    int32_t id = 0;
  };
  Pair pairs[kFewSymbols];  // pairs[i] joins s[i] and s[i + 1]
  Symbol* s = symbols->data() + first;
  size_t count = symbols->size() - first;
  const auto look = [&](size_t i) {
    const Merge* merge = i + 1 < count ? FindMerge(s[i].id, s[i + 1].id) : nullptr;
    pairs[i] = merge == nullptr ? Pair{} : Pair{merge->rank, merge->id};
  };
  for (size_t i = 0; i < count; ++i) look(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    s[best] = Joined(s[best], s[best + 1], pairs[best].id);
    std::move(s + best + 2, s + count, s + best + 1);
    std::move(pairs + best + 2, pairs + count, pairs + best + 1);
    --count;
    look(best);
    if (best > 0) look(best - 1);
  }
  symbols->resize(first + count);
}

// A linked list of symbols, and a heap of the pairs that have a rank. A pair in the heap is stale
// when one of its symbols was merged since: then the two at its place are others.
void Bpe::MergeMany(size_t first, std::vector<Symbol>* symbols) const {
  Symbol* s = symbols->data() + first;
  const size_t count = symbols->size() - first;
  std::vector<uint32_t> next(count);
  std::vector<uint32_t> last(count);
  const auto none = static_cast<uint32_t>(count);
  for (uint32_t i = 0; i < none; ++i) {
    next[i] = i + 1;
    last[i] = i == 0 ? none : i - 1;
  }
  struct Candidate {
    uint32_t rank, at;
    uint64_t pair;
    int32_t id;
    bool operator<(const Candidate& other) const {  // the heap's top is the greatest
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };
  std::priority_queue<Candidate> heap;
  const auto look = [&](uint32_t at) {
    if (at == none || next[at] == none) return;
    const int32_t left = s[at].id;
    const int32_t right = s[next[at]].id;
    if (const Merge* merge = FindMerge(left, right)) {
      heap.push({merge->rank, at, PairOf(left, right), merge->id});
    }
  };
  for (uint32_t i = 0; i < none; ++i) look(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const uint32_t at = top.at;
    if (s[at].length == 0 || next[at] == none) continue;
    const uint32_t right = next[at];
    if (PairOf(s[at].id, s[right].id) != top.pair) continue;
    s[at] = Joined(s[at], s[right], top.id);
    s[right].length = 0;
    next[at] = next[right];
    if (next[at] != none) last[next[at]] = at;
    look(at);
    look(last[at]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < none; i = next[i]) s[kept++] = s[i];
  symbols->resize(first + kept);
}

}  // namespace keel::model
