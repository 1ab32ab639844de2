#include "tools/data/data_show.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/terminal.h"
#include "common/text.h"
#include "tools/number_check.h"
#include "trainer/config/config.h"
#include "trainer/inputs/lm_inputs.h"
#include "trainer/inputs/rl_inputs.h"
#include "trainer/inputs/run_model.h"

namespace keel::tools {

namespace {

struct ShowArguments {
  std::string path;
  std::vector<std::string> overrides;
  int64_t row = 0;
  int64_t count = 1;
  bool json = false;
};

// Where learnt text begins and ends: in colour for people, in brackets that hardly any text has for
// files.
struct Marks {
  const char* begin = ::isatty(STDOUT_FILENO) != 0 ? "\x1b[30;42m" : "\u27e6";
  const char* end = ::isatty(STDOUT_FILENO) != 0 ? "\x1b[0m" : "\u27e7";
};

// Text of a file, which must not reach the terminal as commands; line breaks stay.
std::string Visible(std::string_view text) {
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += c;
    }
  }
  return shown;
}

class Shower {
 public:
  Shower(const trainer::Config& config, const ShowArguments& arguments)
      : config_(config),
        arguments_(arguments),
        model_(ValueOrThrow(trainer::OpenRunModel(config))) {}

  void Run() {
    for (const std::string& warning : model_.warnings)
      WriteStderr(fmt::format("warning: {}\n", warning));
    if (config_.trainer.task == trainer::TaskKind::kRl) {
      ShowAll(
          ValueOrThrow(trainer::LoadPromptData(config_, model_)), "prompts",
          [](const auto& set, int64_t i) { return set.Get(i).id; },
          [this](const auto& set, int64_t i) { ShowPrompt(set.Get(i)); });
    } else if (config_.trainer.task == trainer::TaskKind::kDpo) {
      ShowAll(
          ValueOrThrow(trainer::LoadPreferenceData(config_, model_)), "pairs",
          [](const auto& set, int64_t i) { return set.Get(i).id; },
          [this](const auto& set, int64_t i) { ShowPair(set.Get(i)); });
    } else {
      ShowAll(
          ValueOrThrow(trainer::LoadLmData(config_, model_)), "samples",
          [](const auto& set, int64_t i) { return set.id(i); },
          [this](const auto& set, int64_t i) { ShowSample(set.Get(i)); });
    }
  }

 private:
  template <typename Set, typename IdOf, typename Show>
  void ShowAll(const trainer::RunData<Set>& data, const char* what, const IdOf& id_of,
               const Show& show) {
    for (const std::string& warning : data.Warnings())
      WriteStderr(fmt::format("warning: {}\n", warning));
    const int64_t size = data.train.size();
    if (arguments_.row >= size) {
      throw Error(StatusCode::kConfig,
                  fmt::format("--row {}: there are {} {} to train on", arguments_.row, size, what));
    }
    const int64_t end = std::min(size, arguments_.row + arguments_.count);
    for (int64_t i = arguments_.row; i < end; ++i) {
      id_ = id_of(data.train, i);
      show(data.train, i);
    }
  }

  void ShowSample(const trainer::Sample& sample) {
    // Nothing comes before the first of a piece, which is no target.
    std::vector<uint8_t> learn = sample.learn;
    for (const int64_t piece : sample.pieces)
      if (static_cast<size_t>(piece) < learn.size()) learn[static_cast<size_t>(piece)] = 0;
    if (arguments_.json) {
      std::vector<int32_t> labels(sample.tokens.begin(), sample.tokens.end());
      for (size_t i = 0; i < labels.size(); ++i)
        if (learn[i] == 0) labels[i] = -100;
      Json json = {{"row", id_}, {"input_ids", Ids(sample.tokens)}, {"labels", labels}};
      if (sample.pieces.size() > 1) json["pieces"] = sample.pieces;  // where each begins
      return Print(json);
    }
    Head(fmt::format("{} tokens, {} learnt", sample.tokens.size(), sample.targets()));
    Text(sample.tokens, learn);
  }

  void ShowPrompt(const trainer::rl::Prompt& prompt) {
    if (arguments_.json) {
      return Print({{"row", id_},
                    {"prompt_ids", prompt.tokens},
                    {"data_source", prompt.data_source},
                    {"ground_truth", prompt.ground_truth},
                    {"extra_info", prompt.extra_info}});
    }
    Head(fmt::format(
        "a prompt of {} tokens, data source \"{}\", ground truth {}", prompt.tokens.size(),
        Printable(prompt.data_source),
        Visible(prompt.ground_truth.dump(-1, ' ', false, Json::error_handler_t::replace))));
    Text(prompt.tokens, std::vector<uint8_t>(prompt.tokens.size(), 0));
  }

  void ShowPair(const trainer::rl::PreferencePair& pair) {
    const auto prompt =
        static_cast<size_t>(std::count(pair.chosen.learn.begin(), pair.chosen.learn.end(), 0));
    const auto answer = [&](const trainer::TokenRow& row) {
      return std::vector<int32_t>(row.tokens.begin() + static_cast<std::ptrdiff_t>(prompt),
                                  row.tokens.end());
    };
    if (arguments_.json) {
      const auto& all = pair.chosen.tokens;
      return Print({{"row", id_},
                    {"prompt_input_ids", Ids(std::span(all).first(prompt))},
                    {"chosen_input_ids", answer(pair.chosen)},
                    {"rejected_input_ids", answer(pair.rejected)}});
    }
    for (const auto& [name, row] :
         {std::pair{"chosen", &pair.chosen}, std::pair{"rejected", &pair.rejected}}) {
      Head(fmt::format("{}: a prompt of {} tokens, an answer of {}", name, prompt,
                       row->tokens.size() - prompt));
      Text(row->tokens, row->learn);
    }
  }

  void Head(const std::string& text) const { fmt::print("# row {}: {}\n", id_, text); }
  static void Print(const Json& json) {
    fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  // Stretches of tokens of one kind; ids where there is no tokenizer.
  void Text(std::span<const int32_t> tokens, std::span<const uint8_t> learn) const {
    const Marks marks;
    std::string shown;
    for (size_t begin = 0; begin < tokens.size();) {
      size_t end = begin;
      while (end < tokens.size() && learn[end] == learn[begin]) ++end;
      const std::string text = Decode(tokens.subspan(begin, end - begin));
      shown += learn[begin] != 0 ? marks.begin + text + marks.end : text;
      begin = end;
    }
    fmt::print("{}\n", shown);
  }

  static std::vector<int32_t> Ids(std::span<const int32_t> ids) { return {ids.begin(), ids.end()}; }

  std::string Decode(std::span<const int32_t> ids) const {
    if (model_.tokenizer == nullptr) return fmt::format("{} ", fmt::join(ids, " "));
    model::DecodeOptions options;
    options.skip_special_tokens = false;
    return Visible(model_.tokenizer->Decode(ids, options));
  }

  const trainer::Config& config_;
  const ShowArguments& arguments_;
  trainer::ModelSource model_;
  int64_t id_ = 0;
};

void Show(const ShowArguments& a) {
  const auto loaded = ValueOrThrow(trainer::LoadConfig(a.path, a.overrides));
  Shower(loaded.config, a).Run();
}

}  // namespace

void AddShowCommand(CLI::App& data) {
  auto arguments = std::make_shared<ShowArguments>();
  CLI::App* show = data.add_subcommand(
      "show",
      "What a run of this configuration learns from: a sample's text with what is learnt marked, "
      "RL's prompt as the model sees it, DPO's answers");
  show->footer(
      "Examples:\n"
      "  keel data show run.yaml --row 3\n"
      "  keel data show configs/grpo.yaml 'data.train_files=[train.jsonl]' "
      "actor_rollout_ref.model.path=exported --count 2\n"
      "  keel data show run.yaml --json > ids.jsonl");
  show->add_option("CONFIG", arguments->path, "YAML file")->required();
  show->add_option("overrides", arguments->overrides, "key=value, +key=value, ~key");
  show->add_option("--row", arguments->row, "The first to show, from 0, in the files' order")
      ->capture_default_str()
      ->check(AtLeast(0));
  show->add_option("--count", arguments->count, "How many")
      ->capture_default_str()
      ->check(AtLeast(1));
  show->add_flag("--json", arguments->json, "Print ids, with labels, instead: a line each");
  show->callback([arguments] { Show(*arguments); });
}

}  // namespace keel::tools
