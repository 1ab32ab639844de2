#include "rewards/rational.h"

#include <cctype>
#include <utility>

namespace keel::rewards {

namespace {

using Wide = __int128;
constexpr size_t kMaxBytes = 4096;
constexpr int kMaxExpressionDepth = 64;
constexpr int kMaxExponent = 128;
constexpr Wide kLargest = Wide{1} << 125;  // so that two can be added, and a sign turned

Wide Gcd(Wide a, Wide b) {
  while (b != 0) a = std::exchange(b, a % b);
  return a < 0 ? -a : a;
}

bool Fits(Wide x) { return x <= kLargest && x >= -kLargest; }

std::optional<Wide> Product(Wide a, Wide b) {
  Wide out = 0;
  if (__builtin_mul_overflow(a, b, &out) || !Fits(out)) return std::nullopt;
  return out;
}

class Parser {
 public:
  Parser(std::string_view text, std::vector<Rational>* literals)
      : text_(text), literals_(literals) {}

  std::optional<Rational> Whole() {
    const auto value = Sum();
    Skip();
    return at_ == text_.size() ? value : std::nullopt;
  }

 private:
  void Skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  bool Take(char c) {
    Skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<Rational> Sum() {
    auto left = Term();
    while (left) {
      if (Take('+')) {
        const auto right = Term();
        left = right ? left->Plus(*right) : std::nullopt;
      } else if (Take('-')) {
        const auto right = Term();
        left = right ? left->Minus(*right) : std::nullopt;
      } else {
        break;
      }
    }
    return left;
  }

  std::optional<Rational> Term() {
    auto left = Signed();
    while (left) {
      if (Take('*')) {
        const auto right = Signed();
        left = right ? left->Times(*right) : std::nullopt;
      } else if (Take('/')) {
        const auto right = Signed();
        left = right ? left->Over(*right) : std::nullopt;
      } else {
        break;
      }
    }
    return left;
  }

  // A sign binds less than a power: -2^2 is -4.
  std::optional<Rational> Signed() {
    bool negative = false;
    while (true) {
      if (Take('-')) {
        negative = !negative;
      } else if (!Take('+')) {
        break;
      }
    }
    const auto value = Powers();
    return value && negative ? Rational().Minus(*value) : value;
  }

  std::optional<Rational> Powers() {
    const auto base = Atom();
    if (!base || !Take('^')) return base;
    if (++depth_ > kMaxExpressionDepth) return std::nullopt;
    const auto exponent = Signed();
    --depth_;
    return exponent ? base->Power(*exponent) : std::nullopt;
  }

  std::optional<Rational> Atom() {
    if (Take('(')) {
      if (++depth_ > kMaxExpressionDepth) return std::nullopt;
      const auto value = Sum();
      --depth_;
      return value && Take(')') ? value : std::nullopt;
    }
    return Number();
  }

  std::optional<Rational> Number() {
    Skip();
    Wide digits = 0;
    Wide scale = 1;
    bool any = false;
    bool point = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '.' && !point) {
        point = true;
        continue;
      }
      if (std::isdigit(static_cast<unsigned char>(c)) == 0) break;
      any = true;
      const auto wider = Product(digits, 10);
      const auto finer = point ? Product(scale, 10) : scale;
      if (!wider || !finer) return std::nullopt;
      digits = *wider + (c - '0');
      scale = *finer;
    }
    if (!any) return std::nullopt;
    auto value = Rational::Make(digits, scale);
    if (value && at_ + 1 < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      value = Exponent(*value);
    }
    if (value && literals_ != nullptr) literals_->push_back(*value);
    return value;
  }

  std::optional<Rational> Exponent(const Rational& value) {
    ++at_;
    bool negative = text_[at_] == '-';
    if (negative || text_[at_] == '+') ++at_;
    int exponent = 0;
    bool any = false;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0; ++at_) {
      any = true;
      exponent = exponent * 10 + (text_[at_] - '0');
      if (exponent > kMaxExponent) return std::nullopt;
    }
    const auto ten = Rational::Make(10, 1);
    const auto power = Rational::Make(negative ? -exponent : exponent, 1);
    const auto factor = any ? ten->Power(*power) : std::nullopt;
    return factor ? value.Times(*factor) : std::nullopt;
  }

  std::string_view text_;
  std::vector<Rational>* literals_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<Rational> Rational::Make(__int128 numerator, __int128 denominator) {
  if (denominator == 0 || !Fits(numerator) || !Fits(denominator)) return std::nullopt;
  const Wide divisor = Gcd(numerator, denominator);
  Rational out;
  out.numerator_ = numerator / divisor;
  out.denominator_ = denominator / divisor;
  if (out.denominator_ < 0) {
    out.numerator_ = -out.numerator_;
    out.denominator_ = -out.denominator_;
  }
  return out;
}

std::string Rational::Text() const {
  const auto digits = [](__int128 value) {
    std::string text;
    const bool negative = value < 0;
    do {
      const int digit = static_cast<int>(value % 10);  // has the sign of the value
      text.insert(text.begin(), static_cast<char>('0' + (negative ? -digit : digit)));
      value /= 10;
    } while (value != 0);
    return negative ? "-" + text : text;
  };
  return is_integer() ? digits(numerator_) : digits(numerator_) + "/" + digits(denominator_);
}

std::optional<Rational> Rational::Plus(const Rational& other) const {
  // Over the least common denominator, which is the one that may still fit.
  const Wide shared = Gcd(denominator_, other.denominator_);
  const auto a = Product(numerator_, other.denominator_ / shared);
  const auto b = Product(other.numerator_, denominator_ / shared);
  const auto denominator = Product(denominator_ / shared, other.denominator_);
  if (!a || !b || !denominator) return std::nullopt;
  return Make(*a + *b, *denominator);
}

std::optional<Rational> Rational::Minus(const Rational& other) const {
  Rational negative = other;
  negative.numerator_ = -negative.numerator_;
  return Plus(negative);
}

std::optional<Rational> Rational::Times(const Rational& other) const {
  const auto numerator = Product(numerator_, other.numerator_);
  const auto denominator = Product(denominator_, other.denominator_);
  if (!numerator || !denominator) return std::nullopt;
  return Make(*numerator, *denominator);
}

std::optional<Rational> Rational::Over(const Rational& other) const {
  if (other.numerator_ == 0) return std::nullopt;
  Rational reciprocal;
  reciprocal.numerator_ = other.numerator_ < 0 ? -other.denominator_ : other.denominator_;
  reciprocal.denominator_ = other.numerator_ < 0 ? -other.numerator_ : other.numerator_;
  return Times(reciprocal);
}

std::optional<Rational> Rational::Power(const Rational& exponent) const {
  if (!exponent.is_integer() || exponent.numerator_ > kMaxExponent ||
      exponent.numerator_ < -kMaxExponent) {
    return std::nullopt;
  }
  const bool negative = exponent.numerator_ < 0;
  const auto count = static_cast<int>(negative ? -exponent.numerator_ : exponent.numerator_);
  std::optional<Rational> out = Make(1, 1);
  for (int i = 0; i < count && out; ++i) out = out->Times(*this);
  return out && negative ? Make(1, 1)->Over(*out) : out;
}

std::optional<Rational> Evaluate(std::string_view text, std::vector<Rational>* literals) {
  if (text.size() > kMaxBytes) return std::nullopt;
  return Parser(text, literals).Whole();
}

}  // namespace keel::rewards
