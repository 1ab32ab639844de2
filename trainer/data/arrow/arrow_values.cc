#include "trainer/data/arrow/arrow_values.h"

#include <arrow/extension_type.h>
#include <arrow/type.h>
#include <arrow/util/float16.h>

#include <string_view>
#include <utility>

#include "common/text.h"

namespace keel::trainer {

namespace {

constexpr int kMostDepth = 64;

Status Refuse(const std::string& text) { return Status(StatusCode::kInvalidData, text); }

template <typename Array>
auto Plain(const arrow::Array& array, int64_t i) {
  return static_cast<const Array&>(array).Value(i);
}

Result<Json> Text(std::string_view text) {
  if (FindNotUtf8(text) != std::string_view::npos) return Refuse("text that is not UTF-8");
  return Json(std::string(text));
}

template <typename List>
Result<Json> ListAt(const arrow::Array& array, int64_t i, int depth) {
  const auto& list = static_cast<const List&>(array);
  Json items = Json::array();
  const int64_t begin = list.value_offset(i);
  for (int64_t k = 0; k < list.value_length(i); ++k) {
    KEEL_ASSIGN_OR_RETURN(Json item, ValueAt(*list.values(), begin + k, depth + 1));
    items.push_back(std::move(item));
  }
  return items;
}

Result<Json> StructAt(const arrow::Array& array, int64_t i, int depth) {
  const auto& fields = static_cast<const arrow::StructArray&>(array);
  Json object = Json::object();
  for (int f = 0; f < fields.num_fields(); ++f) {
    const std::string& name = fields.struct_type()->field(f)->name();
    if (object.contains(name)) return Refuse("two fields are named " + Printable(name, 60));
    KEEL_ASSIGN_OR_RETURN(object[name], ValueAt(*fields.field(f), i, depth + 1));
  }
  return object;
}

Result<Json> MapAt(const arrow::Array& array, int64_t i, int depth) {
  const auto& map = static_cast<const arrow::MapArray&>(array);
  Json pairs = Json::array();
  const int64_t begin = map.value_offset(i);
  for (int64_t k = begin; k < begin + map.value_length(i); ++k) {
    KEEL_ASSIGN_OR_RETURN(Json key, ValueAt(*map.keys(), k, depth + 1));
    KEEL_ASSIGN_OR_RETURN(Json item, ValueAt(*map.items(), k, depth + 1));
    pairs.push_back(Json::array({std::move(key), std::move(item)}));
  }
  return pairs;
}

}  // namespace

Result<Json> ValueAt(const arrow::Array& array, int64_t i, int depth) {
  if (depth > kMostDepth) return Refuse("values nest too deep");
  if (array.IsNull(i)) return Json(nullptr);
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      return Json(Plain<arrow::BooleanArray>(array, i));
    case arrow::Type::INT8:
      return Json(Plain<arrow::Int8Array>(array, i));
    case arrow::Type::INT16:
      return Json(Plain<arrow::Int16Array>(array, i));
    case arrow::Type::INT32:
      return Json(Plain<arrow::Int32Array>(array, i));
    case arrow::Type::INT64:
      return Json(Plain<arrow::Int64Array>(array, i));
    case arrow::Type::UINT8:
      return Json(Plain<arrow::UInt8Array>(array, i));
    case arrow::Type::UINT16:
      return Json(Plain<arrow::UInt16Array>(array, i));
    case arrow::Type::UINT32:
      return Json(Plain<arrow::UInt32Array>(array, i));
    case arrow::Type::UINT64:
      return Json(Plain<arrow::UInt64Array>(array, i));
    case arrow::Type::HALF_FLOAT:
      return Json(
          arrow::util::Float16::FromBits(Plain<arrow::HalfFloatArray>(array, i)).ToDouble());
    case arrow::Type::FLOAT:
      return Json(static_cast<double>(Plain<arrow::FloatArray>(array, i)));
    case arrow::Type::DOUBLE:
      return Json(Plain<arrow::DoubleArray>(array, i));
    case arrow::Type::STRING:
      return Text(static_cast<const arrow::StringArray&>(array).GetView(i));
    case arrow::Type::LARGE_STRING:
      return Text(static_cast<const arrow::LargeStringArray&>(array).GetView(i));
    case arrow::Type::STRING_VIEW:
      return Text(static_cast<const arrow::StringViewArray&>(array).GetView(i));
    case arrow::Type::LIST:
      return ListAt<arrow::ListArray>(array, i, depth);
    case arrow::Type::LARGE_LIST:
      return ListAt<arrow::LargeListArray>(array, i, depth);
    case arrow::Type::FIXED_SIZE_LIST:
      return ListAt<arrow::FixedSizeListArray>(array, i, depth);
    case arrow::Type::LIST_VIEW:
      return ListAt<arrow::ListViewArray>(array, i, depth);
    case arrow::Type::LARGE_LIST_VIEW:
      return ListAt<arrow::LargeListViewArray>(array, i, depth);
    case arrow::Type::STRUCT:
      return StructAt(array, i, depth);
    case arrow::Type::MAP:
      return MapAt(array, i, depth);
    case arrow::Type::DICTIONARY: {
      const auto& words = static_cast<const arrow::DictionaryArray&>(array);
      return ValueAt(*words.dictionary(), words.GetValueIndex(i), depth + 1);
    }
    case arrow::Type::EXTENSION:
      return ValueAt(*static_cast<const arrow::ExtensionArray&>(array).storage(), i, depth + 1);
    default:
      return Json{{"$arrow", array.type()->ToString()}};
  }
}

}  // namespace keel::trainer
