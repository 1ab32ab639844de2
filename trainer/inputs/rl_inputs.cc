#include "trainer/inputs/rl_inputs.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rewards/reward_check.h"
#include "trainer/data/rows/chat_rules.h"
#include "trainer/inputs/run_turns.h"

namespace keel::trainer {

Result<RunData<rl::PreferenceSet>> LoadPreferenceData(const Config& c, const ModelSource& model) {
  // The last token is never an input.
  KEEL_RETURN_IF_ERROR(CheckPositions(model::LongestTrained(model.config),
                                      c.data.max_prompt_length + c.data.max_response_length - 1,
                                      "data.max_prompt_length and data.max_response_length"));
  rl::PreferenceOptions options;
  options.max_prompt_length = c.data.max_prompt_length;
  options.max_response_length = c.data.max_response_length;
  options.truncation = c.data.truncation;
  options.vocab_size = model.config.vocab_size;
  options.prompt_key = c.data.prompt_key;
  options.chosen_key = c.data.chosen_key;
  options.rejected_key = c.data.rejected_key;
  options.cache = CacheOf(c);
  return LoadBoth<rl::PreferenceSet>(c, [&](const std::vector<std::string>& files) {
    return rl::PreferenceSet::Load(files, options, model.text);
  });
}

rl::PromptOptions PromptOptionsOf(const Config& c, int64_t vocab_size) {
  rl::PromptOptions options;
  options.vocab_size = vocab_size;
  options.rules = rewards::RulesOf(c.reward);
  options.refuse_unscored = c.reward.on_error == rewards::OnRewardError::kStop;
  options.question_instruction = c.data.question_instruction;
  options.strict_gsm8k = [&c](const std::string& source) {
    return rewards::IsStrictGsm8k(c.reward, source);
  };
  options.prompt_key = c.data.prompt_key;
  options.answer_key = c.data.answer_key;
  options.source_key = c.data.reward_fn_key;
  options.max_response_key = c.data.max_response_length_key;
  return options;
}

Result<RunData<rl::PromptSet>> LoadPromptData(const Config& c, const ModelSource& model) {
  KEEL_RETURN_IF_ERROR(CheckPositions(model::LongestGenerated(model.config),
                                      c.data.max_prompt_length + c.data.max_response_length,
                                      "data.max_prompt_length and data.max_response_length"));
  if (const auto& most = c.actor_rollout_ref.rollout.max_model_len) {
    KEEL_RETURN_IF_ERROR(CheckPositions(model::LongestGenerated(model.config), *most,
                                        "actor_rollout_ref.rollout.max_model_len"));
  }
  KEEL_RETURN_IF_ERROR(rewards::CheckReward(c.reward));
  KEEL_RETURN_IF_ERROR(rewards::RewardFileDigests(c.reward).status());
  rl::PromptOptions options = PromptOptionsOf(c, model.config.vocab_size);
  options.max_prompt_length = c.data.max_prompt_length;
  options.truncation = c.data.truncation;
  options.filter_overlong_prompts = c.data.filter_overlong_prompts;
  options.cache = CacheOf(c);
  // Prompts show the run's tools.
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<const RunTurns> turns, OpenRunTurns(c, model));
  TextRules text = model.text;
  if (turns != nullptr) {
    options.environments = turns::NamesOf(turns->environments);
    if (!turns->tools.empty()) {
      ChatRules chat = *model.text.chat;
      chat.tools = turns::SchemasOf(turns->tools);
      text.chat = std::make_shared<const ChatRules>(std::move(chat));
    }
  }
  KEEL_ASSIGN_OR_RETURN(auto data,
                        LoadBoth<rl::PromptSet>(c, [&](const std::vector<std::string>& files) {
                          return rl::PromptSet::Load(files, options, text);
                        }));
  if (rewards::GoesOnWithoutAnyScore(c.reward.on_error)) return data;
  const char* const of_val = c.data.val_split > 0 ? "data.val_split" : "data.val_files";
  for (const auto& [key, set] :
       {std::pair("data.train_files", &data.train), std::pair(of_val, &data.val)}) {
    const Status some = set->CheckSomeScored(options.rules);
    if (!some.ok()) return Status(some.code(), fmt::format("{}: {}", key, some.message()));
  }
  return data;
}

}  // namespace keel::trainer
