#include "model/chat_template/builtins/pretty_text.h"

#include <algorithm>

#include "common/python_space.h"
#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/jinja/limits.h"
#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

constexpr int64_t kWidth = 80;

using Entry = std::pair<Value, Value>;

// A list or a tuple, and not what groupby gives, which has a text of its own.
bool IsList(const Value& value) {
  return value.Is(Kind::kList) || (value.Is(Kind::kTuple) && !value.is_group());
}

// Where Python falls back to the names of types and to addresses, an order that only types can give
// is kept.
bool SafeLess(const Value& a, const Value& b) {
  const bool orders = (a.is_number() && b.is_number()) || (a.is_string() && b.is_string());
  if (orders) return Less(a, b);
  if (TypeName(a) != TypeName(b)) return TypeName(a) < TypeName(b);
  if (a.is_none()) return false;
  Fail("pprint of a dict with such keys is not supported");
}

std::vector<Entry> Sorted(const Dict& dict) {
  std::vector<Entry> entries = dict.entries;
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return SafeLess(a.first, b.first); });
  return entries;
}

std::string Repr(const Value& value) {
  std::string out;
  AppendRepr(value, &out);
  return out;
}

int64_t Width(std::string_view text) { return CountCharacters(text); }

// On one line.
std::string OneLine(Machine& machine, const Value& value) {
  std::string out;
  if (value.Is(Kind::kDict)) {
    for (const auto& [key, item] : Sorted(value.dict())) {
      out += (out.empty() ? "{" : ", ") + OneLine(machine, key) + ": " + OneLine(machine, item);
    }
    out += out.empty() ? "{}" : "}";
  } else if (IsList(value)) {
    const bool list = value.Is(Kind::kList);
    out += list ? "[" : "(";
    for (const Value& item : value.items()) {
      if (&item != &value.items().front()) out += ", ";
      out += OneLine(machine, item);
    }
    out += list ? "]" : value.items().size() == 1 ? ",)" : ")";
  } else {
    out = Repr(value);
  }
  machine.Charge(out.size());
  return out;
}

// `indent`: the column that a value begins at; `allowance`: what follows its last line, in
// characters; `level`: of nesting.
class PrettyWriter {
 public:
  explicit PrettyWriter(Machine& machine) : machine_(machine) {}

  void Write(const Value& value, int64_t indent, int64_t allowance, int level) {
    const std::string line = OneLine(machine_, value);
    if (Width(line) <= kWidth - indent - allowance) return void(out_ += line);
    if (value.Is(Kind::kDict)) {
      WriteDict(value.dict(), indent, allowance + 1, level + 1);
    } else if (IsList(value)) {
      const bool list = value.Is(Kind::kList);
      const std::string_view end = list ? "]" : value.items().size() == 1 ? ",)" : ")";
      out_ += list ? "[" : "(";
      WriteItems(value.items(), indent + 1, allowance + static_cast<int64_t>(end.size()),
                 level + 1);
      out_ += end;
    } else if (value.is_string() && !value.is_safe()) {
      WriteText(value.text(), indent, allowance, level + 1);
    } else {
      out_ += line;
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  void NewLine(int64_t indent) {
    const auto spaces = static_cast<size_t>(indent);
    if (out_.size() + spaces > kMaxTextBytes) Fail("the text of a value is too long");
    out_ += "\n" + std::string(spaces, ' ');
  }

  void WriteDict(const Dict& dict, int64_t indent, int64_t allowance, int level) {
    out_ += "{";
    const std::vector<Entry> entries = Sorted(dict);
    for (size_t i = 0; i < entries.size(); ++i) {
      const bool last = i + 1 == entries.size();
      const std::string key = OneLine(machine_, entries[i].first);
      out_ += key + ": ";
      Write(entries[i].second, indent + 1 + Width(key) + 2, last ? allowance : 1, level);
      if (last) break;
      out_ += ",";
      NewLine(indent + 1);
    }
    out_ += "}";
  }

  void WriteItems(const ValueList& items, int64_t indent, int64_t allowance, int level) {
    for (size_t i = 0; i < items.size(); ++i) {
      const bool last = i + 1 == items.size();
      Write(items[i], indent, last ? allowance : 1, level);
      if (last) break;
      out_ += ",";
      NewLine(indent);
    }
  }

  // As several literals, cut behind its lines and, where these are too long, behind words.
  void WriteText(const std::string& text, int64_t indent, int64_t allowance, int level) {
    const bool whole = level == 1;
    if (whole) {
      ++indent;
      ++allowance;
    }
    std::vector<std::string> chunks;
    const std::vector<std::string_view> lines = SplitLines(text, true);
    std::string line;
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool last = i + 1 == lines.size();
      line = Repr(Value::String(std::string(lines[i])));
      if (Width(line) <= kWidth - indent - (last ? allowance : 0)) {
        chunks.push_back(line);
      } else {
        CutAtWords(lines[i], kWidth - indent, last ? allowance : 0, &chunks);
      }
    }
    if (chunks.size() == 1) return void(out_ += line);
    if (whole) out_ += "(";
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (i > 0) NewLine(indent);
      out_ += chunks[i];
    }
    if (whole) out_ += ")";
  }

  // `allowance` is taken from the last word's width alone.
  static void CutAtWords(std::string_view line, int64_t width, int64_t allowance,
                         std::vector<std::string>* chunks) {
    std::string current;
    for (size_t at = 0; at < line.size();) {
      // A word with the white space behind it.
      size_t end = at;
      bool spaced = false;
      for (size_t next = at; next < line.size(); end = next) {
        const bool space = IsPythonSpace(NextCharacter(line, &next));
        if (spaced && !space) break;
        spaced |= space;
      }
      const std::string part(line.substr(at, end - at));
      at = end;
      const int64_t room = at == line.size() ? width - allowance : width;
      if (Width(Repr(Value::String(current + part))) > room) {
        if (!current.empty()) chunks->push_back(Repr(Value::String(current)));
        current = part;
      } else {
        current += part;
      }
    }
    if (!current.empty()) chunks->push_back(Repr(Value::String(current)));
  }

  Machine& machine_;
  std::string out_;
};

}  // namespace

std::string PrettyText(Machine& machine, const Value& value) {
  PrettyWriter writer(machine);
  writer.Write(value, 0, 0, 0);
  return writer.Take();
}

}  // namespace keel::model::jinja
