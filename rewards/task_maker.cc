#include "rewards/task_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "common/hash.h"
#include "common/philox.h"

namespace keel::rewards {

namespace {

constexpr uint64_t kDrawsPerProblem = 64;
constexpr int64_t kLargestTarget = 999;

// The draws of one problem.
class Draws {
 public:
  Draws(const std::string& task, uint64_t seed, uint64_t index)
      : rng_(seed, Hash64("task/" + task)), next_(index * kDrawsPerProblem) {}
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(rng_.Below(next_++, static_cast<uint64_t>(bound)));
  }

 private:
  Philox rng_;
  uint64_t next_;
};

int64_t PowerOfTen(int64_t n) {
  int64_t out = 1;
  while (n-- > 0) out *= 10;
  return out;
}

TaskProblem Arithmetic(Draws& draws, int64_t size, char sign) {
  const int64_t a = draws.Below(PowerOfTen(size));
  const int64_t b = draws.Below(PowerOfTen(size));
  const int64_t result = sign == '+' ? a + b : a * b;
  return {fmt::format("{}{}{}=", a, sign, b), std::to_string(result), std::to_string(result)};
}

// Digits below `base`, up to `size` of them, and what answers them.
TaskProblem OfDigits(Draws& draws, int64_t size, std::string_view name, int64_t base,
                     std::string (*answer_of)(std::string digits)) {
  std::string digits;
  const int64_t length = 1 + draws.Below(size);
  for (int64_t i = 0; i < length; ++i) digits += static_cast<char>('0' + draws.Below(base));
  const std::string answer = answer_of(digits);
  return {fmt::format("{} {}:", name, digits), answer, answer};
}

// Numbers joined one after another by operators that keep the value a positive whole number.
TaskProblem Countdown(Draws& draws, int64_t size) {
  std::vector<int64_t> numbers = {1 + draws.Below(9)};
  int64_t value = numbers[0];
  std::string expression = std::to_string(value);
  bool sum = false;  // the expression's last operator binds less than * and /
  for (int64_t i = 1; i < size; ++i) {
    const int64_t n = 1 + draws.Below(9);
    std::string choices = "+";
    if (value > n) choices += '-';
    if (value * n <= kLargestTarget) choices += '*';
    if (value % n == 0) choices += '/';
    const char sign =
        choices[static_cast<size_t>(draws.Below(static_cast<int64_t>(choices.size())))];
    const bool product = sign == '*' || sign == '/';
    expression = (sum && product ? "(" + expression + ")" : expression) + sign + std::to_string(n);
    sum = !product;
    value = sign == '+' ? value + n : sign == '-' ? value - n : sign == '*' ? value * n : value / n;
    numbers.push_back(n);
  }
  // The order in which they are shown gives nothing away.
  std::vector<int64_t> shown = numbers;
  for (size_t i = shown.size(); i > 1; --i)
    std::swap(shown[i - 1], shown[static_cast<size_t>(draws.Below(static_cast<int64_t>(i)))]);
  return {fmt::format("make {} of {}:", value, fmt::join(shown, " ")), expression,
          Json({{"target", value}, {"numbers", shown}})};
}

struct Task {
  std::string_view name;
  int64_t usual, least, most;  // sizes
  TaskProblem (*make)(Draws& draws, int64_t size);
};
constexpr Task kTasks[] = {
    {"addition", 2, 1, 9, [](Draws& draws, int64_t size) { return Arithmetic(draws, size, '+'); }},
    {"multiplication", 1, 1, 9,
     [](Draws& draws, int64_t size) { return Arithmetic(draws, size, '*'); }},
    {"copy", 4, 1, 9,
     [](Draws& draws, int64_t size) {
       return OfDigits(draws, size, "copy", 10, [](std::string digits) { return digits; });
     }},
    {"reverse", 4, 1, 9,
     [](Draws& draws, int64_t size) {
       return OfDigits(draws, size, "reverse", 10, [](std::string digits) {
         std::reverse(digits.begin(), digits.end());
         return digits;
       });
     }},
    {"parity", 4, 1, 9,
     [](Draws& draws, int64_t size) {
       return OfDigits(draws, size, "parity", 2, [](std::string digits) -> std::string {
         return std::count(digits.begin(), digits.end(), '1') % 2 == 0 ? "0" : "1";
       });
     }},
    {"countdown", 3, 2, 6, Countdown},
};

// Null when there is none.
const Task* FindTask(std::string_view name) {
  const auto* const it = std::ranges::find(kTasks, name, &Task::name);
  return it == std::end(kTasks) ? nullptr : it;
}

}  // namespace

std::vector<std::string> TaskNames() {
  std::vector<std::string> names;
  for (const Task& task : kTasks) names.emplace_back(task.name);
  return names;
}

int64_t DefaultTaskSize(const std::string& task) {
  const Task* const found = FindTask(task);
  return found != nullptr ? found->usual : 4;
}

Status CheckTask(const std::string& task, int64_t size) {
  const Task* const found = FindTask(task);
  if (found == nullptr) {
    return Status(StatusCode::kUsage,
                  fmt::format("task '{}': expected one of {}", task, fmt::join(TaskNames(), ", ")));
  }
  if (size < found->least || size > found->most) {
    return Status(StatusCode::kUsage, fmt::format("--size {} for {}: expected {} to {}", size, task,
                                                  found->least, found->most));
  }
  return Status::Ok();
}

TaskProblem MakeTaskProblem(const std::string& task, int64_t size, uint64_t seed, uint64_t index) {
  const Task* const found = FindTask(task);
  if (found == nullptr)
    throw Error(StatusCode::kInternal, fmt::format("task '{}' was not checked", task));
  Draws draws(task, seed, index);
  return found->make(draws, size);
}

Json MakeTaskRow(const std::string& task, int64_t size, uint64_t seed, uint64_t index,
                 TaskForm form) {
  const TaskProblem problem = MakeTaskProblem(task, size, seed, index);
  if (form == TaskForm::kSft) return {{"prompt", problem.prompt}, {"response", problem.solution}};
  if (form == TaskForm::kRl) {
    return {{"data_source", task},
            {"prompt", problem.prompt},
            {"answer", problem.ground_truth},
            {"extra_info", {{"index", index}}}};
  }
  // Every task has more than one solution, so that the search ends.
  std::string rejected = problem.solution;
  for (uint64_t other = index + 1; rejected == problem.solution; ++other)
    rejected = MakeTaskProblem(task, size, seed, other).solution;
  return {{"prompt", problem.prompt}, {"chosen", problem.solution}, {"rejected", rejected}};
}

Json InMessages(const Json& row) {
  const auto message = [&](const char* role, const char* key) {
    return Json{{"role", role}, {"content", row[key]}};
  };
  if (row.contains("response"))
    return {{"messages", {message("user", "prompt"), message("assistant", "response")}}};
  Json turned = row;
  turned["prompt"] = Json::array({message("user", "prompt")});
  for (const char* key : {"chosen", "rejected"})
    if (row.contains(key)) turned[key] = Json::array({message("assistant", key)});
  return turned;
}

}  // namespace keel::rewards
