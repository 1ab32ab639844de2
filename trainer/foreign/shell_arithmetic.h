// The integer arithmetic of a shell's $(( )), as far as launch scripts use it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace keel::trainer::foreign {

// A variable's number; nothing where it has none, or it is not known.
using NumberOf = std::function<std::optional<int64_t>(const std::string& name)>;

// + - * / % and brackets over decimal numbers and names. Nothing where it is another expression, a
// name has no number, or a result does not fit into 64 bits.
std::optional<int64_t> ShellArithmetic(std::string_view text, const NumberOf& lookup);

// The variables of an expression that sets some of them (X = 2, X += 2, X++); none of one that sets
// nothing.
std::set<std::string> ShellArithmeticSets(std::string_view text);

}  // namespace keel::trainer::foreign
