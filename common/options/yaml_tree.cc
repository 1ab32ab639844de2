#include "common/options/yaml_tree.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>

#include "common/text.h"

namespace keel::options {

namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxDepth = 32;

struct TooDeep {};

Position PositionOf(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Whether the quote at `at` has its end: the library takes the end of the text for one.
bool QuoteEnds(std::string_view text, size_t at) {
  if (at >= text.size() || (text[at] != '"' && text[at] != '\'')) return true;
  const char quote = text[at];
  for (size_t i = at + 1; i < text.size(); ++i) {
    const bool doubled = quote == '\'' && text.substr(i, 2) == "''";
    if (doubled || (quote == '"' && text[i] == '\\')) {
      ++i;
    } else if (text[i] == quote) {
      return true;
    }
  }
  return false;
}

// What to do about what the library says of the line.
std::string AdviceFor(const std::string& said, std::string_view line) {
  const size_t indent = line.find_first_not_of(" \t");
  if (line.substr(0, indent).find('\t') != std::string_view::npos)
    return "the line is indented with a tab: write spaces";
  if (said == "illegal map value")
    return "indent it as the keys beside it; a text with \": \" in it stands in quotes";
  if (said.starts_with("end of ") && said.ends_with(" not found"))
    return "is a bracket above it not closed, or the line not indented as those beside it?";
  return "";
}

std::string_view LineOf(std::string_view text, int number) {
  for (; number > 0; --number) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text.substr(0, text.find('\n'));
}

class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, std::vector<Problem>& problems)
      : text_(text), problems_(problems) {
    if (text_.starts_with(kByteOrderMark)) text_.remove_prefix(kByteOrderMark.size());
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Refuse(mark, anchor, "");
    Put(MakeNode(YamlNode::Kind::kNull, mark));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Say(mark, "aliases (*name) are not supported", "write the value out");
    Put(MakeNode(YamlNode::Kind::kNull, mark));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Refuse(mark, anchor, tag);
    YamlNode node = MakeNode(YamlNode::Kind::kScalar, mark);
    node.text = value;
    node.quoted = tag == "!";
    if (node.quoted && !QuoteEnds(text_, static_cast<size_t>(mark.pos)))
      Say(mark, "the quote that begins here does not end", "close it");
    // The library reads the escapes "\\_" and "\\N" as single bytes of Latin-1.
    if (FindNotUtf8(value) != std::string::npos) {
      Say(mark, fmt::format("\"{}\": an escape in it gives no UTF-8 text", Printable(value)),
          "write the character itself");
      node.text = Printable(value);
    }
    const bool null = !node.quoted && (value == "null" || value == "~" || value == "Null" ||
                                       value == "NULL" || value.empty());
    if (null) node.kind = YamlNode::Kind::kNull;
    Put(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Refuse(mark, anchor, tag);
    Open(MakeNode(YamlNode::Kind::kSequence, mark));
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Refuse(mark, anchor, tag);
    Open(MakeNode(YamlNode::Kind::kMap, mark));
  }
  void OnMapEnd() override { Close(); }

  YamlNode Take() { return std::move(root_); }

 private:
  struct Level {
    YamlNode node;
    bool have_key = false;
    std::string key;
    Position key_position;
    std::unordered_map<std::string, int> lines;  // of the keys so far
  };

  static YamlNode MakeNode(YamlNode::Kind kind, const YAML::Mark& mark) {
    YamlNode node;
    node.kind = kind;
    node.position = PositionOf(mark);
    return node;
  }
  void Say(const YAML::Mark& mark, std::string text, std::string advice) {
    problems_.push_back({PositionOf(mark), std::move(text), std::move(advice)});
  }
  void Refuse(const YAML::Mark& mark, YAML::anchor_t anchor, const std::string& tag) {
    if (anchor != 0)
      Say(mark, "anchors (&name) are not supported", "write the value out where it is used");
    if (!tag.empty() && tag != "?" && tag != "!")
      Say(mark, fmt::format("tag {} is not supported", tag), "remove it");
  }
  void Open(YamlNode node) {
    if (static_cast<int>(levels_.size()) >= kMaxDepth) {
      problems_.push_back(
          {node.position, fmt::format("nested deeper than {} levels", kMaxDepth), ""});
      throw TooDeep{};
    }
    Level level;
    level.node = std::move(node);
    levels_.push_back(std::move(level));
  }
  void Close() {
    YamlNode node = std::move(levels_.back().node);
    levels_.pop_back();
    Put(std::move(node));
  }
  void Put(YamlNode node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == YamlNode::Kind::kSequence) {
      level.node.items.push_back(std::move(node));
      return;
    }
    if (!level.have_key) {
      level.have_key = true;
      level.key = node.text;
      level.key_position = node.position;
      if (node.kind != YamlNode::Kind::kScalar) {
        problems_.push_back({node.position, "a key must be a plain word", ""});
      } else if (node.text == "<<" && !node.quoted) {
        problems_.push_back(
            {node.position, "merge keys (<<) are not supported", "write the keys out"});
      }
      return;
    }
    level.have_key = false;
    const auto [first, added] = level.lines.emplace(level.key, level.key_position.line);
    if (!added) {
      problems_.push_back({level.key_position,
                           fmt::format("duplicate key \"{}\", first given at line {}",
                                       Printable(level.key), first->second),
                           "remove one of the two"});
      return;
    }
    level.node.entries.push_back({level.key, std::move(node)});
    level.node.key_positions.push_back(level.key_position);
  }

  std::string_view text_;
  std::vector<Problem>& problems_;
  std::vector<Level> levels_;
  YamlNode root_;
};

}  // namespace

const YamlNode* YamlNode::Find(std::string_view key) const {
  for (const auto& [name, node] : entries) {
    if (name == key) return &node;
  }
  return nullptr;
}

YamlNode ParseYaml(const Source& source, std::vector<Problem>& problems) {
  if (source.text.size() > kMaxBytes) {
    problems.push_back(
        {{}, fmt::format("{} bytes, at most {} are read", source.text.size(), kMaxBytes), ""});
    return {};
  }
  if (const size_t at = FindNotUtf8(source.text); at != std::string::npos) {
    const std::string_view before = std::string_view(source.text).substr(0, at);
    const auto lines = std::count(before.begin(), before.end(), '\n');
    const size_t start = before.rfind('\n') + 1;  // npos + 1 is 0
    problems.push_back(
        {{static_cast<int>(lines) + 1, static_cast<int>(at - start) + 1},
         fmt::format("byte {} is no UTF-8 text", Printable(source.text.substr(at, 1))),
         "save the text as UTF-8"});
    return {};
  }
  std::istringstream stream(source.text);
  TreeBuilder builder(source.text, problems);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    TreeBuilder second(source.text, problems);
    if (parser.HandleNextDocument(second)) {
      problems.push_back(
          {{}, "more than one YAML document", "keep one, remove the \"---\" between them"});
    }
  } catch (const YAML::Exception& error) {
    problems.push_back({PositionOf(error.mark), error.msg,
                        AdviceFor(error.msg, LineOf(source.text, error.mark.line))});
  } catch (const TooDeep&) {
  }
  return builder.Take();
}

std::string Render(const Source& source, const Problem& problem) {
  std::string text = source.name;
  if (problem.position.line > 0)
    text += fmt::format(":{}:{}", problem.position.line, problem.position.column);
  text += ": error: " + problem.text;
  if (problem.position.line > 0) {
    std::istringstream lines(source.text);
    std::string line;
    for (int i = 0; i < problem.position.line && std::getline(lines, line); ++i) {
    }
    std::replace(line.begin(), line.end(), '\t', ' ');
    line = Printable(line, 160);
    const auto indent = static_cast<size_t>(std::clamp(problem.position.column - 1, 0, 160));
    text += fmt::format("\n  {}\n  {}^", line, std::string(indent, ' '));
  }
  if (!problem.advice.empty()) text += "\n  " + problem.advice;
  return text;
}

}  // namespace keel::options
