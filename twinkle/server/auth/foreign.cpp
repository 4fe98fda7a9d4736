#include "twinkle/server/auth/foreign.h"

#include "twinkle/server/auth/address.h"
#include "twinkle/server/replay/brief.h"

namespace twinkle::server {
namespace {

constexpr const char* kRemedy = ", or make keys (twinkle keys create) and start the server again";

std::string lower_of(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  return text;
}

// Without its port, and the brackets of an address.
std::string name_of(const std::string& host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

}  // namespace

std::string foreign(const Head& head) {
  const std::string host = lower_of(head.header("host")), name = name_of(host);
  if (!host.empty() && name != "localhost" && !name.ends_with(".localhost") && !is_address(name))
    return "server: Host is '" + brief(host) +
           "', and a server without keys answers to localhost and IP addresses only; use "
           "http://127.0.0.1 or the like" +
           kRemedy;
  const std::string origin = lower_of(head.header("origin"));
  if (!origin.empty() && origin != "http://" + host && origin != "https://" + host)
    return "server: Origin is '" + brief(origin) +
           "', and a server without keys takes no requests from pages of other sites; leave Origin "
           "out" +
           kRemedy;
  return "";
}

}  // namespace twinkle::server
