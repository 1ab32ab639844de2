#include "model/tokenizer/text/aligned_text.h"

#include <algorithm>

#include "model/tokenizer/text/utf8.h"

namespace keel::model {

AlignedText::AlignedText(std::string_view text, int64_t base, bool track)
    : text_(text), base_(base), track_(track) {
  if (base == 0 && !text.empty()) of_first_ = Utf8Length(text[0]);
}

ByteRange AlignedText::OriginAt(size_t at) const {
  if (rewritten_) return origins_[at];
  size_t begin = at;
  while ((static_cast<unsigned char>(text_[begin]) & 0xC0u) == 0x80u) --begin;
  const size_t end = begin + Utf8Length(text_[begin]);
  return {base_ + static_cast<int64_t>(begin), base_ + static_cast<int64_t>(end)};
}

ByteRange AlignedText::OriginOf(Span span) const {
  if (!track_ || text_.empty()) return {base_, base_};
  if (span.begin >= span.end || span.end > text_.size()) {
    const int64_t at =
        span.begin < text_.size() ? OriginAt(span.begin).begin : OriginAt(text_.size() - 1).end;
    return {at, at};
  }
  return {OriginAt(span.begin).begin, OriginAt(span.end - 1).end};
}

AlignedText AlignedText::Slice(Span span) const {
  AlignedText slice(span.Of(text_), base_ + static_cast<int64_t>(span.begin), track_);
  slice.of_first_ = std::clamp(of_first_, span.begin, span.end) - span.begin;
  slice.rewritten_ = rewritten_;
  if (rewritten_ && track_) {
    slice.origins_.assign(origins_.begin() + static_cast<std::ptrdiff_t>(span.begin),
                          origins_.begin() + static_cast<std::ptrdiff_t>(span.end));
  }
  return slice;
}

AlignedText::Rewrite::Rewrite(AlignedText* text) : text_(text) {
  bytes_.reserve(text->text_.size() + text->text_.size() / 4);
  if (text->track_) origins_.reserve(bytes_.capacity());
}

void AlignedText::Rewrite::CountFirst(size_t count) {
  if (of_first_ == bytes_.size()) of_first_ += count;
}

void AlignedText::Rewrite::Keep(Span span) {
  if (span.size() == 0) return;
  CountFirst(std::clamp(text_->of_first_, span.begin, span.end) - span.begin);
  bytes_ += span.Of(text_->text_);
  if (!text_->track_) return;
  for (size_t at = span.begin; at < span.end; ++at) origins_.push_back(text_->OriginAt(at));
}

void AlignedText::Rewrite::Put(std::string_view bytes, size_t at) {
  CountFirst(text_->IsOfFirst(at) ? bytes.size() : 0);
  bytes_ += bytes;
  if (text_->track_) origins_.insert(origins_.end(), bytes.size(), text_->OriginAt(at));
}

void AlignedText::Rewrite::PutBefore(std::string_view bytes) {
  CountFirst(text_->IsOfFirst(0) ? bytes.size() : 0);
  bytes_ += bytes;
  if (text_->track_) origins_.insert(origins_.end(), bytes.size(), {text_->base_, text_->base_});
}

void AlignedText::Rewrite::Finish() {
  text_->text_ = std::move(bytes_);
  text_->origins_ = std::move(origins_);
  text_->rewritten_ = true;
  text_->of_first_ = of_first_;
}

}  // namespace keel::model
