// How values stand to one another: equal, less, within.
#include "model/chat_template/jinja/evaluator.h"
#include "model/chat_template/jinja/limits.h"
#include "model/chat_template/jinja/value.h"
#include "model/chat_template/unicode/code_points.h"

namespace keel::model::jinja {
namespace {

bool EqualLists(const ValueList& a, const ValueList& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!Equal(a[i], b[i])) return false;
  }
  return true;
}

bool LessLists(const ValueList& a, const ValueList& b) {
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!Equal(a[i], b[i])) return Less(a[i], b[i]);
  }
  return a.size() < b.size();
}

// Exact for 64-bit integers, which a double is not.
long double Wide(const Value& value) {
  return value.is_integral() ? static_cast<long double>(value.integer())
                             : static_cast<long double>(value.real());
}

}  // namespace

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return Wide(a) == Wide(b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return EqualLists(a.items(), b.items());
    case Kind::kDict: {
      const Dict& left = a.dict();
      const Dict& right = b.dict();
      if (left.entries.size() != right.entries.size()) return false;
      for (const auto& [key, value] : left.entries) {
        const Value* other = right.Find(key);
        if (other == nullptr || !Equal(value, *other)) return false;
      }
      return true;
    }
    case Kind::kMethod:
      return &a.method() == &b.method() && a.self().SameObject(b.self());
    case Kind::kFunction:
      return &a.function() == &b.function();
    default:
      return a.SameObject(b);
  }
}

bool Less(const Value& a, const Value& b) {
  if (a.is_undefined()) Fail(a.note());
  if (b.is_undefined()) Fail(b.note());
  if (a.is_number() && b.is_number()) return Wide(a) < Wide(b);
  if (a.is_string() && b.is_string()) return a.text() < b.text();
  if (a.kind() == b.kind() && (a.Is(Kind::kList) || a.Is(Kind::kTuple))) {
    return LessLists(a.items(), b.items());
  }
  Fail("'" + std::string(TypeName(a)) + "' and '" + std::string(TypeName(b)) + "' have no order");
}

bool Contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string()) {
        if (item.is_undefined()) Fail(item.note());
        Fail("'in' a string needs a string on its left, not a " + std::string(TypeName(item)));
      }
      return container.text().find(item.text()) != std::string::npos;
    case Kind::kDict:
      return container.dict().Find(item) != nullptr;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
    case Kind::kGenerator:
      for (const Value& candidate : Iterate(container)) {
        if (Equal(candidate, item)) return true;
      }
      return false;
    default:
      Fail("nothing can be 'in' a " + std::string(TypeName(container)));
  }
}

ValueList Iterate(const Value& value) {
  ValueList items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return value.items();
    case Kind::kGenerator: {
      size_t* consumed = value.consumed();
      const ValueList& all = value.items();
      items.assign(all.begin() + static_cast<std::ptrdiff_t>(*consumed), all.end());
      *consumed = all.size();
      if (value.failure() != nullptr) throw Failure(*value.failure());
      return items;
    }
    case Kind::kDict:
      for (const auto& [key, unused] : value.dict().entries) items.push_back(key);
      return items;
    case Kind::kString:
      if (CountCharacters(value.text()) > kMaxWeight) Fail("a text of too many characters to list");
      for (size_t at = 0; at < value.text().size();) {
        const size_t begin = at;
        NextCharacter(value.text(), &at);
        items.push_back(Value::String(value.text().substr(begin, at - begin)));
      }
      return items;
    default:
      Fail("a '" + std::string(TypeName(value)) + "' cannot be iterated over");
  }
}

int64_t Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return CountCharacters(value.text());
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return static_cast<int64_t>(value.items().size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    case Kind::kLoop:
      return value.loop().index0 + 1 + value.loop().Remaining();
    default:
      Fail("a '" + std::string(TypeName(value)) + "' has no length");
  }
}

}  // namespace keel::model::jinja
