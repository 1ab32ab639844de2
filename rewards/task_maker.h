// Small tasks whose answers can be verified: problem i is a function of (task, seed, i, size), so
// that a file can be made again, longer, or elsewhere. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/enum_names.h"
#include "common/json.h"
#include "common/status.h"

namespace keel::rewards {

struct TaskProblem {
  std::string prompt;
  std::string solution;  // a response that scores 1
  Json ground_truth;     // what the rule of this data source wants
};

// addition        "17+5="               "22"       numbers of up to `size` digits
// multiplication  "7*8="                "56"       likewise
// copy            "copy 4821:"          "4821"     1 to `size` digits
// reverse         "reverse 4821:"       "1284"     likewise
// parity          "parity 0110:"        "0"        1 to `size` bits; 1 when the ones are odd
// countdown       "make 22 of 3 5 7:"   "3*5+7"    `size` numbers, each used once
std::vector<std::string> TaskNames();
int64_t DefaultTaskSize(const std::string& task);

// kUsage when the task is not known, or size is outside 1..9 (countdown: 2..6).
Status CheckTask(const std::string& task, int64_t size);
// Of a task and size that CheckTask accepts.
TaskProblem MakeTaskProblem(const std::string& task, int64_t size, uint64_t seed, uint64_t index);

enum class TaskForm {
  kRl,   // data_source, prompt, answer, extra_info
  kSft,  // prompt, response: to warm a model up
  kDpo,  // prompt, chosen, rejected: the solution, and that of another problem
};
constexpr auto NamesOf(TaskForm) {
  using enum TaskForm;
  return EnumNames<TaskForm>({{kRl, "rl"}, {kSft, "sft"}, {kDpo, "dpo"}});
}
// Problem `index` as a row of training data.
Json MakeTaskRow(const std::string& task, int64_t size, uint64_t seed, uint64_t index,
                 TaskForm form);
// The same row for a model that answers messages: the prompt is the user's, what solves it the
// assistant's; of SFT they are one list, `messages`.
Json InMessages(const Json& row);

}  // namespace keel::rewards
