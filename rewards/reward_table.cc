#include "rewards/reward_table.h"

namespace keel::rewards {

void AddVerifierOptions(options::Schema& s, const std::string& prefix, VerifierSection& w) {
  s.Add(prefix + "type", w.type,
        "A rule, `command`, `http` or `python`; `auto` takes the file of `custom_reward_function` "
        "where one is named, and else chooses a rule by the row's `data.reward_fn_key`.")
      .OfSamples();
  s.Add(prefix + "method", w.method,
        "gsm8k: `strict` wants `#### 42`, `flexible` takes the last number.")
      .OfSamples();
  s.Add(prefix + "format_score", w.format_score,
        "Score of an answer that has the right form and is wrong.")
      .OfSamples();
  s.Add(prefix + "format_pattern", w.format_pattern,
        "A regular expression (PCRE2) that the whole response must match, or the score is 0.")
      .OfSamples();
  s.Add(prefix + "format_weight", w.format_weight,
        "With `format_pattern`: factor of the score of a response that matches.")
      .OfSamples();
  CustomRewardFunctionSection& f = w.custom_reward_function;
  s.Add(prefix + "custom_reward_function.path", f.path,
        "A Python file with the function that scores a response, as verl calls it: "
        "`compute_score(data_source, solution_str, ground_truth, extra_info)`.")
      .PerNode();
  s.Add(prefix + "custom_reward_function.name", f.name, "The function's name in the file.")
      .OfSamples();
  s.Add(prefix + "custom_reward_function.reward_kwargs", f.reward_kwargs,
        "Further arguments of every call, by name.")
      .OfSamples();
  s.Add(prefix + "python", w.python,
        "The interpreter of `custom_reward_function`; null: `$KEEL_PYTHON`, or `python3` of PATH.")
      .PerNode();
  s.Add(prefix + "start_timeout_seconds", w.start_timeout_seconds,
        "Limit of the import of `custom_reward_function`, at the start and after a restart.")
      .Range(0.001, 86'400)
      .Unit("seconds");
  s.Add(prefix + "command", w.command,
        "Program and arguments; reads a JSON object a line from its input, writes one a line.")
      .OfSamples();
  s.Add(prefix + "url", w.url,
        "http:// or https:// address that takes {\"samples\": [...]} and gives {\"results\": "
        "[...]}.")
      .Secret()
      .OfSamples();
  s.Add(prefix + "ca_file", w.ca_file,
        "With an https `url`: a PEM file of the authorities to trust; null: the system's.");
  s.Add(prefix + "bearer_token_env", w.bearer_token_env,
        "With `url`: the environment variable that holds a token, sent as `Authorization: Bearer`; "
        "to https, or to this machine, alone.");
  s.Add(prefix + "batch_size", w.batch_size,
        "Samples per request to a command or address; a Python function is called for one at a "
        "time.")
      .Range(1)
      .Unit("samples");
  s.Add(prefix + "timeout_seconds", w.timeout_seconds,
        "Limit of one request, or of one call of a Python function.")
      .Range(0.001, 86'400)
      .Unit("seconds");
  s.Add(prefix + "max_retries", w.max_retries, "Further tries of a request that failed.")
      .Range(0, 1000);
}

}  // namespace keel::rewards
