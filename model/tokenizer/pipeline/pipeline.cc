#include "model/tokenizer/pipeline/pipeline.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <span>
#include <unordered_set>
#include <utility>

#include "common/text.h"
#include "model/tokenizer/pipeline/encode_scratch.h"
#include "model/tokenizer/text/byte_alphabet.h"
#include "model/tokenizer/text/offsets.h"
#include "model/tokenizer/text/utf8.h"

namespace keel::model {

namespace {

// An added token that was found in a text, and the spaces that it took.
struct FoundToken {
  size_t index;  // of its id in the output
  TokenSpaces spaces;
};

// Where ids go, with their offsets if anyone wants them.
struct Output {
  std::vector<int32_t>* ids;
  std::vector<ByteRange>* offsets;  // may be null
  std::vector<FoundToken>* found;   // in their order; null without offsets
  void Add(int32_t id, ByteRange offset) const {
    ids->push_back(id);
    if (offsets != nullptr) offsets->push_back(offset);
  }
  // `part` is what stands for it in the text that it was found in, which may be a normalized one.
  void AddFound(int32_t id, ByteRange offset, std::string_view part) const {
    if (found != nullptr) found->push_back({ids->size(), SpacesOfToken(part)});
    Add(id, offset);
  }
};

// The last step of a chain of decoders.
class TextStep final : public DecodeStep {
 public:
  explicit TextStep(std::string** target) : target_(target) {}
  void Push(std::string_view token, bool) override { **target_ += token; }
  void Finish() override {}

 private:
  std::string** target_;
};

// Without a decoder: tokens with spaces between them.
class JoinStep final : public DecodeStep {
 public:
  explicit JoinStep(std::unique_ptr<DecodeStep> next) : next_(std::move(next)) {}
  void Push(std::string_view token, bool last) override {
    if (any_) next_->Push(" ", true);
    any_ = true;
    next_->Push(token, last);
  }
  void Finish() override { next_->Finish(); }

 private:
  std::unique_ptr<DecodeStep> next_;
  bool any_ = false;
};

// Cuts pieces where no merge joins what stands there: vocabularies without a pre-tokenizer have the
// whole text as one piece, and its words are known from elsewhere only by themselves.
void CutWhereNothingJoins(const Bpe& bpe, std::string_view text, std::vector<Span>* pieces,
                          std::vector<Span>* room) {
  constexpr uint32_t kMark = 0x2581;
  std::vector<Span>& cut = *room;
  cut.clear();
  for (const Span& piece : *pieces) {
    const std::string_view bytes = piece.Of(text);
    size_t begin = 0;
    uint32_t before = kMark;  // the character that ends at `at`: none is cut off before the first
    for (size_t at = 0; at < bytes.size();) {
      const CodePoint here = CodePointAt(bytes, at);
      const bool mark = here.value == kMark && before != kMark && bpe.cuts_at_marks();
      if (at > 0 && (mark || bpe.cuts_between(before, here.value))) {
        cut.push_back({piece.begin + begin, piece.begin + at});
        begin = at;
      }
      before = here.value;
      at += here.length;
    }
    cut.push_back({piece.begin + begin, piece.end});
  }
  std::swap(*pieces, cut);
}

class PipelineTokenizer final : public Tokenizer {
 public:
  PipelineTokenizer(PipelineParts parts, TokenizerFacts facts)
      : Tokenizer(facts), parts_(std::move(parts)) {}

  // The second half of construction, which may fail.
  Status Prepare(std::string_view where);

  std::optional<int32_t> IdOf(std::string_view text) const override {
    const auto added = added_ids_.find(std::string(text));
    if (added != added_ids_.end()) return added->second;
    return parts_.bpe->vocabulary().IdOf(text);
  }
  std::string_view TokenOf(int32_t id) const override {
    const AddedToken* added = AddedOf(id);
    return added != nullptr ? std::string_view(added->content)
                            : parts_.bpe->vocabulary().TokenOf(id);
  }
  bool IsSpecial(int32_t id) const override {
    const AddedToken* added = AddedOf(id);
    return added != nullptr && added->special;
  }
  std::string BytesOf(int32_t id) const override;
  std::unique_ptr<DecodeState> StartDecoding(const DecodeOptions& options) const override {
    return std::make_unique<State>(this, options);
  }

 private:
  class State final : public DecodeState {
   public:
    State(const PipelineTokenizer* tokenizer, const DecodeOptions& options)
        : tokenizer_(tokenizer), options_(options) {
      first_ = std::make_unique<TextStep>(&target_);
      const auto& decoders = tokenizer->parts_.decoders;
      if (tokenizer->parts_.spaces) first_ = std::make_unique<JoinStep>(std::move(first_));
      for (auto decoder = decoders.rbegin(); decoder != decoders.rend(); ++decoder) {
        first_ = (*decoder)->Start(std::move(first_));
      }
    }
    void Push(int32_t id, std::string* text) override {
      if (options_.skip_special_tokens && tokenizer_->IsLeftOut(id)) return;
      if (!tokenizer_->Knows(id)) return;
      target_ = text;
      first_->Push(tokenizer_->TokenOf(id), true);
    }
    void Finish(std::string* text) override {
      target_ = text;
      first_->Finish();
    }

   private:
    const PipelineTokenizer* tokenizer_;
    DecodeOptions options_;
    std::string* target_ = nullptr;
    std::unique_ptr<DecodeStep> first_;
  };

  std::vector<int32_t> DoEncode(std::string_view text, const EncodeOptions& options,
                                std::vector<ByteRange>* offsets) const override;
  void EncodeText(std::string_view text, const Output& out, EncodeScratch* scratch) const;
  void EncodeSegment(AlignedText text, const Output& out, EncodeScratch* scratch) const;
  void EncodePieces(AlignedText text, const Output& out, EncodeScratch* scratch) const;
  void EncodeCached(std::string_view text, std::span<const Span> pieces, const Output& out,
                    EncodeScratch* scratch) const;
  void EncodePieceWithOffsets(const AlignedText& text, Span piece, const Output& out,
                              EncodeScratch* scratch) const;
  void TrimOffsets(std::string_view text, const Output& out) const;
  std::string_view Spelled(std::string_view piece, EncodeScratch* scratch) const;

  const AddedToken* AddedOf(int32_t id) const {
    const auto index = static_cast<size_t>(id);
    if (id < 0 || index >= added_by_id_.size() || added_by_id_[index] < 0) return nullptr;
    return &parts_.added[static_cast<size_t>(added_by_id_[index])];
  }
  // As `tokenizers` has it, which goes by the text that a token decodes to: a special token that
  // the normalizer has changed is known for one only if another special token is spelled so.
  bool IsLeftOut(int32_t id) const {
    const AddedToken* added = AddedOf(id);
    return added != nullptr && special_texts_.contains(added->content);
  }
  bool Knows(int32_t id) const {
    return AddedOf(id) != nullptr || parts_.bpe->vocabulary().Has(id);
  }

  PipelineParts parts_;
  std::unordered_map<std::string, int32_t> added_ids_;
  std::unordered_set<std::string> special_texts_;  // as the file spells them
  std::vector<int32_t> added_by_id_;               // indices of parts_.added; -1 for none
  AddedTokenFinder plain_;                         // in the text as it is
  AddedTokenFinder normalized_;                    // in the normalized text
  ByteAlphabet alphabet_;
  mutable EncodeScratchPool scratches_;
};

std::string PipelineTokenizer::BytesOf(int32_t id) const {
  std::string text = Tokenizer::BytesOf(id);
  if (text.find("\xEF\xBF\xBD") == std::string::npos || AddedOf(id) != nullptr) return text;
  const std::string_view token = TokenOf(id);
  if (const auto byte = FallbackByte(token)) return {*byte};
  std::string bytes;
  alphabet_.Read(token, &bytes);
  return bytes;
}

Status PipelineTokenizer::Prepare(std::string_view where) {
  const auto refuse = [&](std::string_view problem) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, problem));
  };
  const Vocabulary& vocabulary = parts_.bpe->vocabulary();
  PatternScratch scratch;
  int32_t size = vocabulary.size();
  int32_t next = vocabulary.count();  // the id of an added token that the vocabulary lacks
  for (size_t i = 0; i < parts_.added.size(); ++i) {
    AddedToken& token = parts_.added[i];
    const std::string name = Printable(token.content);
    if (token.id < 0 || token.id >= Vocabulary::kMaxId) {
      return refuse(fmt::format("the added token \"{}\" has the id {}; ids from 0 to {} are read",
                                name, token.id, Vocabulary::kMaxId - 1));
    }
    const auto known = vocabulary.IdOf(token.content);
    if (known && *known != token.id) {
      return refuse(fmt::format("the added token \"{}\" has the id {}, but {} in the vocabulary",
                                name, token.id, *known));
    }
    if (!known && vocabulary.Has(token.id)) {
      return refuse(fmt::format("the added token \"{}\" has the id {}, which is that of \"{}\"",
                                name, token.id, Printable(vocabulary.TokenOf(token.id))));
    }
    // `tokenizers` counts, and only warns of an id that is another one: which of the two the model
    // was trained with, the file does not say.
    if (!known && token.id != next) {
      return refuse(fmt::format(
          "the added token \"{}\" has the id {}, where {} comes next; number the added tokens one "
          "after the other, as the model has them",
          name, token.id, next));
    }
    next = std::max(next, token.id + 1);
    if (!added_ids_.emplace(token.content, token.id).second || AddedOf(token.id) != nullptr) {
      return refuse(fmt::format("the added token \"{}\" or its id {} comes twice", name, token.id));
    }
    const auto index = static_cast<size_t>(token.id);
    if (index >= added_by_id_.size()) added_by_id_.resize(index + 1, -1);
    added_by_id_[index] = static_cast<int32_t>(i);
    size = std::max(size, token.id + 1);

    if (token.special) special_texts_.insert(token.content);
    AlignedText content(token.content, 0, false);
    if (token.normalized && parts_.normalizer != nullptr) {
      parts_.normalizer->Apply(&content, &scratch);
    }
    AddedTokenFinder& finder = token.normalized ? normalized_ : plain_;
    if (const Status status = finder.Add(token, content.text()); !status.ok()) {
      return status.WithContext(where);
    }
    // Decoded, it is what was found: the normalized text.
    token.content = content.text();
  }
  facts().vocab_size = size;
  for (const auto* ids : {&parts_.post_processor.before, &parts_.post_processor.after}) {
    for (const int32_t id : *ids) {
      if (!Knows(id))
        return refuse(fmt::format("its template has the id {}, which no token has", id));
    }
  }
  return Status::Ok();
}

std::vector<int32_t> PipelineTokenizer::DoEncode(std::string_view text,
                                                 const EncodeOptions& options,
                                                 std::vector<ByteRange>* offsets) const {
  EncodeScratchPool::Lease scratch(&scratches_);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  std::vector<FoundToken> found;
  const Output out{&ids, offsets, offsets == nullptr ? nullptr : &found};
  if (simdjson::validate_utf8(text.data(), text.size())) {
    EncodeText(text, out, scratch.get());
    if (options.trims_offsets) TrimOffsets(text, out);
  } else {
    std::string repaired;
    const std::vector<int64_t> places = RepairUtf8(text, &repaired);
    EncodeText(repaired, out, scratch.get());
    if (options.trims_offsets) TrimOffsets(repaired, out);
    if (offsets != nullptr) {
      for (ByteRange& range : *offsets) {
        range = {places[static_cast<size_t>(range.begin)], places[static_cast<size_t>(range.end)]};
      }
    }
  }
  if (options.add_special_tokens) {
    const PostProcessor& post = parts_.post_processor;
    ids.insert(ids.begin(), post.before.begin(), post.before.end());
    ids.insert(ids.end(), post.after.begin(), post.after.end());
    if (offsets != nullptr) {
      offsets->insert(offsets->begin(), post.before.size(), ByteRange{});
      offsets->insert(offsets->end(), post.after.size(), ByteRange{});
    }
  }
  return ids;
}

void PipelineTokenizer::EncodeText(std::string_view text, const Output& out,
                                   EncodeScratch* scratch) const {
  std::vector<Cut> cuts;
  plain_.Find(text, &cuts);
  for (const Cut& cut : cuts) {
    const ByteRange range{static_cast<int64_t>(cut.span.begin), static_cast<int64_t>(cut.span.end)};
    if (cut.id >= 0) {
      out.AddFound(cut.id, range, cut.span.Of(text));
    } else {
      EncodeSegment(AlignedText(cut.span.Of(text), range.begin, out.offsets != nullptr), out,
                    scratch);
    }
  }
}

void PipelineTokenizer::EncodeSegment(AlignedText text, const Output& out,
                                      EncodeScratch* scratch) const {
  if (parts_.normalizer != nullptr) parts_.normalizer->Apply(&text, &scratch->patterns);
  std::vector<Cut> cuts;
  normalized_.Find(text.text(), &cuts);
  if (cuts.size() == 1 && cuts[0].id < 0) {
    EncodePieces(std::move(text), out, scratch);
    return;
  }
  for (const Cut& cut : cuts) {
    if (cut.id >= 0) {
      out.AddFound(cut.id, out.offsets != nullptr ? text.OriginOf(cut.span) : ByteRange{},
                   cut.span.Of(text.text()));
    } else {
      EncodePieces(text.Slice(cut.span), out, scratch);
    }
  }
}

void PipelineTokenizer::EncodePieces(AlignedText text, const Output& out,
                                     EncodeScratch* scratch) const {
  const size_t size = text.text().size();
  PreTokens tokens{std::move(text), std::move(scratch->pieces_of_text)};
  tokens.pieces.assign(1, {0, size});
  for (const auto& step : parts_.pre_tokenizers.steps) step->Apply(&tokens, &scratch->patterns);
  if (parts_.bpe->cuts_at_marks() && !parts_.pre_tokenizers.spells_bytes)
    CutWhereNothingJoins(*parts_.bpe, tokens.text.text(), &tokens.pieces,
                         &scratch->patterns.pieces);
  if (out.offsets != nullptr) {
    for (const Span& piece : tokens.pieces) {
      if (piece.size() > 0) EncodePieceWithOffsets(tokens.text, piece, out, scratch);
    }
  } else {
    EncodeCached(tokens.text.text(), tokens.pieces, out, scratch);
  }
  scratch->pieces_of_text = std::move(tokens.pieces);
}

std::string_view PipelineTokenizer::Spelled(std::string_view piece, EncodeScratch* scratch) const {
  if (!parts_.pre_tokenizers.spells_bytes) return piece;
  scratch->spelled.clear();
  alphabet_.Spell(piece, &scratch->spelled);
  return scratch->spelled;
}

// A few pieces at a time, so that what the cache has of them all is on its way from memory before
// the first is looked up.
void PipelineTokenizer::EncodeCached(std::string_view text, std::span<const Span> pieces,
                                     const Output& out, EncodeScratch* scratch) const {
  constexpr size_t kAtATime = 16;
  std::array<uint64_t, kAtATime> hashes;
  while (!pieces.empty()) {
    const auto some = pieces.first(std::min(pieces.size(), kAtATime));
    pieces = pieces.subspan(some.size());
    for (size_t i = 0; i < some.size(); ++i) {
      hashes[i] = PieceCache::HashOf(some[i].Of(text));
      scratch->pieces.Prefetch(hashes[i]);
    }
    for (size_t i = 0; i < some.size(); ++i) {
      const std::string_view piece = some[i].Of(text);
      if (piece.empty() || scratch->pieces.Find(piece, hashes[i], out.ids)) continue;
      scratch->symbols.clear();
      parts_.bpe->Encode(Spelled(piece, scratch), &scratch->symbols);
      const size_t before = out.ids->size();
      for (const Symbol& symbol : scratch->symbols) out.ids->push_back(symbol.id);
      scratch->pieces.Put(piece, hashes[i], std::span(*out.ids).subspan(before));
    }
  }
}

void PipelineTokenizer::EncodePieceWithOffsets(const AlignedText& text, Span piece,
                                               const Output& out, EncodeScratch* scratch) const {
  scratch->symbols.clear();
  const std::string_view spelled = Spelled(piece.Of(text.text()), scratch);
  parts_.bpe->Encode(spelled, &scratch->symbols);
  const auto is_lead = [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0u) != 0x80u;
  };
  size_t at = 0;               // in the spelled piece
  size_t begin = piece.begin;  // in the text
  const auto take = [&](size_t size) {
    const std::string_view part = spelled.substr(at, size);
    at += size;
    return parts_.pre_tokenizers.spells_bytes
               ? static_cast<size_t>(std::ranges::count_if(part, is_lead))
               : size;
  };
  for (const Symbol& symbol : scratch->symbols) {
    begin += take(symbol.skipped);
    // A symbol may be a byte of a character that the one before it is of, too.
    const bool within =
        parts_.pre_tokenizers.spells_bytes && at < spelled.size() && !is_lead(spelled[at]);
    const size_t length = take(symbol.length);
    out.Add(symbol.id, text.OriginOf({begin - (within ? 1 : 0), begin + length}));
    begin += length;
  }
}

void PipelineTokenizer::TrimOffsets(std::string_view text, const Output& out) const {
  if (out.offsets == nullptr || parts_.post_processor.trims.empty()) return;
  const Vocabulary& vocabulary = parts_.bpe->vocabulary();
  auto found = out.found->begin();
  for (size_t i = 0; i < out.ids->size(); ++i) {
    ByteRange& range = (*out.offsets)[i];
    const bool is_found = found != out.found->end() && found->index == i;
    const TokenSpaces spaces =
        is_found ? (found++)->spaces : SpacesOfToken(vocabulary.TokenOf((*out.ids)[i]));
    // One after another, as `tokenizers` does it: two of them take a token's spaces off twice.
    for (const bool keeps_first_space : parts_.post_processor.trims) {
      TokenSpaces taken = spaces;
      const bool first = i == 0 || range.begin == 0;
      // One space may be what the tokenizer put there; more than one are the text's own.
      if (first && keeps_first_space && taken.leading == 1) taken.leading = 0;
      range = WithoutSpaces(text, range, taken);
    }
  }
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> MakePipelineTokenizer(PipelineParts parts,
                                                         std::string_view where) {
  TokenizerFacts facts;
  facts.bos = parts.bos;
  facts.eos = parts.eos;
  facts.pad = parts.pad;
  facts.digest = parts.digest;
  auto tokenizer = std::make_unique<PipelineTokenizer>(std::move(parts), facts);
  KEEL_RETURN_IF_ERROR(tokenizer->Prepare(where));
  return Result<std::unique_ptr<Tokenizer>>(std::move(tokenizer));
}

}  // namespace keel::model
