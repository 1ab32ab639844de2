#include "model/tokenizer/text/character_class.h"

#include <fmt/format.h>
#include <oniguruma.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "common/status.h"

namespace keel::model {

namespace {

constexpr uint32_t kCodePoints = 0x110000;

void Mark(std::string_view property, CharacterClass as, uint8_t* classes) {
  const auto* name = reinterpret_cast<const OnigUChar*>(property.data());
  OnigEncoding encoding = ONIG_ENCODING_UTF8;
  const int type = ONIGENC_PROPERTY_NAME_TO_CTYPE(encoding, const_cast<OnigUChar*>(name),
                                                  const_cast<OnigUChar*>(name + property.size()));
  OnigCodePoint single_bytes = 0;
  const OnigCodePoint* ranges = nullptr;  // how many, then the first and the last of each
  if (type < 0 || ONIGENC_GET_CTYPE_CODE_RANGE(encoding, static_cast<OnigCtype>(type),
                                               &single_bytes, &ranges) != 0) {
    throw Error(StatusCode::kInternal, fmt::format("Oniguruma has no property {}", property));
  }
  for (OnigCodePoint i = 0; i < ranges[0]; ++i) {
    const uint32_t end = std::min<uint32_t>(ranges[2 * i + 2] + 1, kCodePoints);
    if (ranges[2 * i + 1] < end) std::fill(classes + ranges[2 * i + 1], classes + end, as);
  }
}

}  // namespace

const uint8_t* CharacterClasses() {
  static const std::unique_ptr<uint8_t[]> classes = [] {
    auto made = std::make_unique<uint8_t[]>(kCodePoints);
    for (const std::string_view name : {"Lu", "Lt"}) Mark(name, kCapitals, made.get());
    Mark("Ll", kSmalls, made.get());
    for (const std::string_view name : {"Lm", "Lo"}) Mark(name, kCaseless, made.get());
    Mark("M", kMarks, made.get());
    Mark("N", kNumbers, made.get());
    for (const std::string_view name : {"P", "S"}) Mark(name, kSigns, made.get());
    Mark("Space", kBlanks, made.get());
    made['\r'] = made['\n'] = kNewlines;
    return made;
  }();
  return classes.get();
}

}  // namespace keel::model
