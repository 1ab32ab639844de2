#include "model/chat_template/jinja/text_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/jinja/limits.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

void AppendEscape(char32_t c, std::string* out) {
  const auto code = static_cast<uint32_t>(c);
  out->append(code < 0x100     ? fmt::format("\\x{:02x}", code)
              : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                               : fmt::format("\\U{:08x}", code));
}

void AppendQuoted(const std::string& text, std::string* out) {
  // Python takes double quotes only where that saves a backslash.
  const bool doubled = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = doubled ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = NextCharacter(text, &at);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (IsPrintable(c)) {
      out->append(text, begin, at - begin);
    } else {
      AppendEscape(c, out);
    }
  }
  out->push_back(quote);
}

class ReprWriter {
 public:
  explicit ReprWriter(std::string* out) : out_(*out) {}

  void Write(const Value& value) {
    if (out_.size() > kMaxTextBytes) Fail("the text of a value is too long");
    // Namespaces may hold one another to any depth.
    if (depth_ >= kMaxDepth) Fail("the value is nested too deep to print");
    ++depth_;
    WriteOne(value);
    --depth_;
  }

 private:
  void WriteOne(const Value& value) {
    switch (value.kind()) {
      case Kind::kUndefined:
        return void(out_.append("Undefined"));
      case Kind::kNone:
        return void(out_.append("None"));
      case Kind::kBool:
        return void(out_.append(value.boolean() ? "True" : "False"));
      case Kind::kInt:
        return void(out_.append(std::to_string(value.integer())));
      case Kind::kFloat:
        return void(out_.append(FloatText(value.real())));
      case Kind::kString:
        if (value.is_safe()) out_.append("Markup(");
        AppendQuoted(value.text(), &out_);
        if (value.is_safe()) out_.append(")");
        return;
      case Kind::kList:
        return Items("[", value.items(), "]");
      case Kind::kTuple:
        return Items("(", value.items(), value.items().size() == 1 ? ",)" : ")");
      case Kind::kRange:
        return void(out_.append(value.note()));
      case Kind::kView:
        out_.append(value.note());
        return Items("([", value.items(), "])");
      case Kind::kDict:
        return Entries(value.dict());
      case Kind::kNamespace:
        return Namespace(value.dict());
      case Kind::kMacro: {
        const std::string& name = value.macro().definition->target.name;
        out_.append("<Macro ");
        name.empty() ? void(out_.append("anonymous")) : AppendQuoted(name, &out_);
        return void(out_.append(">"));
      }
      case Kind::kLoop: {
        LoopState& loop = value.loop();
        const int64_t length = loop.index0 + 1 + loop.Remaining();
        return void(out_.append(fmt::format("<LoopContext {}/{}>", loop.index0 + 1, length)));
      }
      case Kind::kSelf:
        return void(out_.append("<TemplateReference None>"));
      default:
        Fail("a " + std::string(TypeName(value)) + " has no text to print");
    }
  }

  void Items(std::string_view begin, const ValueList& items, std::string_view end) {
    out_.append(begin);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(", ");
      Write(items[i]);
    }
    out_.append(end);
  }

  void Entries(const Dict& dict) {
    out_.push_back('{');
    for (size_t i = 0; i < dict.entries.size(); ++i) {
      if (i > 0) out_.append(", ");
      Write(dict.entries[i].first);
      out_.append(": ");
      Write(dict.entries[i].second);
    }
    out_.push_back('}');
  }

  // A namespace may hold itself.
  void Namespace(const Dict& fields) {
    out_.append("<Namespace ");
    if (std::find(open_.begin(), open_.end(), &fields) != open_.end()) {
      out_.append("{...}");
    } else {
      open_.push_back(&fields);
      Entries(fields);
      open_.pop_back();
    }
    out_.push_back('>');
  }

  std::string& out_;
  std::vector<const Dict*> open_;
  int depth_ = 0;
};

void AppendJsonString(const std::string& text, bool ensure_ascii, std::string* out) {
  out->push_back('"');
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = NextCharacter(text, &at);
    switch (c) {
      case '"':
        out->append("\\\"");
        continue;
      case '\\':
        out->append("\\\\");
        continue;
      case '\n':
        out->append("\\n");
        continue;
      case '\r':
        out->append("\\r");
        continue;
      case '\t':
        out->append("\\t");
        continue;
      case '\f':
        out->append("\\f");
        continue;
      case '\b':
        out->append("\\b");
        continue;
      default:
        break;
    }
    const auto code = static_cast<uint32_t>(c);
    if (code < 0x20 || (ensure_ascii && code >= 0x7f && code < 0x10000)) {
      out->append(fmt::format("\\u{:04x}", code));
    } else if (ensure_ascii && code >= 0x10000) {
      const uint32_t rest = code - 0x10000;
      out->append(
          fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff)));
    } else {
      out->append(text, begin, at - begin);
    }
  }
  out->push_back('"');
}

class JsonWriter {
 public:
  JsonWriter(const JsonForm& form, std::string* out) : form_(form), out_(out) {}

  void Write(const Value& value, int depth) {
    if (out_->size() > kMaxTextBytes) Fail("tojson: the text is too long");
    switch (value.kind()) {
      case Kind::kNone:
        out_->append("null");
        return;
      case Kind::kBool:
        out_->append(value.boolean() ? "true" : "false");
        return;
      case Kind::kInt:
        out_->append(std::to_string(value.integer()));
        return;
      case Kind::kFloat:
        out_->append(Number(value.real()));
        return;
      case Kind::kString:
        AppendJsonString(value.text(), form_.ensure_ascii, out_);
        return;
      case Kind::kList:
      case Kind::kTuple: {
        const ValueList& items = value.items();
        if (items.empty()) return void(out_->append("[]"));
        out_->push_back('[');
        for (size_t i = 0; i < items.size(); ++i) {
          Between(i, depth + 1);
          Write(items[i], depth + 1);
        }
        Close(depth, ']');
        return;
      }
      case Kind::kDict:
        WriteDict(value.dict(), depth);
        return;
      default:
        Fail("tojson: a " + std::string(TypeName(value)) + " has no JSON form");
    }
  }

 private:
  static std::string Number(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return FloatText(number);
  }

  void WriteDict(const Dict& dict, int depth) {
    if (dict.entries.empty()) return void(out_->append("{}"));
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (form_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto* a, const auto* b) { return Less(a->first, b->first); });
    }
    out_->push_back('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      Between(i, depth + 1);
      WriteKey(entries[i]->first);
      out_->append(form_.key_separator);
      Write(entries[i]->second, depth + 1);
    }
    Close(depth, '}');
  }

  void WriteKey(const Value& key) {
    if (key.is_string()) return AppendJsonString(key.text(), form_.ensure_ascii, out_);
    if (!key.is_number() && !key.is_none()) {
      Fail("tojson: a " + std::string(TypeName(key)) + " cannot be a key in JSON");
    }
    out_->push_back('"');
    Write(key, 0);
    out_->push_back('"');
  }

  void Between(size_t index, int depth) {
    if (index > 0) out_->append(form_.item_separator);
    NewLine(depth);
  }

  void Close(int depth, char bracket) {
    NewLine(depth);
    out_->push_back(bracket);
  }

  void NewLine(int depth) {
    if (!form_.indent) return;
    out_->push_back('\n');
    for (int i = 0; i < depth; ++i) out_->append(*form_.indent);
  }

  const JsonForm& form_;
  std::string* out_;
};

}  // namespace

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  const std::string text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::stoi(text.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return text;
  // Python writes numbers of a middling size without an exponent.
  std::string digits;
  for (char c : text.substr(0, e)) {
    if (c != '-' && c != '.') digits.push_back(c);
  }
  std::string out = text[0] == '-' ? "-" : "";
  if (exponent < 0) {
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void AppendText(const Value& value, std::string* out) {
  if (value.is_undefined()) return;
  if (value.is_string()) {
    out->append(value.text());
  } else {
    AppendRepr(value, out);
  }
}

void AppendRepr(const Value& value, std::string* out) { ReprWriter(out).Write(value); }

void AppendAscii(const Value& value, std::string* out) {
  std::string repr;
  AppendRepr(value, &repr);
  for (size_t at = 0; at < repr.size();) {
    const char32_t c = NextCharacter(repr, &at);
    c < 0x80 ? out->push_back(static_cast<char>(c)) : AppendEscape(c, out);
  }
}

std::string ToText(const Value& value) {
  if (value.is_string()) return value.text();
  std::string out;
  AppendText(value, &out);
  return out;
}

std::string ToJsonText(const Value& value, const JsonForm& form) {
  std::string out;
  JsonWriter(form, &out).Write(value, 0);
  return out;
}

}  // namespace keel::model::jinja
