// Filters for HTML: striptags, xmlattr, urlize.
#include <algorithm>
#include <set>

#include "common/python_space.h"
#include "common/text.h"
#include "model/chat_template/builtins/html_entities.h"
#include "model/chat_template/builtins/text_pieces.h"
#include "model/chat_template/jinja/runtime.h"
#include "model/chat_template/jinja/text_form.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

Value StripTags(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "striptags", {});
  const std::string text = ToText(value);
  std::string kept;
  size_t at = 0;
  while (true) {
    const size_t begin = text.find('<', at);
    if (begin == std::string::npos) break;
    const bool comment = text.compare(begin, 4, "<!--") == 0;
    const size_t end = comment ? text.find("-->", begin + 4) : text.find('>', begin);
    if (end == std::string::npos) break;
    kept.append(text, at, begin - at);
    at = end + (comment ? 3 : 1);
  }
  kept.append(text, at);
  std::string spaced;
  for (std::string_view word : SplitAtSpace(kept, -1)) {
    if (!spaced.empty()) spaced.push_back(' ');
    spaced += word;
  }
  return Value::String(UnescapedHtml(spaced));
}

std::string Escaped(const Value& value) {
  return value.is_safe() ? value.text() : EscapedHtml(ToText(value));
}

Value XmlAttributes(Machine&, const Value& value, const Arguments& arguments) {
  const BoundArguments bound(arguments, "xmlattr", {"autospace"});
  if (!value.Is(Kind::kDict)) Fail("xmlattr of a " + std::string(TypeName(value)));
  std::string out;
  for (const auto& [key, item] : value.dict().entries) {
    if (item.is_none() || item.is_undefined()) continue;
    if (!key.is_string()) Fail("xmlattr: a name is a " + std::string(TypeName(key)));
    if (key.text().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      Fail("xmlattr: a name cannot have white space, '/', '>' or '=': " + key.text());
    }
    if (!out.empty()) out.push_back(' ');
    out += Escaped(key) + "=\"" + Escaped(item) + "\"";
  }
  if (bound.Truth(0, true) && !out.empty()) out.insert(0, " ");
  return Value::String(std::move(out));
}

// What urlize writes into its links.
struct LinkForm {
  std::optional<int64_t> longest;  // characters of a link's text
  std::string rel;                 // ` rel="noopener"`
  std::string target;
  std::vector<std::string> schemes;
};

LinkForm ReadLinkForm(const BoundArguments& bound, const Value* schemes) {
  LinkForm form;
  if (bound.has(0) && !bound[0].is_none()) form.longest = bound.Integer(0, 0);
  std::set<std::string_view> relations = {"noopener"};
  if (bound.Truth(1, false)) relations.insert("nofollow");
  if (bound.has(3) && bound[3].truth()) {
    for (std::string_view one : SplitAtSpace(bound.Text(3, ""), -1)) relations.insert(one);
  }
  std::string rel;
  for (std::string_view one : relations) rel += (rel.empty() ? "" : " ") + std::string(one);
  form.rel = " rel=\"" + EscapedHtml(rel) + "\"";
  if (bound.has(2) && bound[2].truth()) form.target = " target=\"" + Escaped(bound[2]) + "\"";
  if (schemes == nullptr || schemes->is_none()) return form;
  static const TextPattern kScheme = TextPattern::Fixed(R"(\A[\w.+-]{2,}:/{0,2}\z)");
  for (const Value& scheme : Iterate(*schemes)) {
    if (!scheme.is_string() || !Found(kScheme, scheme.text())) {
      Fail("urlize: a scheme must be such as 'ftp://', not " + ToText(scheme));
    }
    form.schemes.push_back(scheme.text());
  }
  return form;
}

std::string Link(const LinkForm& form, const std::string& to, std::string_view text) {
  std::string shown(text);
  const std::u32string all = ToCharacters(text);
  if (form.longest && static_cast<int64_t>(all.size()) > *form.longest) {
    shown = ToText(SliceOf(Value::String(shown), Value::None(), Value::Int(*form.longest),
                           Value::None())) +
            "...";
  }
  return "<a href=\"" + to + "\"" + form.rel + form.target + ">" + shown + "</a>";
}

// A word without what stands around a link: "(", "," and their like.
struct PeeledWord {
  std::string_view head, middle, tail;
};

size_t CountOf(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string_view::npos; at += part.size())
    ++count;
  return count;
}

PeeledWord Peel(std::string_view word) {
  size_t begin = 0, end = word.size();
  const auto take = [&](std::initializer_list<std::string_view> parts, bool front) {
    const std::string_view left = word.substr(begin, end - begin);
    for (std::string_view part : parts) {
      if (!(front ? left.starts_with(part) : left.ends_with(part))) continue;
      front ? void(begin += part.size()) : void(end -= part.size());
      return true;
    }
    return false;
  };
  while (take({"(", "<", "&lt;"}, true)) {
  }
  while (take({")", ">", ".", ",", "\n", "&gt;"}, false)) {
  }
  // What closes a bracket of the link belongs to it, with what is before that.
  for (const auto& [open, close] :
       {std::pair<std::string_view, std::string_view>{"(", ")"}, {"<", ">"}, {"&lt;", "&gt;"}}) {
    const std::string_view middle = word.substr(begin, end - begin);
    const size_t opened = CountOf(middle, open);
    if (opened <= CountOf(middle, close)) continue;
    for (size_t i = std::min(opened, CountOf(word.substr(end), close)); i > 0; --i)
      end = word.find(close, end) + close.size();
  }
  return {word.substr(0, begin), word.substr(begin, end - begin), word.substr(end)};
}

// Jinja's expressions; a word has no white space.
const TextPattern& WebAddress() {
  static const TextPattern kPattern = TextPattern::Fixed(
      R"(\A(?:(?:https?://|www\.)(?:[\w%-]+\.)*(?:[a-z]{2,63}|xn--[\w%]{2,59}))"
      R"(|(?:[\w%-]{2,63}\.)+(?:com|net|int|edu|gov|org|info|mil))"
      R"(|https?://(?:\d{1,3}(?:\.\d{1,3}){3}|\[(?:[\da-f]{0,4}:){2}(?:[\da-f]{0,4}:?){1,6}])))"
      R"((?::\d{1,5})?(?:[/?#].*)?\z)",
      true);
  return kPattern;
}

std::string Linked(const LinkForm& form, const std::string& word) {
  static const TextPattern kMail = TextPattern::Fixed(R"(\A.+@\w[\w.-]*\.\w+\z)");
  const std::string_view text = word;
  if (Found(WebAddress(), text)) {
    const bool whole = text.starts_with("https://") || text.starts_with("http://");
    return Link(form, (whole ? "" : "https://") + word, text);
  }
  if (text.starts_with("mailto:") && Found(kMail, text.substr(7))) {
    return "<a href=\"" + word + "\">" + word.substr(7) + "</a>";
  }
  if (text.find('@') != std::string_view::npos && !text.starts_with("www.") &&
      !text.starts_with('@') && text.find(':') == std::string_view::npos && Found(kMail, text)) {
    return "<a href=\"mailto:" + word + "\">" + word + "</a>";
  }
  std::string out = word;
  for (const std::string& scheme : form.schemes) {
    if (out != scheme && out.starts_with(scheme))
      out = "<a href=\"" + out + "\"" + form.rel + form.target + ">" + out + "</a>";
  }
  return out;
}

Value Urlize(Machine& machine, const Value& value, const Arguments& arguments) {
  // Of its five arguments the last is seldom there.
  Arguments first = arguments;
  const Value* schemes = nullptr;
  Value last;
  if (first.positional.size() == 5) {
    last = first.positional.back();
    schemes = &last;
    first.positional.pop_back();
  }
  const auto named = std::find_if(first.named.begin(), first.named.end(),
                                  [](const auto& one) { return one.first == "extra_schemes"; });
  if (named != first.named.end()) {
    if (schemes != nullptr) Fail("urlize: 'extra_schemes' is given twice");
    last = named->second;
    schemes = &last;
    first.named.erase(named);
  }
  const BoundArguments bound(first, "urlize", {"trim_url_limit", "nofollow", "target", "rel"});
  const LinkForm form = ReadLinkForm(bound, schemes);
  const std::string text = Escaped(value);
  std::string out;
  for (size_t at = 0; at < text.size();) {
    machine.Step();
    size_t end = at;
    bool space = false;
    for (size_t next = at; next < text.size(); end = next) {
      const bool is_space = IsPythonSpace(NextCharacter(text, &next));
      if (end == at) space = is_space;
      if (is_space != space) break;
    }
    const std::string word = text.substr(at, end - at);
    at = end;
    if (space) {
      out += word;
      continue;
    }
    const PeeledWord peeled = Peel(word);
    out.append(peeled.head).append(Linked(form, std::string(peeled.middle))).append(peeled.tail);
    if (out.size() > kMaxTextBytes) Fail("a string is too long");
  }
  return Value::String(std::move(out));
}

constexpr FilterEntry kHtmlFilters[] = {
    {"striptags", StripTags}, {"xmlattr", XmlAttributes}, {"urlize", Urlize}};

}  // namespace

const FilterEntry* FindHtmlFilter(std::string_view name) {
  for (const FilterEntry& entry : kHtmlFilters) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

}  // namespace keel::model::jinja
