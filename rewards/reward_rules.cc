#include "rewards/reward_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "common/text.h"
#include "rewards/dapo_answer.h"
#include "rewards/format_pattern.h"
#include "rewards/math_answer.h"
#include "rewards/rational.h"

namespace keel::rewards {

namespace {

constexpr size_t kMaxResponse = size_t{1} << 20;

// What a rule found: nothing of the right form, a wrong answer, or the right one.
enum class Verdict { kNoAnswer, kWrong, kRight };
struct Finding {
  Verdict verdict = Verdict::kNoAnswer;
  std::string answer;           // see RewardResult
  bool wrong_is_minus = false;  // what is not right scores -1
};

Finding RightIf(bool right, std::string answer) {
  return {right ? Verdict::kRight : Verdict::kWrong, std::move(answer), false};
}

// The ground truth as text; numbers as they are written in JSON.
Result<std::string> TruthText(const RewardSample& sample) {
  if (sample.ground_truth.is_string()) return sample.ground_truth.get<std::string>();
  if (sample.ground_truth.is_number()) return sample.ground_truth.dump();
  // MATH's rows may give a list of one.
  if (sample.ground_truth.is_array() && sample.ground_truth.size() == 1 &&
      sample.ground_truth[0].is_string()) {
    return sample.ground_truth[0].get<std::string>();
  }
  return Status(
      StatusCode::kInvalidData,
      fmt::format("ground_truth: expected text or a number, found {}",
                  sample.ground_truth.is_null() ? "none" : sample.ground_truth.type_name()));
}

Result<Finding> Exact(const RewardSample& sample, std::string_view response, const RuleOptions&) {
  KEEL_ASSIGN_OR_RETURN(const std::string truth, TruthText(sample));
  return RightIf(Trim(response) == Trim(truth), std::string(Trim(response)));
}

Result<Rational> NumberOf(std::string_view text) {
  const auto digits = LastNumber(text);
  const auto value = digits ? Evaluate(*digits) : std::nullopt;
  if (value) return *value;
  return Status(StatusCode::kInvalidData,
                fmt::format("ground_truth: expected a number, found '{}'", text.substr(0, 60)));
}

Finding CompareNumber(const std::optional<std::string>& found, const Rational& truth) {
  if (!found) return {};
  const auto value = Evaluate(*found);
  return RightIf(value && *value == truth, value ? value->Text() : *found);
}

Result<Finding> Arithmetic(const RewardSample& sample, std::string_view response,
                           const RuleOptions&) {
  KEEL_ASSIGN_OR_RETURN(const std::string text, TruthText(sample));
  KEEL_ASSIGN_OR_RETURN(const Rational truth, NumberOf(text));
  return CompareNumber(LastNumber(response), truth);
}

// What stands after the last "####", up to the end of the line.
std::optional<std::string_view> AfterMarks(std::string_view text) {
  const size_t at = text.rfind("####");
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = text.substr(at + 4);
  return Trim(rest.substr(0, rest.find('\n')));
}

// The number right behind the last "####" that has one, whatever follows it: "#### 42 apples",
// "#### 42 ####". Marks without one are headings.
std::optional<std::string> NumberBehindMarks(std::string_view text) {
  for (size_t end = text.size();;) {
    const size_t at = text.substr(0, end).rfind("####");
    if (at == std::string_view::npos) return std::nullopt;
    std::string_view rest = text.substr(at + 4);
    while (!rest.empty() && rest.front() != '\n' && IsSpace(rest.front())) rest.remove_prefix(1);
    if (rest.starts_with('$')) rest.remove_prefix(1);
    const size_t sign = rest.starts_with('-') ? 1 : 0;
    const size_t size = rest.find_first_not_of("0123456789.,", sign);
    if (auto number = LastNumber(rest.substr(0, size))) return number;
    end = at + 3;  // the next marks may begin within these
  }
}

Result<Finding> Gsm8k(const RewardSample& sample, std::string_view response,
                      const RuleOptions& options) {
  KEEL_ASSIGN_OR_RETURN(const std::string text, TruthText(sample));
  KEEL_ASSIGN_OR_RETURN(const Rational truth, NumberOf(AfterMarks(text).value_or(text)));
  return CompareNumber(options.flexible ? LastNumber(response) : NumberBehindMarks(response),
                       truth);
}

// verl looks no further back, in characters, for a line that says the answer, and for a box.
constexpr int kLineTail = 300;
constexpr int kBoxTail = 100;

// The last so many characters.
std::string_view Tail(std::string_view text, int characters) {
  size_t begin = text.size();
  for (int left = characters; begin > 0 && left > 0;) left -= (text[--begin] & '\xc0') != '\x80';
  return text.substr(begin);
}

// Of these sources verl asks for a line "Answer: ..." or a box, and takes 1 off for what is not
// right.
bool IsOfDapo(const std::string& data_source) {
  return data_source == "math" || data_source.starts_with("math_dapo") ||
         data_source.starts_with("aime");
}

// What a line says counts before what a box holds; the latter is compared as it stands.
Finding MathOfDapo(std::string_view response, const std::string& truth) {
  const std::string said = NormalizeDapoAnswer(DapoAnswer(Tail(response, kLineTail)));
  const auto boxed = DapoBoxed(Tail(response, kBoxTail));
  Finding found = said == kNoDapoAnswer && boxed
                      ? RightIf(*boxed == truth, std::string(*boxed))
                      : RightIf(said == NormalizeDapoAnswer(truth), said);
  found.wrong_is_minus = true;
  return found;
}

Result<Finding> Math(const RewardSample& sample, std::string_view response, const RuleOptions&) {
  KEEL_ASSIGN_OR_RETURN(const std::string text, TruthText(sample));
  const std::string truth = LastBoxed(text).value_or(text);
  if (AnswerForm(truth).empty()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("ground_truth: expected an answer of 1 to {} bytes, found '{}'",
                              kMaxMathAnswer, text.substr(0, 60)));
  }
  if (IsOfDapo(sample.data_source)) return MathOfDapo(response, text);
  const auto answer = LastBoxed(response);
  if (!answer) return Finding{};
  return RightIf(SameAnswer(*answer, truth), AnswerForm(*answer));
}

struct CountdownTask {
  Rational target;
  std::vector<Rational> numbers;
};

Result<CountdownTask> ReadCountdown(const Json& truth) {
  const auto wrong = [&] {
    return Status(
        StatusCode::kInvalidData,
        fmt::format("ground_truth: expected {{\"target\": 24, \"numbers\": [1, 2, 3]}}, "
                    "found {}",
                    truth.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80)));
  };
  if (!truth.is_object() || !truth.contains("target") || !truth.contains("numbers") ||
      !truth["numbers"].is_array()) {
    return wrong();
  }
  const auto read = [](const Json& number) {
    return number.is_number() ? Evaluate(number.dump()) : std::nullopt;
  };
  CountdownTask task;
  const auto target = read(truth["target"]);
  if (!target) return wrong();
  task.target = *target;
  for (const Json& number : truth["numbers"]) {
    const auto value = read(number);
    if (!value) return wrong();
    task.numbers.push_back(*value);
  }
  return task;
}

// The expression that a response gives for its answer.
std::optional<std::string> CountdownExpression(std::string_view response) {
  std::string_view answer;
  const size_t close = response.rfind("</answer>");
  const size_t open = close == std::string_view::npos ? close : response.rfind("<answer>", close);
  if (open != std::string_view::npos) {
    answer = response.substr(open + 8, close - open - 8);
  } else {
    const std::string_view trimmed = Trim(response);
    const size_t line = trimmed.rfind('\n');
    answer = line == std::string_view::npos ? trimmed : trimmed.substr(line + 1);
  }
  std::string text(Trim(answer.substr(0, answer.find('='))));
  if (text.empty() || text.find_first_not_of("0123456789+-*/(). \t") != std::string::npos)
    return std::nullopt;
  return text;
}

Result<Finding> Countdown(const RewardSample& sample, std::string_view response,
                          const RuleOptions&) {
  KEEL_ASSIGN_OR_RETURN(CountdownTask task, ReadCountdown(sample.ground_truth));
  const auto text = CountdownExpression(response);
  if (!text) return Finding{};
  std::vector<Rational> used;
  const auto value = Evaluate(*text, &used);
  if (!value) return Finding{};
  for (const Rational& number : used) {
    const auto at = std::find(task.numbers.begin(), task.numbers.end(), number);
    if (at == task.numbers.end()) return RightIf(false, *text);
    task.numbers.erase(at);
  }
  return RightIf(task.numbers.empty() && *value == task.target, *text);
}

using Rule = Result<Finding> (*)(const RewardSample&, std::string_view, const RuleOptions&);

// Nothing for what is no rule.
Rule FindRule(RewardType type) {
  switch (type) {
    case RewardType::kExact:
      return Exact;
    case RewardType::kArithmetic:
      return Arithmetic;
    case RewardType::kCountdown:
      return Countdown;
    case RewardType::kGsm8k:
      return Gsm8k;
    case RewardType::kMath:
      return Math;
    case RewardType::kAuto:
    case RewardType::kCommand:
    case RewardType::kHttp:
    case RewardType::kPython:
      break;
  }
  return nullptr;
}

Status NoRule(const std::string& data_source) {
  return Status(StatusCode::kInvalidData,
                fmt::format("no rule for the data source '{}': set reward.type", data_source));
}

class RuleVerifier : public Verifier {
 public:
  RuleVerifier(RuleOptions options, std::optional<FormatPattern> format)
      : options_(std::move(options)), format_(std::move(format)) {}

  std::vector<RewardResult> Verify(std::span<const RewardSample> samples) override {
    std::vector<RewardResult> results;
    for (const RewardSample& sample : samples) results.push_back(Score(sample));
    return results;
  }

 private:
  RewardResult Score(const RewardSample& sample) const {
    RewardResult result;
    result.id = sample.id;
    std::string_view response = sample.response;
    if (response.size() > kMaxResponse) {
      response.remove_prefix(response.size() - kMaxResponse);
      // Not from within a character.
      for (int i = 0; i < 3 && (response.front() & '\xc0') == '\x80'; ++i)
        response.remove_prefix(1);
    }

    const auto type = options_.type == RewardType::kAuto ? RuleOfDataSource(sample.data_source)
                                                         : std::optional(options_.type);
    if (!type) {
      result.error = NoRule(sample.data_source).message();
      return result;
    }
    Result<Finding> found = FindRule(*type)(sample, response, options_);
    if (!found.ok()) {
      result.error = found.status().message();
      return result;
    }
    const bool right = found->verdict == Verdict::kRight;
    const double nothing = found->wrong_is_minus ? -1 : 0;
    const double wrong = found->wrong_is_minus ? -1 : options_.format_score;
    result.score = right ? 1 : found->verdict == Verdict::kWrong ? wrong : nothing;
    result.answer = std::move(found->answer);
    result.extra["acc"] = right ? 1 : 0;
    if (format_) {
      const Result<bool> matches = format_->Matches(response);
      if (!matches.ok()) {
        result.error = matches.status().message();
        return result;
      }
      result.extra["format"] = *matches ? 1 : 0;
      result.score = *matches ? result.score * options_.format_weight : nothing;
    }
    return result;
  }

  RuleOptions options_;
  std::optional<FormatPattern> format_;
};

}  // namespace

std::vector<RewardType> RewardRules() {
  std::vector<RewardType> rules;
  for (const auto& [type, name] : kEnumNames<RewardType>) {
    if (FindRule(type) != nullptr) rules.push_back(type);
  }
  return rules;
}

std::optional<RewardType> RuleOfDataSource(const std::string& data_source) {
  std::string name = data_source;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (const auto type = ParseName<RewardType>(name); type && FindRule(*type) != nullptr)
    return type;
  // Tasks of `keel data make`.
  for (const char* exact : {"copy", "reverse", "parity", "sort"}) {
    if (name == exact) return RewardType::kExact;
  }
  for (const char* arithmetic : {"addition", "subtraction", "multiplication"}) {
    if (name == arithmetic) return RewardType::kArithmetic;
  }
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (has("gsm8k")) return RewardType::kGsm8k;
  if (has("countdown")) return RewardType::kCountdown;
  if (has("math") || has("aime") || has("amc")) return RewardType::kMath;
  return std::nullopt;
}

Status CheckGroundTruth(RewardType rule, const std::string& data_source, const Json& ground_truth) {
  const auto type = rule == RewardType::kAuto ? RuleOfDataSource(data_source) : std::optional(rule);
  if (!type) return NoRule(data_source);
  const Rule find = FindRule(*type);
  if (find == nullptr) return Status::Ok();
  RewardSample sample;
  sample.data_source = data_source;
  sample.ground_truth = ground_truth;
  // Each reads the ground truth before it looks for an answer.
  return find(sample, "", {}).status();
}

Result<std::unique_ptr<Verifier>> MakeRuleVerifier(const RuleOptions& options) {
  if (options.type != RewardType::kAuto && FindRule(options.type) == nullptr) {
    return Status(StatusCode::kConfig,
                  fmt::format("reward.type is {}, which is no rule", keel::NameOf(options.type)));
  }
  std::optional<FormatPattern> format;
  if (options.format_pattern) {
    KEEL_ASSIGN_OR_RETURN(format, FormatPattern::Compile(*options.format_pattern));
  }
  return std::unique_ptr<Verifier>(std::make_unique<RuleVerifier>(options, std::move(format)));
}

}  // namespace keel::rewards
