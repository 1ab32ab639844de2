// Exact fractions for answers, and the expressions that make them. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keel::rewards {

// A fraction in lowest terms with a positive denominator, of 128 bits each; an operation whose
// result does not fit, or is not defined, gives nothing.
class Rational {
 public:
  Rational() = default;
  static std::optional<Rational> Make(__int128 numerator, __int128 denominator);

  bool operator==(const Rational& other) const = default;
  std::optional<Rational> Plus(const Rational& other) const;
  std::optional<Rational> Minus(const Rational& other) const;
  std::optional<Rational> Times(const Rational& other) const;
  std::optional<Rational> Over(const Rational& other) const;
  // For integers of at most 128 in magnitude as exponents.
  std::optional<Rational> Power(const Rational& exponent) const;
  // "-3/4", "42": the same for equal values.
  std::string Text() const;
  bool is_integer() const { return denominator_ == 1; }

 private:
  __int128 numerator_ = 0;
  __int128 denominator_ = 1;
};

// Value of "2 * (3 + .5) / -7 ^ 2", "1.5e3": decimals, + - * / ^ and parentheses, with the usual
// precedence; nothing else, no implied product. `literals`, when given, receives the numbers that
// were written, in order. Texts of more than 4096 bytes or 64 levels have no value. Time is linear.
std::optional<Rational> Evaluate(std::string_view text, std::vector<Rational>* literals = nullptr);

}  // namespace keel::rewards
