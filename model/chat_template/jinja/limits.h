// What a template may use up: it is foreign text, and so are the rows that it is given.
#pragma once

#include <cstddef>
#include <cstdint>

namespace keel::model::jinja {

constexpr size_t kMaxSourceBytes = size_t{4} << 20;
// Nesting of expressions and statements in the source.
constexpr int kMaxSourceNesting = 200;
// Evaluations within one another, those of macros included.
constexpr int kMaxDepth = 1000;
// Nesting of lists and dicts.
constexpr int kMaxValueDepth = 300;
// Values within one list or dict.
constexpr uint32_t kMaxWeight = 10'000'000;
// Evaluations, and elements that they went over, of one rendering.
constexpr int64_t kMaxSteps = 20'000'000;
// Bytes of all strings that one rendering makes, and of one of them.
constexpr int64_t kMaxTotalBytes = int64_t{2} << 30;
constexpr size_t kMaxTextBytes = size_t{64} << 20;

}  // namespace keel::model::jinja
