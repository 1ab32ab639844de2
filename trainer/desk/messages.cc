#include "trainer/desk/messages.h"

#include <utility>

#include "common/json.h"
#include "common/wire.h"

namespace keel::trainer::desk {

namespace {

// One description of each message serves both ways: Out writes the fields, In reads them.
class Out {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(const T& value) { out_.Pod(value); }
  void operator()(const std::string& text) { out_.Text(text); }
  void operator()(const Json& json) { out_.List(Json::to_cbor(json)); }
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_same_v<T, VersionSpan> ||
      std::is_same_v<T, TokenRange>
  void operator()(const std::vector<T>& list) { out_.List(list); }
  void operator()(const std::map<std::string, std::string>& map) {
    out_.Count(map.size());
    for (const auto& [key, value] : map) out_.Text(key).Text(value);
  }
  std::string Take() { return std::move(out_).Take(); }

 private:
  WireWriter out_;
};

class In {
 public:
  explicit In(std::string_view bytes) : in_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void operator()(T& value) { good_ = good_ && in_.Pod(&value); }
  // Any other byte than these two is no bool.
  void operator()(bool& value) {
    uint8_t byte = 0;
    (*this)(byte);
    good_ = good_ && byte <= 1;
    value = byte == 1;
  }
  void operator()(std::string& text) { good_ = good_ && in_.Text(&text); }
  void operator()(Json& json) {
    std::string bytes;
    (*this)(bytes);
    if (!good_) return;
    // A size that no memory has is thrown in any case.
    try {
      json = Json::from_cbor(bytes, true, false);
    } catch (const Json::exception&) {
      json = Json(Json::value_t::discarded);
    }
    good_ = !json.is_discarded();
  }
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_same_v<T, VersionSpan> ||
      std::is_same_v<T, TokenRange>
  void operator()(std::vector<T>& list) { good_ = good_ && in_.List(&list); }
  void operator()(std::map<std::string, std::string>& map) {
    uint64_t count = 0;
    good_ = good_ && in_.U64(&count);
    for (uint64_t i = 0; good_ && i < count; ++i) {
      std::string key, value;
      (*this)(key);
      (*this)(value);
      map[key] = value;
    }
  }
  bool whole() const { return good_ && in_.AtEnd(); }

 private:
  WireReader in_;
  bool good_ = true;
};

template <typename Io, typename P>
void FieldsOfPartial(Io& io, P& partial) {
  io(partial.tokens), io(partial.log_probs), io(partial.spans);
  io(partial.given), io(partial.tool_memory);
}

// The fields of each message, `M` const where they are written.
template <typename Io, typename M>
void Fields(Io& io, M& m) {
  using T = std::remove_const_t<M>;
  if constexpr (std::is_same_v<T, Hello>) {
    io(m.name), io(m.ranks), io(m.capacity), io(m.facts);
  } else if constexpr (std::is_same_v<T, Serving>) {
    io(m.version), io(m.digest);
  } else if constexpr (std::is_same_v<T, Progress>) {
    io(m.stream), io(m.lease), io(m.from), FieldsOfPartial(io, m.more);
  } else if constexpr (std::is_same_v<T, Back> || std::is_same_v<T, Conclude>) {
    io(m.stream), io(m.lease);
  } else if constexpr (std::is_same_v<T, Done>) {
    io(m.stream), io(m.lease), io(m.spans), io(m.response), io(m.text);
  } else if constexpr (std::is_same_v<T, Failed> || std::is_same_v<T, Refused>) {
    io(m.code), io(m.message);
  } else if constexpr (std::is_same_v<T, Welcome>) {
    io(m.worker);
  } else if constexpr (std::is_same_v<T, Join>) {
    io(m.ranks);
  } else if constexpr (std::is_same_v<T, Joined>) {
    io(m.first), io(m.job);
  } else if constexpr (std::is_same_v<T, LinkUp>) {
    io(m.group), io(m.trainers);
  } else if constexpr (std::is_same_v<T, Push>) {
    io(m.version);
  } else if constexpr (std::is_same_v<T, Assign>) {
    io(m.stream), io(m.lease), io(m.id.position), io(m.id.sample), io(m.text);
    io(m.prompt.id), io(m.prompt.tokens), io(m.prompt.text), io(m.prompt.data_source);
    io(m.prompt.ground_truth), io(m.prompt.extra_info), io(m.prompt.max_tokens),
        FieldsOfPartial(io, m.so_far), io(m.until);
  } else if constexpr (std::is_same_v<T, Heartbeat>) {
    io(m.up_us), io(m.idle_us), io(m.tokens), io(m.again);
  } else if constexpr (std::is_same_v<T, Told>) {
    io(m.state);
  } else if constexpr (std::is_same_v<T, Bye>) {
    io(m.over);
  } else {
    static_assert(std::is_same_v<T, Ask>);
  }
}

// The message whose place in the variant is `kind`.
template <size_t I = 0>
bool Read(size_t kind, In& in, Message* message) {
  if constexpr (I < std::variant_size_v<Message>) {
    if (kind != I) return Read<I + 1>(kind, in, message);
    Fields(in, message->emplace<I>());
    return in.whole();
  }
  return false;
}

}  // namespace

std::string Encode(const Message& message) {
  Out out;
  out(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& one) { Fields(out, one); }, message);
  return out.Take();
}

Result<Message> Decode(std::string_view bytes) {
  In in(bytes);
  uint8_t kind = 0;
  in(kind);
  Message message;
  if (Read(kind, in, &message)) return message;
  return Status(StatusCode::kInvalidData, "a message of the desk that is torn, or none");
}

}  // namespace keel::trainer::desk
