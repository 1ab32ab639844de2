#include "model/tokenizer/pipeline/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <queue>
#include <utility>

#include "common/text.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

// Up to so many symbols each merge looks at all pairs again; above, a heap keeps them.
constexpr size_t kFewSymbols = 64;

constexpr std::string_view kMarkText = "\u2581";

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

// Of two merges that can be made the one with the lower key comes first: by rank, then by place.
uint64_t KeyOf(uint32_t rank, uint32_t at) { return uint64_t{rank} << 32 | at; }
uint32_t PlaceOf(uint64_t key) { return static_cast<uint32_t>(key); }

Symbol Joined(const Symbol& left, const Symbol& right, int32_t id) {
  return {id, left.length + right.skipped + right.length, left.skipped};
}

}  // namespace

Bpe::Bpe(Vocabulary vocabulary, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(options) {
  const auto id_or_none = [&](std::string_view token) {
    return vocabulary_.IdOf(token).value_or(-1);
  };
  character_ids_.resize(128, -1);
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view token = vocabulary_.TokenOf(id);
    if (token.empty() || Utf8Length(token[0]) != token.size() ||
        FindNotUtf8(token) != std::string_view::npos) {
      continue;
    }
    const size_t c = CodePointAt(token, 0).value;
    if (c >= character_ids_.size()) character_ids_.resize(c + 1, -1);
    character_ids_[c] = id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_.push_back(id_or_none(fmt::format("<0x{:02X}>", byte)));
  }
  Grow(16);
  JoinUnknown();
  // What is left out brings together what stands around it.
  const bool leaves_out = !options.unk && !all_bytes_;
  cuts_at_marks_ = !options.ignore_merges && !leaves_out && vocabulary_.IdOf(kMarkText).has_value();
}

// Characters that become neither their own token nor one of their byte may be fused with what
// stands beside them, or be a part of a whole piece.
void Bpe::JoinUnknown() {
  all_bytes_ = options_.byte_fallback &&
               std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  joins_more_ = options_.ignore_merges || !all_bytes_;
  for (size_t c = 0; c < 128; ++c) {
    // Where some bytes have no token, those that have one are put before an unknown one that is
    // still to come out.
    const bool known = character_ids_[c] >= 0 || all_bytes_;
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
  if (right.starts_with(kMarkText) && !left.ends_with(kMarkText)) cuts_at_marks_ = false;
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
  Put({PairOf(*left_id, *right_id), merge_count_++, *whole_id});
  return Status::Ok();
}

void Bpe::ReserveMerges(size_t count) { Grow(std::bit_ceil(count * 2 + 2)); }

void Bpe::Grow(size_t slots) {
  if (slots <= merges_.size()) return;
  const auto before = std::exchange(merges_, decltype(merges_)(slots));
  may_merge_.assign(slots * kBitsASlot, false);
  for (const Merge& merge : before) {
    if (merge.pair != kFree) Put(merge);
  }
}

void Bpe::Put(const Merge& merge) {
  *SlotOf(merge.pair) = merge;
  may_merge_[Mix(merge.pair) & (may_merge_.size() - 1)] = true;
}

Bpe::Merge* Bpe::SlotOf(uint64_t pair) {
  const size_t mask = merges_.size() - 1;
  size_t slot = Mix(pair) & mask;
  while (merges_[slot].pair != kFree && merges_[slot].pair != pair) slot = (slot + 1) & mask;
  return &merges_[slot];
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const uint64_t pair = PairOf(left, right);
  const uint64_t mixed = Mix(pair);
  if (!may_merge_[mixed & (may_merge_.size() - 1)]) return nullptr;
  const size_t mask = merges_.size() - 1;
  for (size_t slot = mixed & mask;; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) return &merges_[slot];
    if (merges_[slot].pair == kFree) return nullptr;
  }
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
    const CodePoint c = CodePointAt(piece, at);
    const std::string_view character = piece.substr(at, c.length);
    const auto length = static_cast<uint32_t>(c.length);
    at += length;
    const int32_t id = c.value < character_ids_.size() ? character_ids_[c.value] : -1;
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

// The symbols as a list, and at the place of the left one of each two neighbours the key of their
// merge. The least key is the merge that comes next.
void Bpe::MergeFew(size_t first, std::vector<Symbol>* symbols) const {
  constexpr uint64_t kNoKey = ~uint64_t{0};
  Symbol* s = symbols->data() + first;
  const size_t count = symbols->size() - first;
  std::array<uint64_t, kFewSymbols> keys;
  std::array<int32_t, kFewSymbols> joined;  // what the two become
  std::array<uint8_t, kFewSymbols> next;    // count: none
  std::array<uint8_t, kFewSymbols> last;    // count: none
  const auto look = [&](size_t at) {
    const Merge* merge = next[at] == count ? nullptr : FindMerge(s[at].id, s[next[at]].id);
    keys[at] = merge == nullptr ? kNoKey : KeyOf(merge->rank, static_cast<uint32_t>(at));
    joined[at] = merge == nullptr ? 0 : merge->id;
  };
  for (size_t i = 0; i < count; ++i) {
    next[i] = static_cast<uint8_t>(i + 1);
    last[i] = static_cast<uint8_t>(i == 0 ? count : i - 1);
    look(i);
  }
  for (;;) {
    uint64_t least = kNoKey;
    for (size_t i = 0; i < count; ++i) least = std::min(least, keys[i]);
    if (least == kNoKey) break;
    const uint32_t at = PlaceOf(least);
    const size_t right = next[at];
    s[at] = Joined(s[at], s[right], joined[at]);
    keys[right] = kNoKey;
    next[at] = next[right];
    if (next[at] != count) last[next[at]] = static_cast<uint8_t>(at);
    look(at);
    if (last[at] != count) look(last[at]);
  }
  size_t kept = 0;
  for (size_t i = 0; i < count; i = next[i]) s[kept++] = s[i];
  symbols->resize(first + kept);
}

// The same with a heap of keys. One is stale where another two stand at its place by now, whose
// merge has another rank.
void Bpe::MergeMany(size_t first, std::vector<Symbol>* symbols) const {
  Symbol* s = symbols->data() + first;
  const size_t count = symbols->size() - first;
  std::vector<uint32_t> next(count);
  std::vector<uint32_t> last(count);
  const auto none = static_cast<uint32_t>(count);
  const auto merge_at = [&](uint32_t at) {
    return next[at] == none ? nullptr : FindMerge(s[at].id, s[next[at]].id);
  };
  std::vector<uint64_t> keys;
  for (uint32_t i = 0; i < none; ++i) {
    next[i] = i + 1;
    last[i] = i == 0 ? none : i - 1;
    if (const Merge* merge = merge_at(i)) keys.push_back(KeyOf(merge->rank, i));
  }
  std::priority_queue heap(std::greater<uint64_t>(), std::move(keys));
  const auto look = [&](uint32_t at) {
    if (const Merge* merge = merge_at(at)) heap.push(KeyOf(merge->rank, at));
  };
  while (!heap.empty()) {
    const uint64_t key = heap.top();
    heap.pop();
    const uint32_t at = PlaceOf(key);
    const Merge* merge = s[at].length == 0 ? nullptr : merge_at(at);
    if (merge == nullptr || KeyOf(merge->rank, at) != key) continue;
    const uint32_t right = next[at];
    s[at] = Joined(s[at], s[right], merge->id);
    s[right].length = 0;
    next[at] = next[right];
    if (next[at] != none) last[next[at]] = at;
    look(at);
    if (last[at] != none) look(last[at]);
  }
  size_t kept = 0;
  for (uint32_t i = 0; i < none; i = next[i]) s[kept++] = s[i];
  symbols->resize(first + kept);
}

}  // namespace keel::model
