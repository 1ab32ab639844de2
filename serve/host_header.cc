#include "serve/host_header.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

namespace keel::serve {

namespace {

bool IsAddress(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return inet_pton(AF_INET, text.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, text.c_str(), address.data()) == 1;
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

}  // namespace

bool IsOwnHost(std::string_view header, std::string_view own) {
  // "name", "name:port", "[::1]", "[::1]:port".
  const bool bracketed = header.starts_with('[');
  const size_t end = bracketed ? header.find(']') : header.find(':');
  if (bracketed && end == std::string_view::npos) return false;
  const std::string_view port =
      end == std::string_view::npos ? "" : header.substr(end + (bracketed ? 1 : 0));
  const bool digits =
      port.size() <= 6 && std::all_of(port.begin() + (port.empty() ? 0 : 1), port.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
  if (!digits || (!port.empty() && port.front() != ':')) return false;
  std::string name = Lower(bracketed ? header.substr(1, end - 1) : header.substr(0, end));
  if (!bracketed && name.ends_with('.')) name.pop_back();
  return IsAddress(name) || name == "localhost" || name.ends_with(".localhost") ||
         (!name.empty() && name == Lower(own));
}

}  // namespace keel::serve
